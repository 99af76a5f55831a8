// A registrar whose resources hold the pages that memory had when they were made, as a device does
// that was given them: a pipe full of them, by vmsplice(2). What it says of a range goes stale when
// the pages do.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/fd.hpp"
#include "regcache/registrar.hpp"

namespace aperture::regcache::test {

class PinnedPages final : public Registrar {
 public:
  static constexpr uint64_t kPage = 4096;
  static constexpr uint64_t kMost = 64 * kPage;

  Result<Resource> add(const Range& range, Access) noexcept override {
    if (range.size() > kMost) return Errc::too_big;
    auto pipe = open_pipe(range.size() / kPage);
    if (!pipe) return Errc::no_fds;
    iovec iov{reinterpret_cast<void*>(range.begin), range.size()};  // NOLINT
    // a page that was never written to is not that memory's own yet: who pins it for writing makes
    // it so, and vmsplice(2) does not
    ::madvise(iov.iov_base, iov.iov_len, 23 /* MADV_POPULATE_WRITE */);
    if (::vmsplice(pipe->in.get(), &iov, 1, SPLICE_F_NONBLOCK) !=
        static_cast<ssize_t>(range.size())) {
      return Errc::bad_buffer;
    }
    pipe->range = range;
    const std::lock_guard lock(mutex_);
    pipes_[++last_] = std::move(*pipe);
    return last_;
  }
  void remove(Resource resource) noexcept override {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(pipes_.erase(resource), 1u) << "given back twice";
  }
  bool holds_pages() const noexcept override { return true; }

  // What its pages hold now at that address. Others may ask at once.
  std::vector<uint8_t> read(Resource resource, const void* addr, size_t len) {
    const std::lock_guard lock(mutex_);
    const Pipe& pipe = pipes_.at(resource);
    std::vector<uint8_t> all(pipe.range.size());
    auto copy = open_pipe(all.size() / kPage);
    if (!copy) return {};
    // the pages go on lying in the first pipe
    if (::tee(pipe.out.get(), copy->in.get(), all.size(), SPLICE_F_NONBLOCK) !=
        static_cast<ssize_t>(all.size())) {
      return {};
    }
    for (size_t done = 0; done < all.size();) {
      const ssize_t n = ::read(copy->out.get(), all.data() + done, all.size() - done);
      if (n <= 0) return {};
      done += static_cast<size_t>(n);
    }
    const uint64_t from = reinterpret_cast<uint64_t>(addr) - pipe.range.begin;
    return {all.begin() + static_cast<ptrdiff_t>(from),
            all.begin() + static_cast<ptrdiff_t>(from + len)};
  }
  size_t live() const {
    const std::lock_guard lock(mutex_);
    return pipes_.size();
  }

 private:
  struct Pipe {
    UniqueFd out, in;
    Range range;
  };
  static std::unique_ptr<Pipe> open_pipe(size_t pages) noexcept {
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC) != 0) return nullptr;
    auto pipe = std::make_unique<Pipe>();
    pipe->out = UniqueFd(fds[0]);
    pipe->in = UniqueFd(fds[1]);
    size_t room = 16;
    while (room < pages) room *= 2;
    if (::fcntl(fds[1], F_SETPIPE_SZ, static_cast<int>(room * kPage)) < 0) return nullptr;
    return pipe;
  }

  mutable std::mutex mutex_;
  std::map<Resource, Pipe> pipes_;
  Resource last_ = 0;
};

}  // namespace aperture::regcache::test
