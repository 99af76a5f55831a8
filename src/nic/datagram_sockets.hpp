// The sockets of a datagram queue pair, of either door: closed in forked children.
#pragma once

#include <memory>
#include <span>

#include "link/datagram.hpp"

namespace aperture::nic {

// offered: those of them at which other hosts are served. Errors: those of link::udp::open().
Result<std::unique_ptr<link::Datagrams>> open_datagrams(std::span<const Address> ips,
                                                        std::span<const Address> offered) noexcept;

}  // namespace aperture::nic
