// Who has which file's domain: see xrc_files.hpp.
#include "verbs/xrc_files.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdio>
#include <mutex>
#include <vector>

#include "base/per_process.hpp"

namespace aperture::verbs {

namespace {

struct Files {
  std::mutex mutex;
  std::vector<std::weak_ptr<const XrcDomain>> open;  // guarded by mutex
};

Files& files() {
  static constinit PerProcess<Files> the_one;
  return the_one.get();
}

// The name of an inode's domain, taken. Errno, EADDRINUSE: another process has it.
int claim(const struct stat& file, ParentOnlyFd& out) noexcept {
  ParentOnlyFd fd(move_high(UniqueFd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0))));
  if (!fd) return errno;
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const int length = std::snprintf(
      name.sun_path + 1, sizeof name.sun_path - 1, "aperture-xrcd-%llx-%llx",
      static_cast<unsigned long long>(file.st_dev), static_cast<unsigned long long>(file.st_ino));
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&name), size) != 0) return errno;
  out = std::move(fd);
  return 0;
}

// files().mutex held.
std::shared_ptr<const XrcDomain> find(const struct stat& file) noexcept {
  for (const auto& weak : files().open) {
    auto domain = weak.lock();
    if (domain != nullptr && domain->device == file.st_dev && domain->inode == file.st_ino) {
      return domain;
    }
  }
  return nullptr;
}

int validate_found(const Context& context, const XrcDomain& found, int oflags) noexcept {
  if ((oflags & O_EXCL) != 0)
    return refuse(EINVAL, "%s: O_EXCL, and the domain of this file is open already", kOpenXrcCall);
  if (found.context != &context)
    return refuse(EOPNOTSUPP,
                  "%s: the domain of this file is open in another context of this process, and is "
                  "not shared between contexts; open it in that one",
                  kOpenXrcCall);
  return 0;
}

int validate_claimed(int error, int oflags) noexcept {
  if (error == 0 && (oflags & O_CREAT) == 0)
    return refuse(EAGAIN, "%s: no domain of this file is open, and O_CREAT is not set",
                  kOpenXrcCall);
  if (error == EADDRINUSE && (oflags & O_EXCL) != 0)
    return refuse(EINVAL, "%s: O_EXCL, and another process has this file's domain open",
                  kOpenXrcCall);
  if (error == EADDRINUSE && (oflags & O_CREAT) == 0)
    return refuse(EOPNOTSUPP,
                  "%s: another process has the domain of this file open, and it is not shared "
                  "between processes",
                  kOpenXrcCall);
  if (error == EADDRINUSE) {  // ibv_xsrq_pingpong's two sides have one file, and share nothing
    APERTURE_WARN(
        "%s: another process has the domain of this file open; it is not shared between processes, "
        "so this one has a domain of its own, without the other's queues",
        kOpenXrcCall);
    return 0;
  }
  if (error != 0)
    return refuse(error, "%s: the socket that marks its file as taken: errno %d", kOpenXrcCall,
                  error);
  return 0;
}

}  // namespace

int open_xrc_domain(Context& context, const struct stat& file, int oflags,
                    std::shared_ptr<const XrcDomain>& domain) {
  const std::lock_guard guard(files().mutex);
  if (auto found = find(file); found != nullptr) {
    const int error = validate_found(context, *found, oflags);
    if (error == 0) domain = std::move(found);
    return error;
  }
  auto made = std::make_shared<XrcDomain>();
  if (const int error = validate_claimed(claim(file, made->claim), oflags); error != 0)
    return error;
  made->number = context.next_handle();
  made->context = &context;
  made->device = file.st_dev;
  made->inode = file.st_ino;
  auto& open = files().open;
  open.erase(std::remove_if(open.begin(), open.end(),
                            [](const auto& weak) noexcept { return weak.expired(); }),
             open.end());
  assert(find(file) == nullptr);
  open.push_back(made);
  domain = std::move(made);
  return 0;
}

// Under the lock, so that nobody finds it gone and its name still taken.
void close_xrc_domain(std::shared_ptr<const XrcDomain>& domain) noexcept {
  const std::lock_guard guard(files().mutex);
  assert(domain != nullptr);
  domain.reset();
}

}  // namespace aperture::verbs
