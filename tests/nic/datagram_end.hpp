// A datagram queue pair of a verbs context with everything around it: for a test, and for the
// process that it talks to.
#pragma once

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "ib/queue_pair.hpp"
#include "nic/verbs_nic.hpp"
#include "wire/datagram.hpp"

namespace aperture::nic::test {

constexpr uint32_t kQkey = 0x1234567;

class DatagramEnd final : public ib::CqEvents, public ib::QpEvents {
 public:
  // Of that context, or of one of its own.
  explicit DatagramEnd(VerbsNic* shared = nullptr) : cq(1024, *this, false), memory(1 << 20) {
    if (shared == nullptr) {
      auto made = VerbsNic::create();
      if (!made) return;
      own_ = *std::move(made);
    }
    nic = shared != nullptr ? shared : own_.get();
    ib::QpSpec spec;
    spec.type = ib::QpType::ud;
    spec.pd = protect::new_domain();
    spec.send_cq = spec.recv_cq = &cq;
    spec.max_send_wr = spec.max_recv_wr = 128;
    spec.max_send_sge = spec.max_recv_sge = 2;
    spec.sq_sig_all = true;
    spec.events = this;
    auto made = nic->make_qp(spec);
    if (!made) return;
    verbs_qp = *std::move(made);
    protect::RegionSpec region;
    region.pd = spec.pd;
    region.base = reinterpret_cast<uint64_t>(memory.data());
    region.length = memory.size();
    region.rights = protect::Rights::local_read | protect::Rights::local_write;
    static uint64_t next_key = 0x700;
    region.requested_key = next_key++;
    auto handle = nic->keys().add(region);
    if (!handle) return;
    key_ = static_cast<uint32_t>((*handle).key);
    ib::QpAttributes attr;
    attr.qkey = kQkey;
    for (const ib::QpState next : {ib::QpState::init, ib::QpState::rtr, ib::QpState::rts}) {
      attr.state = next;
      if (!verbs_qp->modify(attr, ib::kAttrState | ib::kAttrQkey)) return;
    }
    for (uint64_t id = 0; id < 64; ++id) post_recv(id);
    ok = true;
  }
  ~DatagramEnd() override { verbs_qp.reset(); }

  void on_completion_event() noexcept override { ++events; }
  void on_overrun() noexcept override {}
  void on_async_event(ib::AsyncEvent) noexcept override {}

  // A connected queue pair beside it.
  ib::QpSpec rc_spec() {
    ib::QpSpec spec;
    spec.type = ib::QpType::rc;
    spec.pd = protect::new_domain();
    spec.send_cq = spec.recv_cq = &cq;
    spec.max_send_wr = spec.max_recv_wr = spec.max_send_sge = spec.max_recv_sge = 1;
    spec.events = this;
    return spec;
  }

  uint32_t qpn() { return verbs_qp->qp().qpn(); }
  void post_recv(uint64_t id) {
    const ib::Sge sge{at(id), kSlot, key_};
    const EngineGuard guard(nic->engine());
    static_cast<void>(verbs_qp->qp().post_recv({id, &sge, 1}));
  }
  Status send(const Address& local, const Address& remote, uint32_t qpn, const std::string& text,
              uint32_t qkey = kQkey) {
    const ib::Route route{local, remote};
    std::memcpy(&memory[100 * kSlot], text.data(), text.size());
    const ib::Sge sge{at(100), static_cast<uint32_t>(text.size()), key_};
    ib::SendWr wr;
    wr.id = 1000;
    wr.sge = &sge;
    wr.sge_count = 1;
    wr.route = &route;
    wr.remote_qpn = qpn;
    wr.remote_qkey = qkey;
    const EngineGuard guard(nic->engine());
    return verbs_qp->qp().post_send(wr);
  }

  struct Message {
    bool there = false;
    std::string text;
    uint32_t src_qpn = 0;
    Address from;
    Address to;
  };
  // The next message, which is given its receive back. Polls, or leaves that to the control thread.
  Message next(bool polls = true, int timeout_ms = 5000) {
    const uint64_t end = now_ns() + static_cast<uint64_t>(timeout_ms) * 1'000'000;
    do {
      ib::Wc wc;
      if (take(wc, polls)) {
        if (wc.id >= 64 || wc.status != ib::WcStatus::success) continue;
        return message_of(wc);
      }
      if (!polls) std::this_thread::sleep_for(std::chrono::microseconds(200));
    } while (now_ns() < end);
    return {};
  }

  VerbsNic* nic = nullptr;
  ib::CompletionQueue cq;
  std::vector<std::byte> memory;
  std::unique_ptr<VerbsQp> verbs_qp;
  int events = 0;
  bool ok = false;

 private:
  static constexpr uint32_t kSlot = 5000;

  uint64_t at(uint64_t slot) { return reinterpret_cast<uint64_t>(&memory[slot * kSlot]); }
  bool take(ib::Wc& wc, bool polls) {
    const EngineGuard guard(nic->engine());
    if (cq.empty() && polls) nic->engine().poll();
    if (cq.empty()) return false;
    wc = cq.front();
    cq.pop();
    return true;
  }
  Message message_of(const ib::Wc& wc) {
    Message m;
    m.there = true;
    m.src_qpn = wc.src_qpn;
    const std::byte* bytes = &memory[wc.id * kSlot];
    std::memcpy(m.from.ip.data(), bytes + 8, 16);
    std::memcpy(m.to.ip.data(), bytes + 24, 16);
    m.text.assign(reinterpret_cast<const char*>(bytes) + wire::kGrhBytes,
                  wc.byte_len - wire::kGrhBytes);
    post_recv(wc.id);
    return m;
  }

  std::unique_ptr<VerbsNic> own_;
  uint32_t key_ = 0;
};

}  // namespace aperture::nic::test
