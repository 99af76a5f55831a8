// Taking and giving back: see qp_numbers.hpp.
#include "nic/qp_numbers.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

#include "base/log.hpp"
#include "base/no_throw.hpp"
#include "base/per_process.hpp"
#include "base/random.hpp"
#include "nic/host_identity.hpp"
#include "wire/datagram.hpp"

namespace aperture::nic {

std::vector<Address> queue_pair_ips() {
  std::vector<Address> ips = host_addresses();
  const Address local = Address::v4(0x7f000001, 0);
  if (std::find(ips.begin(), ips.end(), local) == ips.end()) ips.push_back(local);
  return ips;
}

Address qp_address(const Address& ip, QpNumber number) noexcept {
  Address at = ip;
  at.port = static_cast<uint16_t>(number >> 8);
  at.index = static_cast<uint8_t>(number);
  return at;
}

// (The bias of a remainder of 64 bits is nobody's gain.)
std::deque<uint8_t> QpNumbers::indices_of(uint16_t port) {
  std::deque<uint8_t> indices;
  for (unsigned index = 1; index <= 255; ++index) {
    if (qp_number(port, static_cast<uint8_t>(index)) == wire::kMulticastQpn) continue;
    indices.push_back(static_cast<uint8_t>(index));
  }
  std::array<uint64_t, 255> draws;
  random_bytes(draws.data(), sizeof draws);
  for (size_t i = indices.size() - 1; i > 0; --i)
    std::swap(indices[i], indices[draws[i] % (i + 1)]);
  return indices;
}

QpNumbers& QpNumbers::instance() {
  static constinit PerProcess<QpNumbers> the_one;
  return **the_one.get([]() -> Result<QpNumbers*> { return new QpNumbers(queue_pair_ips()); });
}

QpNumbers::QpNumbers(std::vector<Address> ips) noexcept : ips_(std::move(ips)) {}

QpNumbers::~QpNumbers() {
  const auto contact = Contact::instance();
  if (!contact) return;
  for (const auto& [number, port] : ports_) contact.value()->close_port(port.id);
}

void QpNumbers::Port::put(uint8_t index, bool used) noexcept {
  assert(!taken[index] && free_count < free.size());
  free[(first_free + free_count++) % free.size()] = {index, used};
}

uint8_t QpNumbers::Port::take() noexcept {
  assert(free_count != 0);
  const uint8_t index = free[first_free].index;
  first_free = (first_free + 1) % free.size();
  --free_count;
  assert(!taken[index]);
  taken[index] = true;
  ++in_use;
  return index;
}

Result<QpNumber> QpNumbers::take() noexcept {
  const std::lock_guard guard(mutex_);
  for (int tries = 0; tries < 2; ++tries) {
    for (auto& [number, port] : ports_) {
      if (port.has_one()) return qp_number(number, port.take());
    }
    if (Status s = add_port(); !s) return s.error();
  }
  return Errc::addr_in_use;
}

Status QpNumbers::add_port() noexcept {
  auto contact = Contact::instance();
  if (!contact) return contact.error();
  return no_throw([&]() -> Status {
    const std::deque<uint8_t> indices = indices_of(0);
    uint16_t number = 0;
    auto id = open_where_it_can_be(**contact, number);
    if (!id) return id.error();
    try {
      Port& port = ports_[number];
      port.id = *id;
      for (const uint8_t index : indices) {
        if (qp_number(number, index) != wire::kMulticastQpn) port.put(index, false);
      }
    } catch (const std::bad_alloc&) {
      (*contact)->close_port(*id);
      throw;
    }
    return {};
  });
}

// An address may have gone since the table of addresses was made: the others do.
Result<PortId> QpNumbers::open_where_it_can_be(Contact& contact, uint16_t& number) {
  auto opened = contact.open_port(ips_, number);
  if (opened || opened.error() != Errc::addr_not_avail) return opened;
  std::vector<Address> there;
  for (const Address& ip : ips_) {
    const auto alone = contact.open_port({&ip, 1}, number);
    if (alone.error() == Errc::addr_not_avail) {
      APERTURE_INFO("%s is no address of this host any more: queue pairs are not reached there",
                    ip.print().c_str());
      continue;
    }
    there.push_back(ip);
    if (alone) contact.close_port(alone.value());
  }
  return contact.open_port(there, number);
}

void QpNumbers::give_back(QpNumber number) noexcept {
  const std::lock_guard guard(mutex_);
  const auto it = ports_.find(static_cast<uint16_t>(number >> 8));
  const auto index = static_cast<uint8_t>(number);
  if (number >> 24 != 0 || it == ports_.end() || !it->second.taken[index]) return;
  Port& port = it->second;
  assert(port.in_use != 0);
  port.taken[index] = false;
  port.put(index, true);
  if (--port.in_use == 0) close_empty_but(1);
}

void QpNumbers::close_idle() noexcept {
  const std::lock_guard guard(mutex_);
  close_empty_but(0);
}

void QpNumbers::close_empty_but(size_t kept) noexcept {
  const auto contact = Contact::instance();
  if (!contact) return;
  for (auto it = ports_.begin(); it != ports_.end();) {
    const bool idle = it->second.in_use == 0;
    if (idle && kept == 0) {
      contact.value()->close_port(it->second.id);
      it = ports_.erase(it);
      continue;
    }
    if (idle) --kept;
    ++it;
  }
}

size_t QpNumbers::ports() noexcept {
  const std::lock_guard guard(mutex_);
  return ports_.size();
}

}  // namespace aperture::nic
