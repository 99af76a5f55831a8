// A walk down from folders of ours, or from those of the kernel's that they lie in, as fts(3) has
// it: libc's own walks open folders and look at files without asking us. It goes by the functions
// that we stand in front of, and never changes the working folder: fts_accpath is fts_path.
//
// A walk is used by one thread at a time. Errors: fts_info and fts_errno, as fts(3) says.
#pragma once

#include <fts.h>
#include <sys/stat.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace aperture::verbs {

class Walk {
 public:
  using Order = int(const FTSENT**, const FTSENT**);

  // Errors: std::bad_alloc.
  Walk(char* const* roots, int options, Order* order);
  Walk(const Walk&) = delete;
  Walk& operator=(const Walk&) = delete;

  // For fts_read(), whose answer it is; null: the end.
  FTSENT* read();
  // For fts_children(): null and no errno, there are none.
  FTSENT* children(int how);
  // Reads the folder that read() has just given. False: it cannot be read, and fts_errno says why.
  bool fill();
  // Of the last file that read() gave: its siblings behind it are passed over.
  void pass_over_siblings();

 private:
  struct Free {
    void operator()(FTSENT* entry) const noexcept { ::free(entry); }
  };
  // A file on the way, or one that lies beside one.
  struct Node {
    std::unique_ptr<FTSENT, Free> entry;
    std::string path;
    struct stat status {};
    Node* parent = nullptr;
    size_t index = 0;  // among its siblings
    bool filled = false;
    std::vector<std::unique_ptr<Node>> children;
  };

  std::unique_ptr<Node> make_node(Node* parent, const std::string& path, const char* name);
  void look(Node& node, bool follow) const;
  void fill(Node& node);
  void put_in_order(Node& node);
  bool follows(const Node& node) const noexcept;
  FTSENT* enter_or_leave(Node& folder);
  FTSENT* next_of(Node& node);

  const int options_;
  Order* const order_;
  Node top_;  // above the roots
  Node* at_ = nullptr;
};

}  // namespace aperture::verbs
