// Collective operations under way: see run.hpp.
#include "collective/run.hpp"

#include <algorithm>
#include <cassert>

namespace aperture::collective {

Run::Run(Runner& runner, Group& group, Plan plan, Starter& starter, const Marks& marks) noexcept
    : runner_(runner),
      group_(&group),
      members_(group.members.indices),
      marks_(marks),
      plan_(std::move(plan)),
      starter_(&starter) {
  in_.run = out_.run = empty_.run = this;
}

// ---- its state ----------------------------------------------------------------------------------

bool Run::has_ended() const noexcept {
  if (starter_ == nullptr) return false;
  if (error_ != Errc::ok) return !holds_buffers();
  return is_idle() && at_ == plan_.steps.size();
}

bool Run::is_over() const noexcept {
  return starter_ == nullptr && at_ == plan_.steps.size() && is_idle() && empty_.posted == 0;
}

Starter* Run::take_starter() noexcept {
  group_ = nullptr;
  return std::exchange(starter_, nullptr);
}

bool Run::must_propose_again() const noexcept {
  assert(marks_.joins && decided_ && error_ == Errc::ok);
  return word_of(plan_, JoinWord::taken) != 0;
}

void Run::restart() noexcept {
  assert(is_idle() && marks_.joins && group_ != nullptr && error_ == Errc::ok);
  set_word(plan_, JoinWord::occurrence, group_->occurrence + 1);
  set_word(plan_, JoinWord::taken, 0);
  at_ = 0;
  decided_ = in_begun_ = out_begun_ = false;
}

// ---- going on -----------------------------------------------------------------------------------

Status Run::advance() noexcept {
  for (;;) {
    if (error_ != Errc::ok) return give_up();
    if (marks_.joins && !decided_) agree();
    if (at_ == plan_.steps.size()) return {};
    const Step& step = plan_.steps[at_];
    if (Status s = post(step); !s) {
      if (s.error() == Errc::again) return s;
      error_ = s.error();
      continue;
    }
    if (error_ != Errc::ok) continue;
    if (!is_idle()) return {};
    if (step.from != kNobody && !in_begun_) continue;  // what came was of no use
    finish(step, plan_.reduction);
    ++at_;
    in_begun_ = out_begun_ = false;
  }
}

// Of a join: what its rounds begin with.
void Run::agree() noexcept {
  if (at_ == 0 && !out_begun_) {
    const uint64_t least = runner_.next_occurrence(*group_);
    set_word(plan_, JoinWord::occurrence, std::max(word_of(plan_, JoinWord::occurrence), least));
  }
  if (at_ != plan_.steps.size() / 2) return;
  group_->occurrence = word_of(plan_, JoinWord::occurrence);
  set_word(plan_, JoinWord::taken, runner_.take_number(*group_) ? 0 : 1);
  decided_ = true;
}

uint64_t Run::key_of(size_t step) const noexcept {
  return marks_.joins && is_second_round(step) ? group_->key : marks_.key;
}

// Those of the rounds of a join are not alike: what is left of one that was given up is known.
uint64_t Run::mark_of(size_t step) const noexcept {
  return marks_.joins && is_second_round(step) ? ~marks_.key - 1 : ~marks_.key;
}

// It may have failed in the middle of a step.
Status Run::give_up() noexcept {
  const size_t steps = plan_.steps.size();
  if (in_.posted && at_ < steps) runner_.carrier_.cancel_recv(static_cast<qp::Told*>(&in_));
  for (; at_ < steps; ++at_, in_begun_ = out_begun_ = false) {
    const Step& step = plan_.steps[at_];
    if (step.to != kNobody && !out_begun_) {
      qp::SendWr wr = message_to(step);
      wr.imm = mark_of(at_);
      if (!start_empty(wr, [&] { return runner_.carrier_.send(wr); })) return Errc::again;
      out_begun_ = true;
    }
    if (step.from != kNobody && step.from != lost_ && !in_begun_) {
      qp::RecvWr wr = message_from(step);
      if (!start_empty(wr, [&] { return runner_.carrier_.recv(wr); })) return Errc::again;
      in_begun_ = true;
    }
  }
  if (is_idle()) plan_.scratch.reset();
  return {};
}

// ---- messages -----------------------------------------------------------------------------------

// Without its payload, and its key.
qp::SendWr Run::message_to(const Step& step) noexcept {
  qp::SendWr wr;
  wr.dest = (*members_)[step.to];
  wr.tag = marks_.tag;
  wr.tagged = true;
  wr.has_imm = qp::kOfGroup;
  return wr;
}

qp::RecvWr Run::message_from(const Step& step) noexcept {
  qp::RecvWr wr;
  wr.source = (*members_)[step.from];
  wr.tag = marks_.tag;
  wr.tagged = true;
  return wr;
}

// Out first: what comes may end it.
Status Run::post(const Step& step) noexcept {
  if (step.to != kNobody && !out_begun_) {
    qp::SendWr wr = message_to(step);
    const iovec iov{const_cast<std::byte*>(step.out), step.out_bytes};
    wr.iov = &iov;
    wr.iov_count = step.out_bytes != 0 ? 1 : 0;
    wr.len = step.out_bytes;
    wr.imm = key_of(at_);
    if (Status s = start(out_, wr, step.to, [&] { return runner_.carrier_.send(wr); }); !s)
      return s;
    out_begun_ = true;
  }
  if (step.from != kNobody && !in_begun_ && error_ == Errc::ok) {
    qp::RecvWr wr = message_from(step);
    const iovec iov{step.in, step.in_bytes};
    wr.iov = &iov;
    wr.iov_count = step.in_bytes != 0 ? 1 : 0;
    wr.len = step.in_bytes;
    in_begun_ = true;  // unless what comes at once is of no use
    if (Status s = start(in_, wr, step.from, [&] { return runner_.carrier_.recv(wr); }); !s) {
      in_begun_ = false;
      return s;
    }
  }
  return {};
}

// Its end may be told before the call returns.
template <typename Wr, typename Post>
Status Run::start(Message& message, Wr& wr, uint32_t peer, Post&& post) noexcept {
  assert(!message.posted);
  wr.context = static_cast<qp::Told*>(&message);
  wr.completion = qp::kTold;
  message.peer = peer;
  message.posted = true;
  message.holds_buffer = wr.len != 0 && !marks_.joins;
  const Status s = post();
  if (!s) message.posted = message.holds_buffer = false;
  return s;
}

// False: there is no room. Nobody can be told by one that fails otherwise.
template <typename Wr, typename Post>
bool Run::start_empty(Wr& wr, Post&& post) noexcept {
  wr.context = static_cast<qp::Told*>(&empty_);
  wr.completion = qp::kTold;
  ++empty_.posted;
  const Status s = post();
  if (s) return true;
  --empty_.posted;
  return s.error() != Errc::again;
}

void Run::Empty::on_end() noexcept {
  assert(posted != 0);
  --posted;
  run->runner_.note();
}

void Run::on_done(Message& message, const qp::Completion& entry) noexcept {
  assert(message.posted);
  message.posted = message.holds_buffer = false;
  if (&message == &in_ && error_ == Errc::ok) on_arrived(entry);
  runner_.note();
}

void Run::on_arrived(const qp::Completion& entry) noexcept {
  if (entry.imm == mark_of(at_)) {
    end_with(Errc::peer_lost, "another member could not go on with the operation");
  } else if (entry.imm != key_of(at_)) {
    if (marks_.joins && !is_second_round(at_)) {
      in_begun_ = false;  // of the second round of a join that was given up
      return;
    }
    end_with(Errc::protocol, marks_.joins ? "a member has begun to join anew"
                                          : "a member is in another group of the same number");
  } else if (entry.len != plan_.steps[at_].in_bytes) {
    end_with(Errc::invalid,
             "a member has called with another count or datatype, or another operation; all "
             "members make the same call");
  }
}

void Run::on_failed(Message& message, qp::CompletionError&& error) noexcept {
  assert(message.posted);
  message.posted = message.holds_buffer = false;
  if (error.err == Errc::truncated) {
    end_with(Errc::invalid,
             "a member has called with a larger count or datatype, or another operation; all "
             "members make the same call");
  } else {
    if (error.err != Errc::canceled) {
      lost_ = message.peer;
    } else if (&message == &in_) {
      in_begun_ = false;  // it may come all the same
    }
    if (error_ == Errc::ok) {
      error_ = error.err;
      sentence_ = std::move(error.sentence);
    }
  }
  runner_.note();
}

void Run::end_with(Errc why, const char* sentence) noexcept {
  if (error_ != Errc::ok) return;
  error_ = why;
  try {
    sentence_ = sentence;
  } catch (const std::bad_alloc&) {
    sentence_.clear();
  }
}

}  // namespace aperture::collective
