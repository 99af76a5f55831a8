// The paths that exist because this library is there: the character devices under /dev/infiniband,
// and the device as /sys shows it.
//
// Who needs which: librdmacm opens rdma_cm and reads its abi_version; UCX stats the uverbs device
// and reads gid_attrs/types, gid_attrs/ndevs and device/numa_node; NCCL and others read
// gid_attrs/types; Mooncake and others resolve the device's path and read its numa_node; libibumad
// (ibstat), ibstatus and people list what there is. Any thread; nothing is kept.
#pragma once

#include <sys/stat.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/address.hpp"

namespace aperture::verbs {

enum class PathKind {
  foreign,  // not ours: the kernel answers
  rdma_cm,  // the connection manager
  device,   // a character device that is there, and that nobody opens through us
  in_tree,  // ours; path_tree.hpp has it, if it is there
};

// Whether a relative path has a name in it that is ours, or begins above the folder that it is
// relative to, which may be one of ours. Under `aperture explain` any path may.
bool may_lead_to_ours(const char* relative) noexcept;
// One look at the first characters for almost every path there is.
inline bool may_be_ours(const char* path) noexcept {
  if (path == nullptr) return false;
  if (path[0] != '/') return may_lead_to_ours(path);
  return (path[1] == 'd' || path[1] == 's') && (path[2] == 'e' || path[2] == 'y') &&
         (path[3] == 'v' || path[3] == 's') && path[4] == '/' &&
         (path[5] == 'i' || path[5] == 'c' || path[5] == 'd');
}

// `clean`: see clean_path(). No memory is needed.
PathKind kind_of_path(const char* clean) noexcept;
// Without empty and "." components, and without ".." in those folders of ours that the kernel may
// not have; a slash at the end stays. False: it is longer than `size` - 1. `out` may be `path`.
bool clean_path(const char* path, char* out, size_t size) noexcept;

// A folder of the kernel's that ours lie in, other than the root.
bool is_above_ours(const char* clean) noexcept;
// What a listing of a folder of the kernel's has besides: names of folders of ours, then null.
using NamesBeside = std::array<const char*, 2>;
inline constexpr size_t kLongestFolderBeside = 20;
NamesBeside names_beside(std::string_view folder) noexcept;

// The name of the interface that has that address; empty: none has it. 15 characters at most, which
// need no memory.
std::string interface_of(const Address& address);

// What the tree consists of, by its paths: the texts of files, the targets of links, and folders
// of the kernel's whose other entries have to be there too.
struct TreeContents {
  using Pair = std::pair<std::string, std::string>;
  std::vector<Pair> files;
  std::vector<Pair> links;
  std::vector<std::string> shared_folders;
};
TreeContents tree_contents();

// Of a character device.
void fill_stat(PathKind kind, struct stat& out) noexcept;

// While one stands, this thread finds the kernel's paths alone: for the real library, which would
// look for a driver of our device.
class KernelPathsAlone {
 public:
  KernelPathsAlone() noexcept;
  ~KernelPathsAlone();
  KernelPathsAlone(const KernelPathsAlone&) = delete;
  KernelPathsAlone& operator=(const KernelPathsAlone&) = delete;
};
bool are_kernel_paths_alone() noexcept;

}  // namespace aperture::verbs
