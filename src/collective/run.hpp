// One collective operation of one group, or a join, while it is under way.
//
// It goes through its plan (plan.hpp), a step at a time. One that cannot go on, for whatever
// reason, gives up: it tells whoever would have had a message of it, by an empty one whose key says
// so, and takes what the others still send it, so that nobody waits for it and nothing of theirs
// stays behind. It lives until all of that is over, even where its group is no more; and where
// several members have died, maybe until the endpoint closes, since only one of them is known.
//
// A join is a plan of two rounds. In the first the members agree upon the occurrence of their
// group, the highest that any of them has to propose; in the second, whether all can have the
// number that is made of it. Who leaves in the first makes the join fail for all.
//
// Guarded by the engine's lock.
#pragma once

#include <string>

#include "collective/group.hpp"

namespace aperture::collective {

class Run {
 public:
  struct Marks {
    uint64_t tag = 0;
    uint64_t key = 0;  // of the group; of a join, that of its first round
    bool joins = false;
  };
  Run(Runner& runner, Group& group, Plan plan, Starter& starter, const Marks& marks) noexcept;
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  bool is_of(const Group& group) const noexcept { return group_ == &group; }
  bool is_join_of(uint64_t tag) const noexcept { return marks_.joins && marks_.tag == tag; }
  // As far as it goes now. again: a message found no room.
  Status advance() noexcept;
  // All of its messages are begun, and no more will be.
  bool has_begun_all() const noexcept {
    return at_ == plan_.steps.size() && (starter_ == nullptr || error_ != Errc::ok);
  }
  // Its starter is to be told: all is done, or it gives up and has left the application's buffers.
  bool has_ended() const noexcept;
  // Nobody is to be told, and nothing is under way.
  bool is_over() const noexcept;
  bool holds_buffers() const noexcept { return in_.holds_buffer || out_.holds_buffer; }

  Group* group() const noexcept { return group_; }  // null once the starter was taken
  bool joins() const noexcept { return marks_.joins; }
  uint64_t tag() const noexcept { return marks_.tag; }
  bool is_told() const noexcept { return starter_ == nullptr; }
  Errc error() const noexcept { return error_; }
  const std::string& sentence() const noexcept { return sentence_; }
  // Of a join that has ended: the number is taken at one of the members.
  bool must_propose_again() const noexcept;
  void restart() noexcept;  // with the next occurrence
  // Nobody is to be told any more.
  Starter* take_starter() noexcept;
  void fail(Errc why) noexcept {
    if (error_ == Errc::ok) error_ = why;
  }
  // The endpoint goes, and ends what is under way.
  void abandon() noexcept { at_ = plan_.steps.size(); }

 private:
  struct Message final : qp::Told {
    Run* run = nullptr;
    uint32_t peer = kNobody;  // rank
    bool posted = false;
    bool holds_buffer = false;  // the application's
    void on_done(const qp::Completion& entry) noexcept override { run->on_done(*this, entry); }
    void on_failed(qp::CompletionError&& error) noexcept override {
      run->on_failed(*this, std::move(error));
    }
  };
  // Messages without payload in either direction, of one that gives up: any number at once, and how
  // they end does not matter.
  struct Empty final : qp::Told {
    Run* run = nullptr;
    size_t posted = 0;
    void on_done(const qp::Completion&) noexcept override { on_end(); }
    void on_failed(qp::CompletionError&&) noexcept override { on_end(); }
    void on_end() noexcept;
  };

  bool is_idle() const noexcept { return !in_.posted && !out_.posted; }
  bool is_second_round(size_t step) const noexcept { return step >= plan_.steps.size() / 2; }
  uint64_t key_of(size_t step) const noexcept;
  uint64_t mark_of(size_t step) const noexcept;  // instead of the key, of one that gives up
  void agree() noexcept;
  Status give_up() noexcept;
  qp::SendWr message_to(const Step& step) noexcept;
  qp::RecvWr message_from(const Step& step) noexcept;
  Status post(const Step& step) noexcept;
  template <typename Wr, typename Post>
  Status start(Message& message, Wr& wr, uint32_t peer, Post&& post) noexcept;
  template <typename Wr, typename Post>
  bool start_empty(Wr& wr, Post&& post) noexcept;
  void on_done(Message& message, const qp::Completion& entry) noexcept;
  void on_arrived(const qp::Completion& entry) noexcept;
  void on_failed(Message& message, qp::CompletionError&& error) noexcept;
  void end_with(Errc why, const char* sentence) noexcept;

  Runner& runner_;
  Group* group_;
  const std::shared_ptr<const std::vector<uint64_t>> members_;  // as in the group's Members
  const Marks marks_;
  Plan plan_;
  Starter* starter_;
  size_t at_ = 0;          // step
  bool decided_ = false;   // of a join: between its rounds
  bool in_begun_ = false;  // of the step
  bool out_begun_ = false;
  Message in_;
  Message out_;
  Empty empty_;
  uint32_t lost_ = kNobody;  // rank: a message to or from it has failed
  Errc error_ = Errc::ok;
  std::string sentence_;
};

}  // namespace aperture::collective
