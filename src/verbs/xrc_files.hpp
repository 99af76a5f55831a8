// The XRC domains that are open with a file, in all contexts of this process. ibv_open_xrcd(3).
//
// A domain is its file's inode, so whoever opens that inode shall get the same one. Receive queues,
// their completion queues and the queue pairs that serve them are under one engine's lock, and each
// context has an engine: a domain is shared within its context. Anybody else who opens the inode,
// in this process or in another, is told so, rather than given a domain of his own in which he
// meets nobody. Other processes are told apart by an abstract socket that is named after the inode,
// held as long as the domain is open; who takes that name without a domain can refuse us that
// file's domain, and nothing else.
//
// Any thread; a lock of its own.
#pragma once

#include <sys/stat.h>

#include <memory>

#include "verbs/context.hpp"

namespace aperture::verbs {

struct XrcDomain {
  uint32_t number = 0;
  const Context* context = nullptr;
  // of a domain with a file
  dev_t device = 0;
  ino_t inode = 0;
  nic::ParentOnlyFd claim;
};

// The domain of that file in that context: the one that is open, or with O_CREAT a new one. 0 or
// an errno, with a sentence: EINVAL (O_EXCL, and it is open), EAGAIN (it is not, and O_CREAT is not
// set), EOPNOTSUPP (it is open in another context or process).
int open_xrc_domain(Context& context, const struct stat& file, int oflags,
                    std::shared_ptr<const XrcDomain>& domain);
// Gives one opening back, of a domain with or without a file.
void close_xrc_domain(std::shared_ptr<const XrcDomain>& domain) noexcept;

}  // namespace aperture::verbs
