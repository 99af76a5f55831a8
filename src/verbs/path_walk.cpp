// The walk itself: see path_walk.hpp.
#include "verbs/path_walk.hpp"

#include <dirent.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <climits>
#include <cstring>
#include <new>

namespace aperture::verbs {

namespace {

constexpr int kNoInstruction = 3;  // FTS_NOINSTR of BSD: none of FTS_AGAIN, FTS_FOLLOW, FTS_SKIP

bool is_dot(const char* name) noexcept {
  return std::strcmp(name, ".") == 0 || std::strcmp(name, "..") == 0;
}

// The last name of a path, as fts(3) names a root.
const char* name_of_root(const char* path) noexcept {
  const char* slash = std::strrchr(path, '/');
  return slash == nullptr || (slash == path && slash[1] == 0) ? path : slash + 1;
}

}  // namespace

Walk::Walk(char* const* roots, int options, Order* order) : options_(options), order_(order) {
  top_.entry = std::move(make_node(nullptr, "", "")->entry);
  top_.entry->fts_level = FTS_ROOTPARENTLEVEL;
  top_.filled = true;
  at_ = &top_;
  for (; *roots != nullptr; ++roots) {
    Node& root = *top_.children.emplace_back(make_node(&top_, *roots, name_of_root(*roots)));
    look(root, (options_ & FTS_COMFOLLOW) != 0);
    if (root.entry->fts_info == FTS_DOT) root.entry->fts_info = FTS_D;
  }
  put_in_order(top_);
  assert(top_.parent == nullptr && !top_.children.empty());
}

std::unique_ptr<Walk::Node> Walk::make_node(Node* parent, const std::string& path,
                                            const char* name) {
  auto node = std::make_unique<Node>();
  const size_t length = std::strlen(name);
  node->entry.reset(static_cast<FTSENT*>(::calloc(1, sizeof(FTSENT) + length)));
  if (node->entry == nullptr) throw std::bad_alloc();
  node->path = path;
  node->parent = parent;
  FTSENT& entry = *node->entry;
  std::memcpy(entry.fts_name, name, length + 1);
  entry.fts_namelen = static_cast<unsigned short>(length);
  entry.fts_path = entry.fts_accpath = node->path.data();
  entry.fts_pathlen = static_cast<unsigned short>(node->path.size());
  entry.fts_instr = kNoInstruction;
  entry.fts_statp = &node->status;
  if (parent != nullptr) {
    entry.fts_parent = parent->entry.get();
    entry.fts_level = static_cast<short>(parent->entry->fts_level + 1);
  }
  return node;
}

void Walk::look(Node& node, bool follow) const {
  FTSENT& entry = *node.entry;
  struct stat& status = node.status;
  const bool all = follow || (options_ & FTS_LOGICAL) != 0;
  entry.fts_errno = 0;
  const char* const path = node.path.c_str();
  if ((all ? ::stat(path, &status) : ::lstat(path, &status)) != 0) {
    entry.fts_errno = errno;
    if (all && ::lstat(path, &status) == 0) {
      entry.fts_errno = 0;
      entry.fts_info = FTS_SLNONE;
    } else {
      status = {};
      entry.fts_info = FTS_NS;
    }
    return;
  }
  entry.fts_dev = status.st_dev;
  entry.fts_ino = status.st_ino;
  entry.fts_nlink = status.st_nlink;
  entry.fts_info = S_ISREG(status.st_mode)   ? FTS_F
                   : S_ISLNK(status.st_mode) ? FTS_SL
                   : S_ISDIR(status.st_mode) ? FTS_D
                                             : FTS_DEFAULT;
  if (!S_ISDIR(status.st_mode)) return;
  if (is_dot(entry.fts_name)) {
    entry.fts_info = FTS_DOT;
    return;
  }
  for (const Node* above = node.parent; above != &top_; above = above->parent) {
    if (above->entry->fts_ino != entry.fts_ino || above->entry->fts_dev != entry.fts_dev) continue;
    entry.fts_info = FTS_DC;
    entry.fts_cycle = above->entry.get();
    return;
  }
}

void Walk::put_in_order(Node& node) {
  auto& list = node.children;
  if (order_ != nullptr) {
    std::stable_sort(list.begin(), list.end(), [&](const auto& a, const auto& b) {
      const FTSENT* left = a->entry.get();
      const FTSENT* right = b->entry.get();
      return order_(&left, &right) < 0;
    });
  }
  for (size_t i = 0; i < list.size(); ++i) {
    list[i]->index = i;
    list[i]->entry->fts_link = i + 1 < list.size() ? list[i + 1]->entry.get() : nullptr;
  }
}

void Walk::fill(Node& node) {
  assert(!node.filled && node.children.empty());
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(node.path.c_str()), &::closedir);
  if (stream == nullptr) {
    node.entry->fts_errno = errno;
    node.entry->fts_info = FTS_DNR;
    return;
  }
  const std::string head = node.path.back() == '/' ? node.path : node.path + '/';
  errno = 0;
  while (const dirent* found = ::readdir(stream.get())) {
    if (is_dot(found->d_name) && (options_ & FTS_SEEDOT) == 0) continue;
    const std::string path = head + found->d_name;
    Node& child = *node.children.emplace_back(make_node(&node, path, found->d_name));
    const bool may_be_folder = found->d_type == DT_DIR || found->d_type == DT_UNKNOWN ||
                               (found->d_type == DT_LNK && (options_ & FTS_LOGICAL) != 0);
    if ((options_ & FTS_NOSTAT) != 0 && !may_be_folder) {
      child.entry->fts_info = FTS_NSOK;
    } else {
      look(child, false);
    }
    errno = 0;
  }
  node.entry->fts_errno = errno;  // told with FTS_ERR, behind what could be read
  node.filled = true;
  put_in_order(node);
}

bool Walk::fill() {
  assert(at_ != nullptr && at_->entry->fts_info == FTS_D);
  if (!at_->filled) fill(*at_);
  return at_->filled;
}

FTSENT* Walk::children(int how) {
  if (at_ == nullptr || (how != 0 && how != FTS_NAMEONLY)) {
    errno = at_ == nullptr ? 0 : EINVAL;
    return nullptr;
  }
  errno = 0;
  if (at_->entry->fts_info != FTS_D && at_ != &top_) return nullptr;
  if (!at_->filled) fill(*at_);
  errno = at_->filled ? 0 : at_->entry->fts_errno;
  return at_->children.empty() ? nullptr : at_->children.front()->entry.get();
}

void Walk::pass_over_siblings() {
  assert(at_ != nullptr && at_->parent != nullptr);
  at_->parent->children.resize(at_->index + 1);
  at_->entry->fts_link = nullptr;
}

// A folder that was given, and not yet what is in it.
FTSENT* Walk::enter_or_leave(Node& folder) {
  FTSENT& entry = *folder.entry;
  const bool is_elsewhere = (options_ & FTS_XDEV) != 0 && folder.parent != &top_ &&
                            entry.fts_dev != folder.parent->entry->fts_dev;
  if (!is_elsewhere && !folder.filled) fill(folder);
  if (entry.fts_info == FTS_DNR) return &entry;
  if (!is_elsewhere && !folder.children.empty()) {
    at_ = folder.children.front().get();
    return at_->entry->fts_instr == FTS_SKIP ? next_of(*at_) : at_->entry.get();
  }
  entry.fts_info = entry.fts_errno != 0 ? FTS_ERR : FTS_DP;
  return &entry;
}

// What stands behind it, or above.
FTSENT* Walk::next_of(Node& node) {
  Node* at = &node;
  while (at->index + 1 < at->parent->children.size()) {
    at = at->parent->children[at->index + 1].get();
    if (at->entry->fts_instr == FTS_SKIP) continue;
    if (at->entry->fts_instr == FTS_FOLLOW) {
      look(*at, true);
      at->entry->fts_instr = kNoInstruction;
    }
    at_ = at;
    return at->entry.get();
  }
  at_ = at->parent == &top_ ? nullptr : at->parent;
  errno = 0;
  if (at_ == nullptr) return nullptr;
  at_->children.clear();
  FTSENT& entry = *at_->entry;
  entry.fts_info = entry.fts_errno != 0 ? FTS_ERR : FTS_DP;
  return &entry;
}

FTSENT* Walk::read() {
  if (at_ == nullptr) return nullptr;
  if (at_ == &top_) {
    at_ = top_.children.front().get();
    return at_->entry->fts_instr == FTS_SKIP ? next_of(*at_) : at_->entry.get();
  }
  FTSENT& entry = *at_->entry;
  const int instruction = entry.fts_instr;
  entry.fts_instr = kNoInstruction;
  const bool is_link = entry.fts_info == FTS_SL || entry.fts_info == FTS_SLNONE;
  if (instruction == FTS_AGAIN || (instruction == FTS_FOLLOW && is_link)) {
    at_->children.clear();
    at_->filled = false;
    look(*at_, instruction == FTS_FOLLOW);
    return &entry;
  }
  if (entry.fts_info != FTS_D) return next_of(*at_);
  if (instruction != FTS_SKIP) return enter_or_leave(*at_);
  at_->children.clear();
  entry.fts_info = FTS_DP;
  return &entry;
}

}  // namespace aperture::verbs
