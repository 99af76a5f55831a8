// Members of groups in one thread, whose messages go through queues of the test's: in order between
// each two of them, and otherwise when the draw of the lots says so. Short ones are sent when they
// are in their queue; long ones when they have met their receive.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <list>
#include <random>

#include "collective/group.hpp"

namespace aperture::collective {

class Carried {
 public:
  static constexpr size_t kShort = 64;

  class Member final : public Carrier, public Starter {
   public:
    Member(Carried& world, uint32_t at) : world_(world), at_(at), runner_(*this) {}
    Runner& runner() { return runner_; }
    uint32_t at() const { return at_; }

    // Of what was begun last.
    bool is_told = true;
    Errc told = Errc::ok;

   private:
    friend class Carried;
    struct Posted {
      uint64_t source, tag;
      std::byte* to;
      size_t len;
      qp::Told* told;
    };
    struct Message {
      uint64_t source, tag, imm;
      std::vector<std::byte> bytes;
      qp::Told* sender;  // of a long one
    };

    Status send(const qp::SendWr& wr) noexcept override {
      if (world_.draw(8) == 0) return Errc::again;
      Message m{at_, wr.tag, wr.imm, {}, static_cast<qp::Told*>(wr.context)};
      if (wr.len != 0) {
        const auto* from = static_cast<const std::byte*>(wr.iov->iov_base);
        m.bytes.assign(from, from + wr.len);
      }
      if (wr.len <= kShort) world_.sent_.push_back(std::exchange(m.sender, nullptr));
      world_.way(at_, static_cast<uint32_t>(wr.dest)).push_back(std::move(m));
      return {};
    }
    Status recv(const qp::RecvWr& wr) noexcept override {
      if (world_.draw(8) == 0) return Errc::again;
      auto* const to = wr.len != 0 ? static_cast<std::byte*>(wr.iov->iov_base) : nullptr;
      posted_.push_back({wr.source, wr.tag, to, wr.len, static_cast<qp::Told*>(wr.context)});
      match();
      return {};
    }
    void cancel_recv(void* context) noexcept override {
      const auto at = std::find_if(posted_.begin(), posted_.end(),
                                   [&](const Posted& p) { return p.told == context; });
      if (at == posted_.end()) return;
      qp::Told* const receiver = at->told;
      posted_.erase(at);
      fail(receiver, Errc::canceled);
    }
    void wake() noexcept override {}

    void on_over(Errc why, const std::string&) noexcept override {
      is_told = true;
      told = why;
    }

    static void fail(qp::Told* of, Errc why) {
      qp::CompletionError error;
      error.err = why;
      of->on_failed(std::move(error));
    }
    // The endpoint goes.
    void end() {
      runner_.abandon();
      while (!posted_.empty()) cancel_recv(posted_.front().told);
      while (!early_.empty()) drop(early_);
    }
    void lose(uint32_t peer) {
      early_.remove_if([&](const Message& m) { return m.source == peer && m.sender != nullptr; });
      std::vector<qp::Told*> lost;
      std::erase_if(posted_, [&](const Posted& p) {
        if (p.source == peer) lost.push_back(p.told);
        return p.source == peer;
      });
      for (qp::Told* receiver : lost) fail(receiver, Errc::peer_lost);
    }
    template <typename Messages>
    static void drop(Messages& of) {
      if (of.front().sender != nullptr) fail(of.front().sender, Errc::peer_lost);
      of.pop_front();
    }

    void match() {
      for (auto p = posted_.begin(); p != posted_.end(); ++p) {
        const auto m = std::find_if(early_.begin(), early_.end(), [&](const Message& e) {
          return e.source == p->source && e.tag == p->tag;
        });
        if (m == early_.end()) continue;
        const Posted receive = *p;
        const Message message = std::move(*m);
        posted_.erase(p);
        early_.erase(m);
        deliver(receive, message);
        return match();
      }
    }
    void deliver(const Posted& receive, const Message& message) {
      if (message.sender != nullptr) world_.sent_.push_back(message.sender);
      if (message.bytes.size() > receive.len) {
        return fail(receive.told, Errc::truncated);
      }
      if (!message.bytes.empty())
        std::memcpy(receive.to, message.bytes.data(), message.bytes.size());
      receive.told->on_done({.len = message.bytes.size(), .imm = message.imm});
    }

    Carried& world_;
    const uint32_t at_;
    Runner runner_;
    std::list<Posted> posted_;
    std::list<Message> early_;  // has arrived
  };

  Carried(uint32_t members, uint32_t seed) : lots_(seed), ways_(members * members) {
    for (uint32_t r = 0; r < members; ++r) members_.push_back(std::make_unique<Member>(*this, r));
  }
  // Its members have left their groups.
  ~Carried() {
    for (auto& member : members_) member->end();
    for (auto& way : ways_) {
      while (!way.empty()) Member::drop(way);
    }
    for (qp::Told* sender : sent_) sender->on_done({});
  }
  Carried(const Carried&) = delete;
  Carried& operator=(const Carried&) = delete;

  uint32_t size() const { return static_cast<uint32_t>(members_.size()); }
  Member& operator[](uint32_t rank) { return *members_[rank]; }
  uint32_t draw(uint32_t of) { return static_cast<uint32_t>(lots_()) % of; }

  // That one dies, having left its groups, and another comes to its address. What has arrived from
  // it stays, as far as it is all there.
  void replace(uint32_t rank) {
    members_[rank]->end();
    for (uint32_t i = 0; i < size(); ++i) {
      for (auto* lost : {&way(rank, i), &way(i, rank)}) {
        while (!lost->empty()) Member::drop(*lost);
      }
    }
    for (uint32_t i = 0; i < size(); ++i) {
      if (i != rank) members_[i]->lose(rank);
    }
    while (!sent_.empty()) step();
    members_[rank] = std::make_unique<Member>(*this, rank);
  }
  // Anything that can happen now.
  void step() {
    if (!sent_.empty() && draw(2) == 0) {
      qp::Told* const sender = sent_.front();
      sent_.pop_front();
      sender->on_done({});
    }
    auto& way = ways_[draw(size() * size())];
    if (!way.empty()) {
      Member& to = *members_[static_cast<uint32_t>(&way - ways_.data()) % size()];
      to.early_.push_back(std::move(way.front()));
      way.pop_front();
      to.match();
    }
    members_[draw(size())]->runner().poll(0);
  }
  // Until, as likely as not, nothing happens any more.
  void settle() {
    for (uint32_t i = 0; i < 400 * size() * size(); ++i) step();
  }
  // Nothing has been sent that nobody took, and nobody waits for more.
  bool is_empty() const {
    return sent_.empty() &&
           std::all_of(ways_.begin(), ways_.end(), [](const auto& w) { return w.empty(); }) &&
           std::all_of(members_.begin(), members_.end(),
                       [](const auto& m) { return m->posted_.empty() && m->early_.empty(); });
  }

 private:
  std::deque<Member::Message>& way(uint32_t from, uint32_t to) { return ways_[from * size() + to]; }

  std::mt19937 lots_;
  std::vector<std::deque<Member::Message>> ways_;
  std::deque<qp::Told*> sent_;
  std::vector<std::unique_ptr<Member>> members_;
};

}  // namespace aperture::collective
