// fi_cq(3): formats, reading when there is nothing, error entries, wait objects, signals and a
// queue that is smaller than what comes.
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "doors/fixture.hpp"

namespace aperture::doors {
namespace {

constexpr uint64_t kTag = 0x1122334455667788;

// Opens a CQ of its own in `node`'s domain.
Fid<fid_cq> open_cq(Node& node, fi_cq_attr attr, int* code = nullptr) {
  fid_cq* cq = nullptr;
  const int r = fi_cq_open(node.domain(), &attr, &cq, nullptr);
  if (code != nullptr) *code = r;
  EXPECT_TRUE(code != nullptr || r == 0) << r;
  return Fid<fid_cq>(r == 0 ? cq : nullptr);
}

// An endpoint that sends to itself, bound to a CQ of `attr`.
class Loop {
 public:
  Loop(Node& node, fi_cq_attr attr) : info_(fi_dupinfo(node.info())) {
    cq_ = open_cq(node, attr);
    ep_ = DOOR_MADE(fi_endpoint, node.domain(), info_.get());
    DOOR(fi_ep_bind(ep(), &node.av()->fid, 0));
    DOOR(fi_ep_bind(ep(), &cq_->fid, FI_TRANSMIT | FI_RECV));
    DOOR(fi_enable(ep()));
    self_ = node.insert(name_of(&ep_->fid));
  }
  fid_cq* cq() { return cq_.get(); }
  fid_ep* ep() { return ep_.get(); }
  void receive(size_t size = 16) {
    ASSERT_EQ(fi_trecv(ep(), in, size, nullptr, FI_ADDR_UNSPEC, kTag, 0, &receive_op), 0);
  }
  void inject(const char* text, uint64_t data = 0) {
    ASSERT_EQ(post([&] {
                fi_cq_read(cq(), nullptr, 0);
                return fi_tinjectdata(ep(), text, std::strlen(text), data, self_, kTag);
              }),
              0);
  }
  // Reads one entry, waiting for it.
  ssize_t read(void* entry, int timeout_ms = 10000) {
    ssize_t r = -FI_EAGAIN;
    pump_until([&] { return (r = fi_cq_read(cq(), entry, 1)) != -FI_EAGAIN; }, timeout_ms);
    return r;
  }
  Op receive_op;
  char in[64] = {};

 private:
  Info info_;
  Fid<fid_cq> cq_;
  Fid<fid_ep> ep_;
  fi_addr_t self_ = FI_ADDR_UNSPEC;
};

fi_cq_attr format(fi_cq_format f, fi_wait_obj wait = FI_WAIT_NONE) {
  return {.format = f, .wait_obj = wait};
}

class Cq : public testing::Test {
 protected:
  Node node{{.caps = kUsualCaps | FI_SOURCE, .cq_data_size = 4}};
};

TEST_F(Cq, each_format_fills_its_entry_and_not_a_byte_more) {
  struct Guarded {
    fi_cq_tagged_entry entry;
    uint8_t canary[64];
  };
  const struct {
    fi_cq_format format;
    size_t size;
  } cases[] = {{FI_CQ_FORMAT_CONTEXT, sizeof(fi_cq_entry)},
               {FI_CQ_FORMAT_MSG, sizeof(fi_cq_msg_entry)},
               {FI_CQ_FORMAT_DATA, sizeof(fi_cq_data_entry)},
               {FI_CQ_FORMAT_TAGGED, sizeof(fi_cq_tagged_entry)}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.format);
    Loop loop(node, format(c.format));
    loop.receive();
    loop.inject("hello", 0x99);
    Guarded g;
    std::memset(&g, 0xEE, sizeof g);
    ASSERT_EQ(loop.read(&g), 1);
    const auto* bytes = reinterpret_cast<const uint8_t*>(&g);
    for (size_t i = c.size; i < sizeof g; ++i) ASSERT_EQ(bytes[i], 0xEE) << "byte " << i;
    EXPECT_EQ(g.entry.op_context, &loop.receive_op);
    if (c.format >= FI_CQ_FORMAT_MSG) {
      EXPECT_EQ(g.entry.len, 5u);
      EXPECT_EQ(g.entry.flags & (FI_RECV | FI_TAGGED | FI_REMOTE_CQ_DATA),
                FI_RECV | FI_TAGGED | FI_REMOTE_CQ_DATA);
    }
    if (c.format >= FI_CQ_FORMAT_DATA) {
      EXPECT_EQ(g.entry.data, 0x99u);
    }
    if (c.format >= FI_CQ_FORMAT_TAGGED) {
      EXPECT_EQ(g.entry.tag, kTag);
    }
    EXPECT_STREQ(loop.in, "hello");
  }
}

TEST_F(Cq, an_unspecified_format_is_chosen_and_told) {
  fi_cq_attr attr = format(FI_CQ_FORMAT_UNSPEC);
  const Fid<fid_cq> cq = open_cq(node, attr);
  EXPECT_NE(cq, nullptr);
}

TEST_F(Cq, several_entries_come_in_one_read) {
  Loop loop(node, format(FI_CQ_FORMAT_TAGGED));
  Op ops[8];
  char in[8] = {};
  for (int i = 0; i < 8; ++i)
    ASSERT_EQ(fi_trecv(loop.ep(), &in[i], 1, nullptr, FI_ADDR_UNSPEC, kTag, 0, &ops[i]), 0);
  for (int i = 0; i < 8; ++i) loop.inject("x");
  fi_cq_tagged_entry entries[8];
  int got = 0;
  ASSERT_TRUE(pump_until([&] {
    const ssize_t r = fi_cq_read(loop.cq(), entries, 8 - got);
    if (r > 0) {
      for (ssize_t k = 0; k < r; ++k) EXPECT_EQ(entries[k].op_context, &ops[got + k]);
      got += static_cast<int>(r);
    }
    return got == 8;
  }));
  EXPECT_EQ(fi_cq_read(loop.cq(), entries, 8), -FI_EAGAIN);
}

TEST_F(Cq, reading_an_empty_queue_is_eagain) {
  Loop loop(node, format(FI_CQ_FORMAT_TAGGED));
  fi_cq_tagged_entry entry;
  fi_cq_err_entry error{};
  fi_addr_t source = 5;
  EXPECT_EQ(fi_cq_read(loop.cq(), &entry, 1), -FI_EAGAIN);
  EXPECT_EQ(fi_cq_readfrom(loop.cq(), &entry, 1, &source), -FI_EAGAIN);
  EXPECT_EQ(fi_cq_readerr(loop.cq(), &error, 0), -FI_EAGAIN);
  EXPECT_EQ(source, 5u);
  // a count of 0 progresses progress and takes nothing
  loop.receive();
  loop.inject("x");
  const ssize_t none = fi_cq_read(loop.cq(), nullptr, 0);
  EXPECT_TRUE(none == 0 || none == -FI_EAGAIN) << none;
  EXPECT_EQ(loop.read(&entry), 1);
}

TEST_F(Cq, an_error_entry_stands_before_and_is_read_apart) {
  Loop loop(node, format(FI_CQ_FORMAT_TAGGED));
  loop.receive(2);
  loop.inject("12345", 7);
  fi_cq_tagged_entry entry;
  std::memset(&entry, 0xEE, sizeof entry);
  ASSERT_EQ(loop.read(&entry), -FI_EAVAIL);
  EXPECT_EQ(fi_cq_read(loop.cq(), &entry, 1), -FI_EAVAIL) << "until it has been read";
  EXPECT_EQ(reinterpret_cast<uint8_t*>(&entry)[0], 0xEE) << "nothing is written with an error";
  char data[256];
  fi_cq_err_entry error{.err_data = data, .err_data_size = sizeof data};
  ASSERT_EQ(fi_cq_readerr(loop.cq(), &error, 0), 1);
  EXPECT_EQ(error.op_context, &loop.receive_op);
  EXPECT_EQ(error.err, FI_ETRUNC);
  EXPECT_EQ(error.olen, 3u);
  EXPECT_EQ(error.tag, kTag);
  EXPECT_LE(error.err_data_size, sizeof data);
  char text[100] = {};
  const char* words =
      fi_cq_strerror(loop.cq(), error.prov_errno, error.err_data, text, sizeof text);
  ASSERT_NE(words, nullptr);
  EXPECT_NE(std::strlen(words), 0u);
  EXPECT_EQ(fi_cq_readerr(loop.cq(), &error, 0), -FI_EAGAIN);
  EXPECT_EQ(fi_cq_read(loop.cq(), &entry, 1), -FI_EAGAIN);
  // and on it goes
  loop.receive();
  loop.inject("ok");
  EXPECT_EQ(loop.read(&entry), 1);
}

TEST_F(Cq, strerror_into_a_short_buffer_stays_inside) {
  Loop loop(node, format(FI_CQ_FORMAT_TAGGED));
  char text[16];
  std::memset(text, 'z', sizeof text);
  const char* words = fi_cq_strerror(loop.cq(), FI_EACCES, nullptr, text, 4);
  EXPECT_NE(words, nullptr);
  EXPECT_EQ(text[4], 'z');
  EXPECT_NE(fi_cq_strerror(loop.cq(), FI_EACCES, nullptr, nullptr, 0), nullptr);
}

TEST_F(Cq, readfrom_tells_the_source) {
  Loop loop(node, format(FI_CQ_FORMAT_TAGGED));
  loop.receive();
  loop.inject("x");
  fi_cq_tagged_entry entry;
  fi_addr_t source = FI_ADDR_NOTAVAIL;
  ssize_t r = -FI_EAGAIN;
  ASSERT_TRUE(pump_until(
      [&] { return (r = fi_cq_readfrom(loop.cq(), &entry, 1, &source)) != -FI_EAGAIN; }));
  ASSERT_EQ(r, 1);
  EXPECT_NE(source, FI_ADDR_NOTAVAIL);
}

// Wait objects that block: real, or refused with a code; never taken as none.
class CqWait : public testing::TestWithParam<fi_wait_obj> {
 protected:
  void SetUp() override {
    int code = 0;
    if (open_cq(node, format(FI_CQ_FORMAT_TAGGED, GetParam()), &code) == nullptr) {
      EXPECT_TRUE(refuses_wait_object(code)) << code;
      EXPECT_NE(GetParam(), FI_WAIT_UNSPEC) << "cannot be refused";
      EXPECT_NE(GetParam(), FI_WAIT_FD) << "cannot be refused";
      EXPECT_FALSE(on_aperture()) << "offered here";
      GTEST_SKIP() << "refused with " << code;
    }
    loop = std::make_unique<Loop>(node, format(FI_CQ_FORMAT_TAGGED, GetParam()));
  }
  Node node;
  std::unique_ptr<Loop> loop;
};

TEST_P(CqWait, sread_returns_an_entry_that_is_there) {
  loop->receive();
  loop->inject("x");
  fi_cq_tagged_entry entry;
  ASSERT_EQ(fi_cq_sread(loop->cq(), &entry, 1, nullptr, 5000), 1);
  EXPECT_EQ(entry.op_context, &loop->receive_op);
  loop->receive();
  loop->inject("x");
  fi_addr_t source = 0;
  ASSERT_EQ(fi_cq_sreadfrom(loop->cq(), &entry, 1, &source, nullptr, 5000), 1);
}

TEST_P(CqWait, sread_times_out_when_nothing_comes) {
  fi_cq_tagged_entry entry;
  for (int timeout : {0, 1, 50}) {
    const int64_t start = now_ns();
    EXPECT_EQ(fi_cq_sread(loop->cq(), &entry, 1, nullptr, timeout), -FI_EAGAIN);
    const double waited_ms = static_cast<double>(now_ns() - start) / 1e6;
    EXPECT_GE(waited_ms, timeout * 0.9);
    EXPECT_LT(waited_ms, timeout + 1000);
  }
}

TEST_P(CqWait, sread_wakes_up_for_a_message_of_another_endpoint) {
  Node other;
  const fi_addr_t to = other.insert(name_of(&loop->ep()->fid));
  for (int round = 0; round < 20; ++round) {
    loop->receive();
    std::thread sender([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(round % 4));
      for (;;) {
        if (fi_tinject(other.ep(), "x", 1, to, kTag) == 0) break;
        fi_cq_read(other.cq(), nullptr, 0);
      }
      // manual progress of the sender until it is out
      for (int i = 0; i < 50; ++i) {
        fi_cq_read(other.cq(), nullptr, 0);
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    });
    fi_cq_tagged_entry entry{};
    const int64_t start = now_ns();
    const ssize_t r = fi_cq_sread(loop->cq(), &entry, 1, nullptr, 10000);
    const int64_t waited = now_ns() - start;
    sender.join();
    ASSERT_EQ(r, 1) << "round " << round;
    ASSERT_LT(waited, 5'000'000'000) << "it slept through the message";
  }
}

TEST_P(CqWait, signal_wakes_a_sleeper) {
  std::atomic<bool> back{false};
  fi_cq_tagged_entry entry;
  ssize_t r = 0;
  std::thread sleeper([&] {
    r = fi_cq_sread(loop->cq(), &entry, 1, nullptr, 8000);
    back = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(back);
  const int64_t start = now_ns();
  ASSERT_EQ(fi_cq_signal(loop->cq()), 0);
  sleeper.join();
  EXPECT_EQ(r, -FI_EAGAIN);
  EXPECT_LT(now_ns() - start, 4'000'000'000);
}

TEST_P(CqWait, sread_reports_an_error_entry) {
  loop->receive(1);
  loop->inject("12");
  fi_cq_tagged_entry entry;
  EXPECT_EQ(fi_cq_sread(loop->cq(), &entry, 1, nullptr, 5000), -FI_EAVAIL);
  fi_cq_err_entry error{};
  EXPECT_EQ(fi_cq_readerr(loop->cq(), &error, 0), 1);
}

INSTANTIATE_TEST_SUITE_P(Objects, CqWait,
                         testing::Values(FI_WAIT_UNSPEC, FI_WAIT_FD, FI_WAIT_YIELD),
                         [](const auto& p) { return std::string(wait_name(p.param)); });

// Nothing could signal a condition here while the application sleeps at it.
TEST_F(Cq, a_mutex_and_a_condition_are_not_offered) {
  int code = 0;
  open_cq(node, format(FI_CQ_FORMAT_TAGGED, FI_WAIT_MUTEX_COND), &code);
  EXPECT_TRUE(refuses_wait_object(code) || (code == 0 && !on_aperture())) << code;
}

TEST_F(Cq, sread_without_a_wait_object_is_refused) {
  Loop loop(node, format(FI_CQ_FORMAT_TAGGED, FI_WAIT_NONE));
  fi_cq_tagged_entry entry;
  const ssize_t r = fi_cq_sread(loop.cq(), &entry, 1, nullptr, 10);
  if (on_aperture()) {
    EXPECT_TRUE(r == -FI_ENOSYS || r == -FI_EOPNOTSUPP || r == -FI_EINVAL) << r;
  }
}

TEST_F(Cq, the_file_descriptor_becomes_readable_when_a_message_comes) {
  Loop loop(node, format(FI_CQ_FORMAT_TAGGED, FI_WAIT_FD));
  int fd = -1;
  ASSERT_EQ(fi_control(&loop.cq()->fid, FI_GETWAIT, &fd), 0);
  ASSERT_GE(fd, 0);
  fid* fids[] = {&loop.cq()->fid};
  fi_cq_tagged_entry entry;
  while (fi_cq_read(loop.cq(), &entry, 1) > 0) {
  }
  ASSERT_TRUE(pump_until([&] { return fi_trywait(node.fabric(), fids, 1) == 0; }));
  pollfd p{fd, POLLIN, 0};
  EXPECT_EQ(poll(&p, 1, 30), 0) << "readable with nothing there";
  // from another thread, as a peer would
  Node other;
  const fi_addr_t to = other.insert(name_of(&loop.ep()->fid));
  loop.receive();
  std::thread sender([&] {
    while (fi_tinject(other.ep(), "x", 1, to, kTag) != 0) fi_cq_read(other.cq(), nullptr, 0);
    for (int i = 0; i < 300; ++i) {
      fi_cq_read(other.cq(), nullptr, 0);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  bool got = false;
  const int64_t end = now_ns() + 10'000'000'000;
  while (!got && now_ns() < end) {
    if (fi_trywait(node.fabric(), fids, 1) == 0) {
      p = {fd, POLLIN, 0};
      EXPECT_GT(poll(&p, 1, 5000), 0) << "slept through the message";
    }
    got = fi_cq_read(loop.cq(), &entry, 1) == 1;
  }
  sender.join();
  EXPECT_TRUE(got);
}

TEST_F(Cq, trywait_says_no_while_entries_are_there) {
  Loop loop(node, format(FI_CQ_FORMAT_TAGGED, FI_WAIT_FD));
  loop.receive();
  loop.inject("x");
  fid* fids[] = {&loop.cq()->fid};
  ASSERT_TRUE(pump_until([&] { return loop.in[0] == 'x'; }, 50) || true);
  fi_cq_read(loop.cq(), nullptr, 0);
  ASSERT_TRUE(pump_until([&] {
    fi_cq_read(loop.cq(), nullptr, 0);
    return loop.in[0] == 'x';
  }));
  EXPECT_EQ(fi_trywait(node.fabric(), fids, 1), -FI_EAGAIN);
  fi_cq_tagged_entry entry;
  EXPECT_EQ(loop.read(&entry), 1);
}

TEST_F(Cq, getwait_tells_only_what_there_is) {
  Loop none(node, format(FI_CQ_FORMAT_TAGGED, FI_WAIT_NONE));
  int fd = -7;
  EXPECT_LT(fi_control(&none.cq()->fid, FI_GETWAIT, &fd), 0);
  EXPECT_EQ(fd, -7);
}

TEST_F(Cq, a_wait_set_is_real_or_refused) {
  fi_wait_attr wait_attr{.wait_obj = FI_WAIT_UNSPEC};
  fid_wait* raw = nullptr;
  const int code = fi_wait_open(node.fabric(), &wait_attr, &raw);
  fi_cq_attr attr = format(FI_CQ_FORMAT_TAGGED, FI_WAIT_SET);
  int cq_code = 0;
  if (code != 0) {
    EXPECT_TRUE(code == -FI_ENOSYS || code == -FI_EOPNOTSUPP) << code;
    EXPECT_EQ(open_cq(node, attr, &cq_code), nullptr) << "taken as none";
    EXPECT_LT(cq_code, 0);
    return;
  }
  Fid<fid_wait> set(raw);
  if (on_aperture()) {
    EXPECT_EQ(open_cq(node, attr, &cq_code), nullptr) << "without its wait set";
  }
  attr.wait_set = raw;
  Loop loop(node, attr);
  EXPECT_EQ(fi_wait(raw, 10), -FI_ETIMEDOUT);
  loop.receive();
  loop.inject("x");
  int waited = -1;
  pump_until([&] { return (waited = fi_wait(raw, 100)) == 0; }, 5000);
  EXPECT_EQ(waited, 0);
  fi_cq_tagged_entry entry;
  EXPECT_EQ(loop.read(&entry), 1);
  if (on_aperture()) {
    EXPECT_EQ(fi_close(&raw->fid), -FI_EBUSY) << "while the queue is in it";
  }
}

TEST_F(Cq, a_small_queue_pushes_back_and_loses_nothing) {
  fi_cq_attr attr = format(FI_CQ_FORMAT_TAGGED);
  attr.size = 4;
  Loop loop(node, attr);
  constexpr int kCount = 400;
  std::vector<uint64_t> in(kCount);
  std::vector<Op> ops(kCount);
  int posted = 0, sent = 0, read = 0;
  // receives and sends as many as are taken, and reads only when something is refused
  const auto read_one = [&] {
    fi_cq_tagged_entry entry{};
    const ssize_t r = fi_cq_read(loop.cq(), &entry, 1);
    if (r == 1) {
      EXPECT_EQ(entry.op_context, &ops[read]) << read;
      ++read;
    }
    EXPECT_TRUE(r == 1 || r == -FI_EAGAIN) << r;
  };
  const int64_t end = now_ns() + 20'000'000'000;
  const fi_addr_t self = node.insert(name_of(&loop.ep()->fid));
  while (read < kCount && now_ns() < end) {
    if (posted < kCount &&
        fi_trecv(loop.ep(), &in[posted], 8, nullptr, FI_ADDR_UNSPEC, kTag, 0, &ops[posted]) == 0) {
      ++posted;
    } else if (const auto value = static_cast<uint64_t>(sent);
               sent < posted && fi_tinject(loop.ep(), &value, 8, self, kTag) == 0) {
      ++sent;
    } else {
      read_one();
    }
  }
  ASSERT_EQ(read, kCount);
  for (int i = 0; i < kCount; ++i) ASSERT_EQ(in[i], static_cast<uint64_t>(i));
}

TEST_F(Cq, cannot_be_closed_while_an_endpoint_uses_it) {
  EXPECT_EQ(fi_close(&node.cq()->fid), -FI_EBUSY);
}

TEST_F(Cq, bad_attributes_are_refused) {
  if (!on_aperture()) GTEST_SKIP() << "others take some of these";
  int code = 0;
  open_cq(node, format(no_such_value<fi_cq_format>(44)), &code);
  EXPECT_TRUE(code == -FI_EINVAL || code == -FI_ENOSYS) << code;
  open_cq(node, format(FI_CQ_FORMAT_TAGGED, no_such_value<fi_wait_obj>(44)), &code);
  EXPECT_TRUE(code == -FI_EINVAL || code == -FI_ENOSYS) << code;
  fi_cq_attr attr = format(FI_CQ_FORMAT_TAGGED);
  attr.flags = 1ull << 60;
  open_cq(node, attr, &code);
  EXPECT_TRUE(code == -FI_EBADFLAGS || code == -FI_EINVAL) << code;
  attr.flags = 0;
  attr.size = ~size_t{0};
  open_cq(node, attr, &code);
  EXPECT_LT(code, 0) << "a queue of 2^64 - 1 entries";
}

}  // namespace
}  // namespace aperture::doors
