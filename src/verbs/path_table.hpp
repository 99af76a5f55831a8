// The paths that exist because this library is there: the character devices under /dev/infiniband,
// and what some programs read of a device in /sys instead of asking libibverbs.
//
// Who needs which: librdmacm opens rdma_cm and reads its abi_version; UCX stats the uverbs device
// and reads gid_attrs/types, gid_attrs/ndevs and device/numa_node; NCCL and others read
// gid_attrs/types. The rest of a port is there for scripts. Any thread; nothing is kept.
#pragma once

#include <sys/stat.h>

#include <string>

#include "base/address.hpp"

namespace aperture::verbs {

enum class PathKind {
  foreign,  // not ours: the kernel answers
  rdma_cm,  // the connection manager
  device,   // a character device that is there, and that nobody opens through us
  folder,
  file,  // its text is ours
};

// One look at the first characters for almost every path there is.
inline bool may_be_ours(const char* path) noexcept {
  return path != nullptr && path[0] == '/' && (path[1] == 'd' || path[1] == 's') &&
         (path[2] == 'e' || path[2] == 'y') && (path[3] == 'v' || path[3] == 's') &&
         path[4] == '/' && (path[5] == 'i' || path[5] == 'c');
}

// Not async-signal-safe for paths of ours; errno is kept.
PathKind kind_of_path(const char* path) noexcept;
// The name of the interface that has that address; empty: none has it. 15 characters at most, which
// need no memory.
std::string interface_of(const Address& address);
// The text of a file of ours, with its newline.
std::string text_of_path(const char* path);
void fill_stat(PathKind kind, struct stat& out) noexcept;

}  // namespace aperture::verbs
