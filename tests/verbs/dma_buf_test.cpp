// ibv_reg_dmabuf_mr(3): RDMA from and to the memory behind a dma-buf.
//
// Where this kernel makes one (udmabuf) it is a real one too. The stand-in is a memory file that
// says of itself that it is a dma-buf, to us alone: fstatfs() and ioctl() of this program, which
// see to it that each copy is announced.
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/dma-buf.h>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include <sys/syscall.h>

#include <atomic>
#include <cstdarg>

#include "verbs/ends.hpp"

namespace {

std::atomic<int> g_stand_in{-1};     // its duplicates are it too
std::atomic<int> g_inside{0};        // copies that were announced and not ended
std::atomic<int> g_announced{0};     // in all
std::atomic<bool> g_refuses{false};  // the exporter lets nobody in any more

bool is_stand_in(int fd) {
  struct stat one {
  }, other{};
  return g_stand_in >= 0 && ::fstat(g_stand_in, &one) == 0 && ::fstat(fd, &other) == 0 &&
         one.st_ino == other.st_ino && one.st_dev == other.st_dev;
}

}  // namespace

#pragma GCC visibility push(default)  // the library finds them here

extern "C" int fstatfs(int fd, struct statfs* facts) noexcept {
  const auto rc = static_cast<int>(::syscall(SYS_fstatfs, fd, facts));
  if (rc == 0 && is_stand_in(fd)) facts->f_type = 0x444d4142;
  return rc;
}

extern "C" int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list more;
  va_start(more, request);
  void* const arg = va_arg(more, void*);
  va_end(more);
  if (request != DMA_BUF_IOCTL_SYNC || !is_stand_in(fd))
    return static_cast<int>(::syscall(SYS_ioctl, fd, request, arg));
  if (g_refuses) {
    errno = EIO;
    return -1;
  }
  const bool ends = (static_cast<const dma_buf_sync*>(arg)->flags & DMA_BUF_SYNC_END) != 0;
  g_inside += ends ? -1 : 1;
  g_announced += ends ? 0 : 1;
  return 0;
}

#pragma GCC visibility pop

namespace aperture::test {
namespace {

constexpr size_t kSize = 1 << 20;
constexpr uint64_t kIova = 0x7000'0000'0000;

// The descriptor, and what its owner sees.
struct Buffer {
  explicit Buffer(int its_fd) : fd(its_fd) {
    void* const at = ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    bytes = at != MAP_FAILED ? static_cast<char*>(at) : nullptr;
  }
  ~Buffer() {
    if (bytes != nullptr) ::munmap(bytes, kSize);
    ::close(fd);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::string text(size_t offset, size_t n) const { return {bytes + offset, n}; }

  const int fd;
  char* bytes = nullptr;
};

int memory_file() {
  const int fd = ::memfd_create("dma-buf", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  return fd >= 0 && ::ftruncate(fd, kSize) == 0 ? fd : -1;
}

// -1: this kernel makes none.
int real_dma_buf() {
  const int memory = memory_file();
  const int maker = ::open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
  udmabuf_create wish{};
  wish.memfd = static_cast<uint32_t>(memory);
  wish.flags = UDMABUF_FLAGS_CLOEXEC;
  wish.size = kSize;
  ::fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK);
  const int fd = maker >= 0 ? ::ioctl(maker, UDMABUF_CREATE, &wish) : -1;
  ::close(memory);
  if (maker >= 0) ::close(maker);
  return fd;
}

class DmaBuf : public Verbs, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    Verbs::SetUp();
    const int fd = GetParam() ? real_dma_buf() : memory_file();
    if (fd < 0) GTEST_SKIP() << "no kernel feature: /dev/udmabuf";
    buffer_ = std::make_unique<Buffer>(fd);
    ASSERT_NE(buffer_->bytes, nullptr);
    if (!GetParam()) g_stand_in = fd;
  }
  void TearDown() override {
    EXPECT_EQ(g_inside, 0) << "a copy was begun and not ended";
    g_stand_in = -1;
    g_refuses = false;
    buffer_.reset();
    Verbs::TearDown();
  }
  ibv_mr* reg(uint64_t offset, size_t length, uint64_t iova, int access = kEverything) {
    errno = 0;
    return ibv_reg_dmabuf_mr(pd_, offset, length, iova, buffer_->fd, access);
  }

  std::unique_ptr<Buffer> buffer_;
};
INSTANTIATE_TEST_SUITE_P(Kinds, DmaBuf, testing::Bool(), [](const auto& kind) {
  return std::string(kind.param ? "of_udmabuf" : "of_a_stand_in");
});

TEST_P(DmaBuf, rdma_goes_from_and_to_it_by_its_iova) {
  constexpr uint64_t kOffset = 5 * 4096 + 77;
  ibv_mr* const mr = reg(kOffset, 600'000, kIova + kOffset % 4096);
  ASSERT_NE(mr, nullptr) << std::strerror(errno);
  EXPECT_EQ(mr->addr, reinterpret_cast<void*>(kOffset));
  EXPECT_EQ(mr->length, 600'000u);
  Memory host(pd_, kSize);
  const uint64_t at = kIova + kOffset % 4096 + 3;
  char fill = 'a';
  for (const uint32_t size : {1u, 8u, 300u, 70001u, 599'997u}) {
    std::fill(host.bytes.begin(), host.bytes.end(), ++fill);
    const int before = g_announced;
    ASSERT_EQ(here_->run(IBV_WR_RDMA_WRITE, host.sge(0, size), at, mr->rkey), IBV_WC_SUCCESS);
    EXPECT_EQ(buffer_->text(kOffset + 3, size), std::string(size, fill));
    EXPECT_EQ(buffer_->text(kOffset + 3 + size, 1).find(fill), std::string::npos) << "beside it";
    if (!GetParam()) {
      EXPECT_GT(g_announced, before);
    }
    std::fill(host.bytes.begin(), host.bytes.end(), '.');
    ASSERT_EQ(here_->run(IBV_WR_RDMA_READ, host.sge(0, size), at, mr->rkey), IBV_WC_SUCCESS);
    EXPECT_EQ(host.text(0, size), std::string(size, fill));
    std::fill(host.bytes.begin(), host.bytes.end(), '.');
    const ibv_sge local{at, size, mr->lkey};  // its lkey goes by the iova as well
    ASSERT_EQ(here_->run(IBV_WR_RDMA_WRITE, local, host.at(9), host.mr->rkey), IBV_WC_SUCCESS);
    EXPECT_EQ(host.text(9, size), std::string(size, fill));
  }
  EXPECT_EQ(here_->run(IBV_WR_RDMA_WRITE, host.sge(0, 8), at + 600'000 - 10, mr->rkey),
            IBV_WC_REM_ACCESS_ERR)
      << "past its end";
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_P(DmaBuf, stays_when_its_descriptor_is_closed) {
  const int duplicate = ::dup(buffer_->fd);
  ibv_mr* const mr = ibv_reg_dmabuf_mr(pd_, 0, kSize, 0, duplicate, kEverything);
  ASSERT_NE(mr, nullptr) << std::strerror(errno);
  ::close(duplicate);
  Memory host(pd_, 64, 'x');
  ASSERT_EQ(here_->run(IBV_WR_RDMA_WRITE, host.sge(0, 64), 4096, mr->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(buffer_->text(4096, 64), std::string(64, 'x'));
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_P(DmaBuf, an_exporter_that_lets_nobody_in_is_an_error) {
  if (GetParam()) GTEST_SKIP() << "only a stand-in refuses";
  ibv_mr* const mr = reg(0, kSize, 0);
  ASSERT_NE(mr, nullptr);
  g_refuses = true;
  Memory host(pd_, 64, 'x');
  EXPECT_EQ(here_->run(IBV_WR_RDMA_WRITE, host.sge(0, 64), 0, mr->rkey), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_P(DmaBuf, what_is_wrong_is_refused) {
  EXPECT_EQ(refusal_of(reg(0, kSize + 1, 0)), EINVAL) << "longer than it is";
  EXPECT_EQ(refusal_of(reg(kSize + 4096, 1, 0)), EINVAL) << "behind it";
  EXPECT_EQ(refusal_of(reg(~uint64_t{0} & ~uint64_t{4095}, 8192, 0)), EINVAL) << "wraps";
  EXPECT_EQ(refusal_of(reg(0, 0, 0)), EINVAL) << "no bytes";
  EXPECT_EQ(refusal_of(reg(100, 8, 0)), EINVAL) << "the iova lies elsewhere in its page";
  EXPECT_EQ(refusal_of(reg(0, 8, 0, kEverything | IBV_ACCESS_MW_BIND)), EINVAL);
  EXPECT_EQ(refusal_of(reg(0, 8, 0, IBV_ACCESS_REMOTE_WRITE)), EINVAL) << "without local write";
  errno = 0;
  EXPECT_EQ(refusal_of(ibv_reg_dmabuf_mr(pd_, 0, 8, 0, STDERR_FILENO, kEverything)), EINVAL);
  for (const int closed : {-1, 1 << 20}) {
    EXPECT_EQ(refusal_of(ibv_reg_dmabuf_mr(pd_, 0, 8, 0, closed, kEverything)), EBADF);
  }
  ibv_mr* const mr = reg(0, kSize, 0);
  ASSERT_NE(mr, nullptr);
  EXPECT_NE(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, pd_, nullptr, 0, 0), 0);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

}  // namespace
}  // namespace aperture::test
