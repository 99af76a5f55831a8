// Stations that send to each other from as many threads as a threading level permits, and check
// every byte. fi_domain(3), "Multi-threading Support". Used over the stock libfabric (tests/doors)
// and over the provider alone (tests/provider), where ThreadSanitizer sees all of it.
//
// A station is an endpoint of any type with a CQ for each direction and a counter. Its work is cut
// into steps; a thread is a list of steps that it repeats until everything has arrived. Which steps
// may run in threads of their own is what the levels differ in.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "provider/opened.hpp"

namespace aperture::thread_play {

inline const size_t kSizes[] = {16, 16, 100, 16, 3000, 16, 40000, 300};
inline constexpr size_t kMost = 40000;
inline constexpr uint32_t kSenders = 2;  // of each station
inline constexpr size_t kSlots = 16;

// What a message says: who sent it, and which of its messages it is; the rest follows from that.
struct Words {
  uint32_t sender;
  uint32_t number;
  uint64_t len;
};
inline uint8_t byte_of(const Words& w, size_t i) {
  return static_cast<uint8_t>(w.sender * 31 + w.number * 7 + i * 13 + (i >> 8));
}

class Station {
 public:
  // events: of a connected endpoint; it is connected before it is used.
  Station(fid_domain* domain, fi_info* info, fid_eq* events, uint32_t messages)
      : type_(info->ep_attr->type),
        longest_(std::min(kMost, info->ep_attr->max_msg_size)),
        writes_left_((info->caps & FI_RMA) != 0 ? 50 : 0),
        messages_(messages),
        domain_(domain),
        seen_(kSenders * messages),
        next_(kSenders) {
    fi_av_attr av_attr{};
    if (events == nullptr) av_ = opened("fi_av_open", fi_av_open, domain, &av_attr);
    fi_cq_attr cq_attr{};
    cq_attr.format = FI_CQ_FORMAT_DATA;
    cq_attr.wait_obj = FI_WAIT_UNSPEC;
    tx_ = opened("fi_cq_open", fi_cq_open, domain, &cq_attr);
    rx_ = opened("fi_cq_open", fi_cq_open, domain, &cq_attr);
    fi_cntr_attr cntr_attr{};
    cntr_attr.wait_obj = FI_WAIT_UNSPEC;
    count_ = opened("fi_cntr_open", fi_cntr_open, domain, &cntr_attr);
    ep_ = opened("fi_endpoint", fi_endpoint, domain, info);
    fid_ep* ep = ep_.get();
    must(fi_ep_bind(ep, events != nullptr ? &events->fid : &av_->fid, 0), "bind av or eq");
    must(fi_ep_bind(ep, &tx_->fid, FI_TRANSMIT), "bind tx");
    must(fi_ep_bind(ep, &rx_->fid, FI_RECV), "bind rx");
    must(fi_ep_bind(ep, &count_->fid, FI_RECV), "bind counter");
    must(fi_enable(ep), "fi_enable");
    for (auto* slots : {&out_, &in_}) {
      slots->resize(kSlots);
      for (auto& slot : *slots) {
        slot = std::make_unique<Slot>();
        slot->bytes.resize(kMost);
      }
    }
  }
  // Sends go there from now on.
  void aim(Station& to) {
    peer_station_ = &to;
    char name[64];
    size_t len = sizeof name;
    must(fi_getname(&to.ep_->fid, name, &len), "fi_getname");
    if (av_ != nullptr && fi_av_insert(av_.get(), name, 1, &peer_, 0, nullptr) != 1) {
      throw std::runtime_error("fi_av_insert");
    }
    if (writes_left_ == 0) return;
    const uint64_t key = reinterpret_cast<uintptr_t>(this) >> 4;
    fid_mr* mr = nullptr;
    must(fi_mr_reg(to.domain_, to.window_, sizeof to.window_, FI_REMOTE_WRITE, 0, key, 0, &mr,
                   nullptr),
         "fi_mr_reg");
    mr_.reset(mr);
  }
  void let_go_of_peer() { mr_.reset(); }
  fid_ep* endpoint() { return ep_.get(); }

  bool done() const {
    return received_.load() == kSenders * messages_ && completed_.load() == kSenders * messages_;
  }
  std::string state() const {
    return "received " + std::to_string(received_.load()) + ", completed " +
           std::to_string(completed_.load()) + " of " + std::to_string(kSenders * messages_);
  }

  // --- steps; true: something was done ---

  bool send(uint32_t sender) {
    const uint32_t number = next_[sender];
    if (number == messages_ || may_be_lost(sender)) return false;
    for (size_t i = sender; i < kSlots; i += kSenders) {
      Slot& slot = *out_[i];
      if (slot.busy.load(std::memory_order_acquire)) continue;
      const Words w{sender, number, std::min(longest_, kSizes[number % std::size(kSizes)])};
      std::memcpy(slot.bytes.data(), &w, sizeof w);
      for (size_t at = sizeof w; at < w.len; ++at) slot.bytes[at] = byte_of(w, at);
      slot.busy.store(true, std::memory_order_relaxed);
      const ssize_t rc = number % 5 == 4 && w.len <= 64
                             ? fi_inject(ep_.get(), slot.bytes.data(), w.len, peer_)
                             : fi_send(ep_.get(), slot.bytes.data(), w.len, nullptr, peer_, &slot);
      if (rc == 0) {
        ++next_[sender];
        if (number % 5 == 4 && w.len <= 64) {
          slot.busy.store(false, std::memory_order_relaxed);
          completed_.fetch_add(1);
        }
        return true;
      }
      slot.busy.store(false, std::memory_order_relaxed);
      EXPECT_EQ(rc, -FI_EAGAIN);
      return false;
    }
    return false;
  }
  // A write into the peer's window now and then: its completion has no slot.
  bool write() {
    if (writes_left_ == 0) return false;
    static const uint64_t word = 0x5a5a5a5a5a5a5a5a;
    const ssize_t rc = fi_write(ep_.get(), &word, sizeof word, nullptr, peer_,
                                8 * (writes_left_ % 8), fi_mr_key(mr_.get()), nullptr);
    if (rc != 0) {
      EXPECT_EQ(rc, -FI_EAGAIN);
      return false;
    }
    --writes_left_;
    return true;
  }
  bool post_receives() {
    bool any = false;
    for (auto& slot : in_) {
      if (slot->busy.load(std::memory_order_acquire)) continue;
      slot->busy.store(true, std::memory_order_relaxed);
      if (fi_recv(ep_.get(), slot->bytes.data(), kMost, nullptr, FI_ADDR_UNSPEC, slot.get()) != 0) {
        slot->busy.store(false, std::memory_order_relaxed);
        return any;
      }
      posted_.fetch_add(1);
      any = true;
    }
    return any;
  }
  bool read_tx() {
    fi_cq_data_entry entries[8];
    const ssize_t n = fi_cq_read(tx_.get(), entries, 8);
    if (n == -FI_EAGAIN) return false;
    if (n < 0) {
      fail(tx_.get(), n);
      return false;
    }
    for (ssize_t i = 0; i < n; ++i) {
      if (entries[i].op_context == nullptr) continue;  // a write
      static_cast<Slot*>(entries[i].op_context)->busy.store(false, std::memory_order_release);
      completed_.fetch_add(1);
    }
    return true;
  }
  bool read_rx(bool block) {
    fi_cq_data_entry entries[4];
    const ssize_t n =
        block ? fi_cq_sread(rx_.get(), entries, 4, nullptr, 50) : fi_cq_read(rx_.get(), entries, 4);
    if (n == -FI_EAGAIN || n == -FI_EINTR) return false;
    if (n < 0) {
      fail(rx_.get(), n);
      return false;
    }
    for (ssize_t i = 0; i < n; ++i)
      take(*static_cast<Slot*>(entries[i].op_context), entries[i].len);
    return true;
  }
  // The counter never runs behind what the queue told, and never beyond what was sent.
  bool watch_counter(bool block) {
    const uint64_t told = received_.load();
    if (block) {
      const int rc =
          fi_cntr_wait(count_.get(), std::min<uint64_t>(told + 1, kSenders * messages_), 20);
      EXPECT_TRUE(rc == 0 || rc == -FI_ETIMEDOUT || rc == -FI_EINTR) << rc;
    }
    const uint64_t counted = fi_cntr_read(count_.get());
    EXPECT_GE(counted, told);
    EXPECT_LE(counted, kSenders * messages_);
    EXPECT_EQ(fi_cntr_readerr(count_.get()), 0u);
    return false;
  }

  // What applications do beside the data path, while it runs: control calls may come from anywhere.
  bool meddle() {
    const uint64_t key = (reinterpret_cast<uintptr_t>(this) << 8) + meddled_++ % 256;
    fid_mr* mr = nullptr;
    EXPECT_EQ(fi_mr_reg(domain_, meddled_bytes_, sizeof meddled_bytes_, FI_REMOTE_READ, 0, key, 0,
                        &mr, nullptr),
              0);
    if (mr != nullptr) {
      EXPECT_EQ(fi_close(&mr->fid), 0);
    }
    if (av_ != nullptr) insert_and_remove_nobody();
    EXPECT_EQ(fi_cq_signal(rx_.get()), 0);
    size_t least = 64;
    EXPECT_EQ(fi_setopt(&ep_->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof least),
              0);
    fi_cntr_attr attr{};
    fid_cntr* counter = nullptr;
    EXPECT_EQ(fi_cntr_open(domain_, &attr, &counter, nullptr), 0);
    if (counter != nullptr) {
      EXPECT_EQ(fi_close(&counter->fid), 0);
    }
    (void)fi_cancel(&ep_->fid, this);  // of nothing
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    return true;
  }

  void expect_everything_once() {
    for (size_t i = 0; i < seen_.size(); ++i) EXPECT_EQ(seen_[i].load(), 1u) << i;
    EXPECT_EQ(fi_cntr_read(count_.get()), kSenders * messages_);
  }
  void close_endpoint() { ep_.reset(); }

 private:
  struct Slot {
    std::vector<uint8_t> bytes;
    std::atomic<bool> busy{false};
  };
  // A datagram for which no receive is posted at the peer.
  bool may_be_lost(uint32_t sender) const {
    return type_ == FI_EP_DGRAM && next_[sender] >= peer_station_->posted_.load() / kSenders;
  }
  void insert_and_remove_nobody() {
    sockaddr_in nobody{};
    nobody.sin_family = AF_INET;
    nobody.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    nobody.sin_port = htons(static_cast<uint16_t>(1 + meddled_ % 500));
    fi_addr_t added = FI_ADDR_NOTAVAIL;
    EXPECT_EQ(fi_av_insert(av_.get(), &nobody, 1, &added, 0, nullptr), 1);
    EXPECT_EQ(fi_av_remove(av_.get(), &added, 1, 0), 0);
  }
  void take(Slot& slot, size_t len) {
    Words w;
    std::memcpy(&w, slot.bytes.data(), sizeof w);
    EXPECT_EQ(w.len, len);
    if (w.sender < kSenders && w.number < messages_ && w.len == len) {
      size_t wrong = 0;
      for (size_t i = sizeof w; i < len; ++i) wrong += slot.bytes[i] != byte_of(w, i);
      EXPECT_EQ(wrong, 0u) << "message " << w.number << " of " << w.sender;
      seen_[w.sender * messages_ + w.number].fetch_add(1);
    } else {
      ADD_FAILURE() << "not a message of ours";
    }
    slot.busy.store(false, std::memory_order_release);
    received_.fetch_add(1);
  }
  static void fail(fid_cq* cq, ssize_t n) {
    fi_cq_err_entry error{};
    // another thread may have read the error
    if (n == -FI_EAVAIL && fi_cq_readerr(cq, &error, 0) == 1) {
      ADD_FAILURE() << "an operation failed: " << error.err;
    } else if (n != -FI_EAVAIL) {
      ADD_FAILURE() << "reading a queue: " << n;
    }
  }

  const fi_ep_type type_;
  const size_t longest_;
  uint32_t writes_left_;
  const uint32_t messages_;
  fid_domain* const domain_;
  const Station* peer_station_ = nullptr;
  Opened<fid_av> av_;
  Opened<fid_cq> tx_;
  Opened<fid_cq> rx_;
  Opened<fid_cntr> count_;
  Opened<fid_mr> mr_;
  Opened<fid_ep> ep_;
  fi_addr_t peer_ = FI_ADDR_NOTAVAIL;
  std::vector<std::unique_ptr<Slot>> out_, in_;
  std::atomic<uint64_t> received_{0}, completed_{0}, posted_{0};
  std::vector<std::atomic<uint32_t>> seen_;
  std::vector<uint32_t> next_;  // each written by its sender's thread alone
  uint64_t window_[8] = {};     // peers write there
  uint64_t meddled_ = 0;        // of the thread that meddles
  uint64_t meddled_bytes_[4] = {};
};

using Step = std::function<bool()>;
using Thread = std::vector<Step>;

// The threads that a level permits for one station.
inline std::vector<Thread> threads_of(fi_threading level, Station& s) {
  const Step send0 = [&s] { return s.send(0); };
  const Step send1 = [&s] { return s.send(1); };
  const Step write = [&s] { return s.write(); };
  const Step post = [&s] { return s.post_receives(); };
  const Step tx = [&s] { return s.read_tx(); };
  const Step rx = [&s] { return s.read_rx(false); };
  const Step blocking_rx = [&s] { return s.read_rx(true); };
  const Step count = [&s] { return s.watch_counter(false); };
  const Step blocking_count = [&s] { return s.watch_counter(true); };
  const Step meddle = [&s] { return s.meddle(); };
  switch (level) {
    case FI_THREAD_SAFE:
      return {{send0, write}, {send1},       {post},           {tx},
              {tx, rx},       {blocking_rx}, {blocking_count}, {meddle}};
    case FI_THREAD_FID:
      return {{send0, send1, write}, {post}, {tx}, {blocking_rx}, {blocking_count}};
    case FI_THREAD_ENDPOINT:
      return {{send0, send1, write, post}, {tx}, {blocking_rx}, {blocking_count}};
    default:  // COMPLETION, and DOMAIN with a station in each domain
      return {{send0, send1, write, post, tx, rx, count}};
  }
}

inline void play(std::vector<Station*> stations, fi_threading level) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(100);
  std::atomic<bool> stop{false};
  std::vector<std::thread> running;
  for (Station* s : stations) {
    for (const Thread& thread : threads_of(level, *s)) {
      running.emplace_back([thread, &stop] {
        while (!stop.load()) {
          bool any = false;
          for (const Step& step : thread) any = step() || any;
          if (!any) std::this_thread::yield();
        }
      });
    }
  }
  const auto all_done = [&] {
    for (Station* s : stations) {
      if (!s->done()) return false;
    }
    return true;
  };
  while (!all_done() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const bool in_time = all_done();
  stop.store(true);
  for (std::thread& t : running) t.join();
  for (Station* s : stations) {
    EXPECT_TRUE(in_time) << s->state();
    if (in_time) s->expect_everything_once();
  }
}

// Where two stations are opened, in two domains or in one: a program's own.
struct Place {
  Opened<fid_fabric> fabric;
  std::unique_ptr<fi_info, void (*)(fi_info*)> info;  // of a level and a type of endpoint
  uint32_t messages;                                  // of each sender
};

// The next event of a queue is that one. What it tells of a request is the caller's to free.
inline fi_eq_cm_entry expect_event(fid_eq* events, uint32_t wanted) {
  fi_eq_cm_entry entry{};
  uint32_t event = 0;
  must(fi_eq_sread(events, &event, &entry, sizeof entry, 20000, 0), "fi_eq_sread");
  if (event != wanted) throw std::runtime_error("another event: " + std::to_string(event));
  return entry;
}

inline void play_and_close(Station& a, Station& b, fi_threading level) {
  a.aim(b);
  b.aim(a);
  play({&a, &b}, level);
  a.let_go_of_peer();
  b.let_go_of_peer();
  a.close_endpoint();
  b.close_endpoint();
}

inline void play_connected_pair(const Place& at, fid_domain* first, fid_domain* second,
                                fi_threading level) {
  fi_eq_attr attr{};
  attr.wait_obj = FI_WAIT_UNSPEC;
  const auto events = opened("fi_eq_open", fi_eq_open, at.fabric.get(), &attr);
  const auto passive = opened("fi_passive_ep", fi_passive_ep, at.fabric.get(), at.info.get());
  must(fi_pep_bind(passive.get(), &events->fid, 0), "fi_pep_bind");
  must(fi_listen(passive.get()), "fi_listen");
  char name[64];
  size_t len = sizeof name;
  must(fi_getname(&passive->fid, name, &len), "fi_getname");
  Station a(first, at.info.get(), events.get(), at.messages);
  must(fi_connect(a.endpoint(), name, nullptr, 0), "fi_connect");
  const std::unique_ptr<fi_info, void (*)(fi_info*)> request(
      expect_event(events.get(), FI_CONNREQ).info, at.info.get_deleter());
  Station b(second, request.get(), events.get(), at.messages);
  must(fi_accept(b.endpoint(), nullptr, 0), "fi_accept");
  for (int side = 0; side < 2; ++side) expect_event(events.get(), FI_CONNECTED);
  play_and_close(a, b, level);
}

// Two stations that send to each other: of one domain, or each of its own.
inline void play_pair(const Place& at, fid_domain* first, fid_domain* second, fi_threading level) {
  if (at.info->ep_attr->type == FI_EP_MSG) return play_connected_pair(at, first, second, level);
  Station a(first, at.info.get(), nullptr, at.messages);
  Station b(second, at.info.get(), nullptr, at.messages);
  play_and_close(a, b, level);
}

}  // namespace aperture::thread_play
