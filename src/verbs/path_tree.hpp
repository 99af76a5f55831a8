// The paths of ours as files of the kernel's: a tree of folders, links and texts in the user's
// runtime folder, to which the hooks lead. So whatever is done with a folder or a link of it
// (listing it, opening beside a descriptor, resolving) the kernel does.
//
// A tree is named after what it holds (the addresses of a network namespace differ), appears as a
// whole and is never changed. Any thread, and children of fork(); not async-signal-safe.
#pragma once

#include <limits.h>

#include "verbs/path_table.hpp"

namespace aperture::verbs {

// A path that may be ours, and where it is: `at` as openat(2) has it. Keeps errno. Its 4 KiB are on
// the stack of whoever asks about such a path, and of nobody else.
class OurPath {
 public:
  OurPath(int at, const char* path) noexcept;
  OurPath(const OurPath&) = delete;
  OurPath& operator=(const OurPath&) = delete;

  PathKind kind() const noexcept { return kind_; }
  bool is_node() const noexcept { return kind_ == PathKind::rdma_cm || kind_ == PathKind::device; }
  bool is_ours() const noexcept { return kind_ != PathKind::foreign; }
  // For the kernel: in the tree, or as it was given.
  const char* get() const noexcept { return at_; }
  // From the root, without the part that leads to the tree. Only of what is ours.
  const char* clean() const noexcept { return clean_; }

 private:
  void find_place() noexcept;

  PathKind kind_ = PathKind::foreign;
  const char* at_;
  const char* clean_ = buffer_;
  char buffer_[PATH_MAX];
};

// Whether a walk down from that path comes to what is ours. Keeps errno.
bool walks_to_ours(const char* path) noexcept;

// The path of an open folder, as the kernel has it. False: it has none, or a path that is longer
// than `size` - 2.
bool find_folder_of(int fd, char* out, size_t size) noexcept;

// A path that the kernel gave back, without the part that leads to the tree. Keeps errno. False: it
// led elsewhere.
bool leave_tree(char* path) noexcept;

}  // namespace aperture::verbs
