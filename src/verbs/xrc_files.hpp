// The XRC domains that are open with a file, in all contexts of this process. ibv_open_xrcd(3).
//
// A domain is its file's inode, so whoever opens that inode shall get the same one. Receive queues,
// their completion queues and the queue pairs that serve them are under one engine's lock, and each
// context has an engine: a domain is shared within its context, and another context of this process
// is refused. So is another process that wants the domain that is there (no O_CREAT), or none to be
// there (O_EXCL); with O_CREAT alone it gets a domain of its own and a sentence that says so, since
// programs name one file at both ends and share nothing (ibv_xsrq_pingpong). Processes know of each
// other by an abstract socket that is named after the inode and held by the first of them as long
// as its domain is open; who takes that name without a domain can cause those two refusals, and
// nothing else.
//
// Any thread; a lock of its own.
#pragma once

#include <sys/stat.h>

#include <memory>

#include "verbs/context.hpp"

namespace aperture::verbs {

constexpr const char* kOpenXrcCall = "ibv_open_xrcd";

struct XrcDomain {
  uint32_t number = 0;
  const Context* context = nullptr;
  // of a domain with a file
  dev_t device = 0;
  ino_t inode = 0;
  ParentOnlyFd claim;
};

// The domain of that file in that context: the one that is open, or with O_CREAT a new one. 0 or
// an errno, with a sentence: EINVAL (O_EXCL, and it is open), EAGAIN (it is not, and O_CREAT is not
// set), EOPNOTSUPP (it is open in another context; or in another process, without O_CREAT).
int open_xrc_domain(Context& context, const struct stat& file, int oflags,
                    std::shared_ptr<const XrcDomain>& domain);
// Gives one opening back, of a domain with or without a file.
void close_xrc_domain(std::shared_ptr<const XrcDomain>& domain) noexcept;

}  // namespace aperture::verbs
