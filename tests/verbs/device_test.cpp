// Memory of devices behind a verbs region, as with peer memory: ibv_reg_mr(3) of it, RDMA from and
// to it, sends and receives, and what is refused. Over the stand-in drivers of tests/memory, whose
// device memory no CPU can touch.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cstdlib>
#include <optional>
#include <thread>
#include <utility>

#include "memory/device_memory.hpp"
#include "protect/cma.hpp"
#include "verbs/ends.hpp"

namespace aperture::test {
namespace {

constexpr size_t kSize = 1 << 20;

class DeviceRegion : public testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    std::string why;
    devices_ = Devices::open(GetParam(), why);
    ASSERT_NE(devices_, nullptr) << why;
    ASSERT_NE(device_.context, nullptr);
    pd_ = ibv_alloc_pd(device_.context);
    ASSERT_NE(pd_, nullptr);
    memory_ = std::make_unique<DeviceMemory>(*devices_, kSize);
    ASSERT_NE(memory_->at(), nullptr);
    mr_ = ibv_reg_mr(pd_, memory_->at(), kSize, kEverything);
    ASSERT_NE(mr_, nullptr);
  }
  void TearDown() override {
    if (mr_ != nullptr) {
      EXPECT_EQ(ibv_dereg_mr(mr_), 0);
    }
    memory_.reset();
    if (pd_ != nullptr) {
      EXPECT_EQ(ibv_dealloc_pd(pd_), 0);
    }
  }
  ibv_sge sge(size_t offset, uint32_t length) const { return {at(offset), length, mr_->lkey}; }
  uint64_t at(size_t offset) const { return reinterpret_cast<uint64_t>(memory_->at()) + offset; }
  std::string text(size_t offset, size_t length) const {
    std::string out(length, '?');
    EXPECT_TRUE(memory_->read(out.data(), offset, length));
    return out;
  }
  void put(size_t offset, const std::string& text) const {
    ASSERT_TRUE(memory_->write(offset, text.data(), text.size()));
  }

  Device device_;
  ibv_pd* pd_ = nullptr;
  std::unique_ptr<Devices> devices_;
  std::unique_ptr<DeviceMemory> memory_;
  ibv_mr* mr_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Kinds, DeviceRegion, testing::ValuesIn(kDeviceKinds),
                         [](const auto& p) { return std::string(name_of(p.param)); });

std::string pattern(size_t n, int seed) {
  std::string out(n, ' ');
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<char>('a' + (i * 7 + i / 255 + seed) % 26);
  return out;
}

TEST_P(DeviceRegion, rdma_goes_from_and_to_it) {
  Memory host(pd_, kSize);
  End a(device_.context, pd_), b(device_.context, pd_);
  connect(a.qp, b.qp);
  int seed = 0;
  for (const uint32_t size : {1u, 8u, 300u, 5000u, 70001u, 600000u}) {
    const std::string text_out = pattern(size, ++seed);
    std::copy(text_out.begin(), text_out.end(), host.bytes.begin());
    ASSERT_EQ(a.run(IBV_WR_RDMA_WRITE, host.sge(0, size), at(3), mr_->rkey), IBV_WC_SUCCESS);
    ASSERT_EQ(text(3, size), text_out) << size;
    std::fill(host.bytes.begin(), host.bytes.end(), '.');
    ASSERT_EQ(a.run(IBV_WR_RDMA_READ, host.sge(0, size), at(3), mr_->rkey), IBV_WC_SUCCESS);
    ASSERT_EQ(host.text(0, size), text_out) << size;
    std::fill(host.bytes.begin(), host.bytes.end(), '.');
    ASSERT_EQ(a.run(IBV_WR_RDMA_WRITE, sge(3, size), host.at(1), host.mr->rkey), IBV_WC_SUCCESS);
    ASSERT_EQ(host.text(1, size), text_out) << size;
    put(3, std::string(size, '.'));
    ASSERT_EQ(a.run(IBV_WR_RDMA_READ, sge(3, size), host.at(1), host.mr->rkey), IBV_WC_SUCCESS);
    ASSERT_EQ(text(3, size), text_out) << size;
  }
}

TEST_P(DeviceRegion, messages_go_from_and_to_it) {
  End a(device_.context, pd_), b(device_.context, pd_);
  connect(a.qp, b.qp);
  for (const uint32_t size : {1u, 300u, 5000u, 300000u}) {
    const std::string text_out = pattern(size, 3);
    put(0, text_out);
    put(kSize / 2, std::string(size, '.'));
    ASSERT_EQ(b.receive(sge(kSize / 2, size), 5), 0);
    ASSERT_EQ(a.run(IBV_WR_SEND, sge(0, size)), IBV_WC_SUCCESS);
    const ibv_wc wc = b.completion();
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.byte_len, size);
    EXPECT_EQ(text(kSize / 2, size), text_out) << size;
  }
}

TEST_P(DeviceRegion, an_atomic_on_it_is_refused) {
  Memory host(pd_, 64);
  End a(device_.context, pd_), b(device_.context, pd_);
  connect(a.qp, b.qp);
  put(0, std::string(8, 'x'));
  ibv_sge result = host.sge(0, 8);
  ibv_send_wr wr = send_wr(IBV_WR_ATOMIC_FETCH_AND_ADD, result);
  wr.wr.atomic = {at(0), 1, 0, mr_->rkey};
  ASSERT_EQ(post_wr(a.qp, wr), 0);
  EXPECT_EQ(a.completion().status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(text(0, 8), std::string(8, 'x'));
}

TEST_P(DeviceRegion, what_was_freed_is_refused) {
  Memory host(pd_, 64);
  End a(device_.context, pd_), b(device_.context, pd_);
  connect(a.qp, b.qp);
  const uint64_t place = at(0);
  ASSERT_TRUE(memory_->free());
  EXPECT_EQ(a.run(IBV_WR_RDMA_WRITE, host.sge(0, 64), place, mr_->rkey), IBV_WC_REM_ACCESS_ERR);
}

TEST_P(DeviceRegion, what_the_memory_is_not_for_is_refused) {
  errno = 0;
  EXPECT_EQ(refusal_of(ibv_reg_mr(pd_, memory_->at(), kSize, kEverything | IBV_ACCESS_MW_BIND)),
            EOPNOTSUPP);
  EXPECT_EQ(refusal_of(ibv_reg_mr(pd_, memory_->at(), kSize + (1 << 21), kEverything)), EINVAL)
      << "past its end";
}

// ---- between processes --------------------------------------------------------------------------

constexpr size_t kShared = size_t{4} << 20;  // whole blocks of a driver's: CUDA shares them

struct Introduction {
  uint32_t qp, rkey;
  uint64_t at;
};

template <typename T>
bool put_to(int socket, const T& value) {
  return ::send(socket, &value, sizeof value, MSG_NOSIGNAL) == sizeof value;
}
template <typename T>
bool get_from(int socket, T& value) {
  return ::recv(socket, &value, sizeof value, 0) == sizeof value;
}

// What a call answered, and errno.
struct Answer {
  int code, error;
};

// Has memory of a device, connects, and looks at nothing then. Asked with '?' it says how many
// copies it has made, and the sum of all bytes; with 'm' it moves its region elsewhere, with 'd' it
// deregisters it, and says what came of that.
int own(int socket) {
  std::string why;
  const auto devices = Devices::open(DeviceKind::cuda, why);
  const Device device;
  if (devices == nullptr || device.context == nullptr) return 3;
  ibv_pd* const pd = ibv_alloc_pd(device.context);
  DeviceMemory memory(*devices, kShared);
  const std::vector<uint8_t> zeros(kShared);
  if (!memory.write(0, zeros.data(), kShared)) return 4;
  ibv_mr* mr = ibv_reg_mr(pd, memory.at(), kShared, kEverything);
  if (mr == nullptr) return 5;
  std::vector<char> elsewhere(4096);
  {
    const End end(device.context, pd);
    Introduction peer{};
    if (!put_to(socket,
                Introduction{end.qp->qp_num, mr->rkey, reinterpret_cast<uint64_t>(memory.at())}) ||
        !get_from(socket, peer)) {
      return 6;
    }
    bring_up(end.qp, peer.qp);
    if (!put_to(socket, 'r')) return 6;
    for (char question; get_from(socket, question);) {
      if (question != '?') {
        errno = 0;
        Answer answer{};
        answer.code = question == 'd' ? ibv_dereg_mr(mr)
                                      : ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr,
                                                     elsewhere.data(), elsewhere.size(), 0);
        answer.error = errno;
        if (question == 'd' && answer.code == 0) mr = nullptr;
        if (!put_to(socket, answer)) return 6;
        continue;
      }
      const uint64_t copies = devices->counts().copies;
      std::vector<uint8_t> bytes(kShared);
      if (!memory.read(bytes.data(), 0, kShared)) return 7;
      uint64_t sum = 0;
      for (const uint8_t byte : bytes) sum += byte;
      if (!put_to(socket, copies) || !put_to(socket, sum)) return 6;
    }
  }
  if (mr != nullptr && ibv_dereg_mr(mr) != 0) return 8;
  return ibv_dealloc_pd(pd) == 0 ? 0 : 9;
}

class DeviceOfPeer : public testing::Test {
 protected:
  void SetUp() override {
    if (!cma_works()) GTEST_SKIP() << "process_vm_readv(2) is denied here";
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets_), 0);
    const std::string fd = std::to_string(sockets_[1]);
    child_ = ::fork();  // a program of its own: no driver survives a fork
    if (child_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::fcntl(sockets_[1], F_SETFD, 0);
      ::execl("/proc/self/exe", "owner", "--own", fd.c_str(), nullptr);
      ::_exit(126);
    }
    ::close(sockets_[1]);
    std::string why;
    devices_ = Devices::open(DeviceKind::cuda, why);
    ASSERT_NE(devices_, nullptr) << why;
    ASSERT_NE(device_.context, nullptr);
    pd_ = ibv_alloc_pd(device_.context);
    host_.emplace(pd_, kShared);
    end_.emplace(device_.context, pd_);
    ASSERT_TRUE(get_from(sockets_[0], owner_) &&
                put_to(sockets_[0], Introduction{end_->qp->qp_num, 0, 0}));
    bring_up(end_->qp, owner_.qp);
    char ready = 0;
    ASSERT_TRUE(get_from(sockets_[0], ready));
    put(std::string(1, '\0'));
    ASSERT_EQ(run(IBV_WR_RDMA_WRITE, 1, 0), IBV_WC_SUCCESS);  // the owner has permitted the rest
  }
  void TearDown() override {
    end_.reset();
    host_.reset();
    if (pd_ != nullptr) {
      EXPECT_EQ(ibv_dealloc_pd(pd_), 0);
    }
    if (devices_ != nullptr) {
      EXPECT_EQ(devices_->counts().shared, 0u);
    }
    if (child_ <= 0) return;
    ::close(sockets_[0]);
    int status = -1;
    ::waitpid(child_, &status, 0);
    EXPECT_EQ(status, 0);
  }
  // Copies of the owner, and the sum of its bytes.
  std::pair<uint64_t, uint64_t> ask() const {
    std::pair<uint64_t, uint64_t> answer{};
    EXPECT_TRUE(put_to(sockets_[0], '?') && get_from(sockets_[0], answer.first) &&
                get_from(sockets_[0], answer.second));
    return answer;
  }
  Answer tell(char what) const {
    Answer answer{-1, -1};
    EXPECT_TRUE(put_to(sockets_[0], what) && get_from(sockets_[0], answer));
    return answer;
  }
  ibv_wc_status run(ibv_wr_opcode opcode, uint32_t size, uint64_t offset) {
    return end_->run(opcode, host_->sge(0, size), owner_.at + offset, owner_.rkey);
  }
  void put(const std::string& text) { std::copy(text.begin(), text.end(), host_->bytes.begin()); }

  std::unique_ptr<Devices> devices_;
  Device device_;
  ibv_pd* pd_ = nullptr;
  std::optional<Memory> host_;
  std::optional<End> end_;
  Introduction owner_{};
  int sockets_[2] = {-1, -1};
  pid_t child_ = -1;
};

uint64_t sum_of(const std::string& text) {
  uint64_t sum = 0;
  for (const char c : text) sum += static_cast<uint8_t>(c);
  return sum;
}

TEST_F(DeviceOfPeer, is_read_and_written_without_it) {
  const uint64_t copies = ask().first;
  std::string text;
  for (const uint32_t size : {1u, 300u, 70001u, static_cast<uint32_t>(kShared)}) {
    text = pattern(size, static_cast<int>(size));
    put(text);
    ASSERT_EQ(run(IBV_WR_RDMA_WRITE, size, 0), IBV_WC_SUCCESS);
    std::fill(host_->bytes.begin(), host_->bytes.end(), '.');
    ASSERT_EQ(run(IBV_WR_RDMA_READ, size, 0), IBV_WC_SUCCESS);
    ASSERT_EQ(host_->text(0, size), text) << size;
  }
  const auto [more, sum] = ask();
  EXPECT_EQ(sum, sum_of(text));
  if (devices_->is_standin()) {
    EXPECT_EQ(more, copies + 1) << "but for the one by which it answered";
    EXPECT_EQ(devices_->counts().shared, 1u);
  }
  EXPECT_EQ(run(IBV_WR_RDMA_WRITE, 64, kShared - 63), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(ask().second, sum);
}

TEST_F(DeviceOfPeer, is_read_and_written_from_pieces_of_another) {
  DeviceMemory ours(*devices_, kShared);
  ibv_mr* const mr = ibv_reg_mr(pd_, ours.at(), kShared, kEverything);
  ASSERT_NE(mr, nullptr);
  const uint64_t copies = ask().first;
  const std::string text = pattern(500000, 9);
  const uint64_t start = reinterpret_cast<uint64_t>(ours.at());
  ASSERT_TRUE(ours.write(100, text.data(), 300000) &&
              ours.write(1000000, text.data() + 300000, 200000));
  ibv_sge pieces[] = {{start + 100, 300000, mr->lkey}, {start + 1000000, 200000, mr->lkey}};
  ibv_send_wr wr = send_wr(IBV_WR_RDMA_WRITE, pieces[0]);
  wr.num_sge = 2;
  wr.wr.rdma = {owner_.at + 7, owner_.rkey};
  ASSERT_EQ(post_wr(end_->qp, wr), 0);
  ASSERT_EQ(end_->completion().status, IBV_WC_SUCCESS);
  EXPECT_EQ(ask().second, sum_of(text));
  ASSERT_EQ(run(IBV_WR_RDMA_READ, 500000, 7), IBV_WC_SUCCESS);
  EXPECT_EQ(host_->text(0, 500000), text);

  const std::string dots(kShared, '.');
  ASSERT_TRUE(ours.write(0, dots.data(), kShared));
  wr.opcode = IBV_WR_RDMA_READ;
  ASSERT_EQ(post_wr(end_->qp, wr), 0);
  ASSERT_EQ(end_->completion().status, IBV_WC_SUCCESS);
  std::string back(kShared, ' ');
  ASSERT_TRUE(ours.read(back.data(), 0, back.size()));
  EXPECT_EQ(back, dots.substr(0, 100) + text.substr(0, 300000) + dots.substr(0, 699900) +
                      text.substr(300000) + dots.substr(1200000));
  if (devices_->is_standin()) {
    EXPECT_EQ(ask().first, copies + 2) << "but for those by which it answered";
  }
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

// A driver's copy cannot be fenced. The place that the region was taken from is not its owner's
// again before the copy is over, and until then nobody says so.
TEST_F(DeviceOfPeer, is_not_the_owners_again_while_a_peer_is_in_the_place_that_its_region_left) {
  if (!devices_->is_standin()) GTEST_SKIP() << "a real driver does not pause";
  int pause[2] = {-1, -1};
  ASSERT_EQ(::pipe2(pause, O_CLOEXEC), 0);
  ::setenv("STANDIN_PAUSE_MS", "8000", 1);  // each call of the owner's gives up after one second
  ::setenv("STANDIN_PAUSE_TELLS", std::to_string(pause[1]).c_str(), 1);
  ibv_wc_status written = IBV_WC_GENERAL_ERR;
  std::thread writer([&] { written = run(IBV_WR_RDMA_WRITE, 100, 0); });
  char in_it = 0;
  EXPECT_EQ(::read(pause[0], &in_it, 1), 1);
  const Answer moved = tell('m');
  EXPECT_EQ(moved.code, IBV_REREG_MR_ERR_CMD);
  EXPECT_EQ(moved.error, EBUSY);
  const Answer again = tell('m');
  EXPECT_EQ(again.code, IBV_REREG_MR_ERR_INPUT) << "it would have left two places";
  EXPECT_EQ(again.error, EBUSY);
  const Answer early = tell('d');
  writer.join();
  ::unsetenv("STANDIN_PAUSE_MS");
  ::unsetenv("STANDIN_PAUSE_TELLS");
  EXPECT_EQ(early.code, EBUSY);
  EXPECT_EQ(written, IBV_WC_SUCCESS) << "it had begun";
  if (early.code == EBUSY) {
    EXPECT_EQ(tell('d').code, 0);
  }
  for (const int fd : pause) ::close(fd);
}

}  // namespace
}  // namespace aperture::test

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--own") {
    ::alarm(60);
    ::setenv("APERTURE_DEVICE_SHARE", "on", 1);
    return aperture::test::own(std::atoi(argv[2]));
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
