// Collective operations under way: see group.hpp.
#include "collective/group.hpp"

#include <algorithm>
#include <cassert>
#include <string>

namespace aperture::collective {

namespace {

constexpr unsigned kOperationBits = 20;
constexpr unsigned kNumberBits = 64 - kOperationBits;

// splitmix64's finalizer: each bit of the input reaches each of the output.
uint64_t mixed(uint64_t x) noexcept {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

Result<Members> members_of(std::span<const Address> addresses, std::vector<uint64_t> indices,
                           const Address& own) {
  assert(addresses.size() == indices.size());
  Members made;
  bool found = false;
  for (size_t i = 0; i < addresses.size(); ++i) {
    const Address& a = addresses[i];
    if (a == own && !found) {
      made.rank = static_cast<uint32_t>(i);
      found = true;
    }
    for (const uint8_t byte : a.ip) made.hash = mixed(made.hash ^ byte);
    made.hash = mixed(made.hash ^ (uint64_t{a.port} << 8 | a.index));
  }
  if (!found) return Errc::no_entry;
  made.indices = std::move(indices);
  return made;
}

// One operation of one group, or a join. It lives until its last message is over, even where its
// group is no more.
class Run {
 public:
  Run(Runner& runner, Group& group, Plan plan, Starter& starter, uint64_t tag) noexcept
      : runner_(runner),
        group_(&group),
        members_(group.members.indices),
        key_(group.key),
        tag_(tag),
        plan_(std::move(plan)),
        starter_(&starter) {
    in_.run = out_.run = this;
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  bool is_of(const Group& group) const noexcept { return group_ == &group; }
  bool is_idle() const noexcept { return !in_.posted && !out_.posted; }
  bool is_over() const noexcept { return starter_ == nullptr && is_idle(); }
  Plan& plan() noexcept { return plan_; }

  // As far as it goes now. again: a message found no room.
  Status advance() noexcept {
    while (starter_ != nullptr) {
      if (error_ != Errc::ok) return give_up();
      if (at_ == plan_.steps.size()) return {};
      const Step& step = plan_.steps[at_];
      if (Status s = post(step); !s) {
        if (s.error() == Errc::again) return s;
        error_ = s.error();
        continue;
      }
      if (error_ != Errc::ok) continue;
      if (!is_idle()) return {};
      finish(step, plan_.reduction);
      ++at_;
      in_begun_ = out_begun_ = false;
    }
    return {};
  }
  // A failed one waits for what is on its way, too: the buffers are the application's then.
  bool has_ended() const noexcept {
    return starter_ != nullptr && is_idle() && at_ == plan_.steps.size();
  }
  Errc error() const noexcept { return error_; }
  const std::string& sentence() const noexcept { return sentence_; }
  // For what has not arrived.
  void stop_waiting() noexcept {
    if (in_.posted) runner_.carrier_.cancel_recv(static_cast<qp::Told*>(&in_));
  }
  // Nobody is to be told any more.
  Starter* take_starter() noexcept {
    group_ = nullptr;
    return std::exchange(starter_, nullptr);
  }
  void fail(Errc why) noexcept {
    if (error_ == Errc::ok) error_ = why;
  }
  // A join begins anew.
  void restart(Plan plan, uint64_t key, uint64_t tag) noexcept {
    assert(is_idle());
    plan_ = std::move(plan);
    key_ = key;
    tag_ = tag;
    at_ = 0;
    in_begun_ = out_begun_ = false;
  }

 private:
  struct Message final : qp::Told {
    Run* run = nullptr;
    bool posted = false;
    bool is_in = false;
    void on_done(const qp::Completion& entry) noexcept override { run->on_done(*this, entry); }
    void on_failed(qp::CompletionError&& error) noexcept override {
      run->on_failed(*this, std::move(error));
    }
  };

  // Whoever would have had a message of ours is told that it does not come, so that none waits for
  // ever: by an empty one, with a key that says so.
  Status give_up() noexcept {
    stop_waiting();
    for (; at_ < plan_.steps.size(); ++at_, in_begun_ = out_begun_ = false) {
      if (out_.posted) return {};
      const Step& step = plan_.steps[at_];
      if (step.to == kNobody || out_begun_) continue;
      qp::SendWr wr = message_to(step);
      wr.iov_count = 0;
      wr.len = 0;
      wr.imm = ~key_;
      const Status s = start(out_, wr, [&] { return runner_.carrier_.send(wr); });
      if (s.error() == Errc::again) return s;
      out_begun_ = true;  // or it cannot be told
      if (out_.posted) return {};
    }
    return {};
  }

  qp::SendWr message_to(const Step& step) noexcept {
    iov_out_ = {const_cast<std::byte*>(step.out), step.out_bytes};
    qp::SendWr wr;
    wr.iov = &iov_out_;
    wr.iov_count = step.out_bytes != 0 ? 1 : 0;
    wr.len = step.out_bytes;
    wr.dest = members_[step.to];
    wr.tag = tag_;
    wr.tagged = true;
    wr.has_imm = qp::kOfGroup;
    wr.imm = key_;
    return wr;
  }

  // Out first: what comes may end it.
  Status post(const Step& step) noexcept {
    if (step.to != kNobody && !out_begun_) {
      qp::SendWr wr = message_to(step);
      if (Status s = start(out_, wr, [&] { return runner_.carrier_.send(wr); }); !s) return s;
      out_begun_ = true;
    }
    if (step.from != kNobody && !in_begun_ && error_ == Errc::ok) {
      iov_in_ = {step.in, step.in_bytes};
      qp::RecvWr wr;
      wr.iov = &iov_in_;
      wr.iov_count = step.in_bytes != 0 ? 1 : 0;
      wr.len = step.in_bytes;
      wr.source = members_[step.from];
      wr.tag = tag_;
      wr.tagged = true;
      if (Status s = start(in_, wr, [&] { return runner_.carrier_.recv(wr); }); !s) return s;
      in_begun_ = true;
    }
    return {};
  }

  template <typename Wr, typename Post>
  Status start(Message& message, Wr& wr, Post&& post) noexcept {
    wr.context = static_cast<qp::Told*>(&message);
    wr.completion = qp::kTold;
    message.is_in = &message == &in_;
    message.posted = true;  // its end may be told before the call returns
    const Status s = post();
    if (!s) message.posted = false;
    return s;
  }

  void on_done(Message& message, const qp::Completion& entry) noexcept {
    assert(message.posted);
    message.posted = false;
    if (message.is_in && error_ == Errc::ok) {
      if (entry.imm == ~key_) {
        end_with(Errc::peer_lost, "another member could not go on with the operation");
      } else if (entry.imm != key_) {
        end_with(Errc::protocol, "a member is in another group of the same number");
      } else if (entry.len != plan_.steps[at_].in_bytes) {
        end_with(Errc::invalid,
                 "a member has called with another count or datatype, or another operation; all "
                 "members make the same call");
      }
    }
    runner_.note();
  }

  void on_failed(Message& message, qp::CompletionError&& error) noexcept {
    assert(message.posted);
    message.posted = false;
    if (error.err == Errc::truncated) {
      end_with(Errc::invalid,
               "a member has called with a larger count or datatype, or another operation; all "
               "members make the same call");
    } else if (error_ == Errc::ok) {
      error_ = error.err;
      sentence_ = std::move(error.sentence);
    }
    runner_.note();
  }

  void end_with(Errc why, const char* sentence) noexcept {
    if (error_ != Errc::ok) return;
    error_ = why;
    try {
      sentence_ = sentence;
    } catch (const std::bad_alloc&) {
      sentence_.clear();
    }
  }

  Runner& runner_;
  Group* group_;  // null once it has ended
  const std::vector<uint64_t> members_;
  uint64_t key_;
  uint64_t tag_;
  Plan plan_;
  Starter* starter_;
  size_t at_ = 0;  // step
  bool in_begun_ = false;
  bool out_begun_ = false;
  Message in_;
  Message out_;
  iovec iov_in_{};
  iovec iov_out_{};
  Errc error_ = Errc::ok;
  std::string sentence_;
  friend class Runner;
};

Runner::Runner(Carrier& carrier) noexcept : carrier_(carrier) {}

Runner::~Runner() {
  assert(groups_.empty());
  // what is left was told of its end when the endpoint was closed
  assert(std::all_of(runs_.begin(), runs_.end(), [](const auto& run) { return run->is_over(); }));
}

void Runner::note() noexcept {
  is_due_ = true;
  is_blocked_ = false;
  carrier_.wake();
}

bool Runner::number_is_taken(const Group& group) const noexcept {
  return group.number == 0 || std::any_of(groups_.begin(), groups_.end(), [&](const Group* other) {
           return other != &group && other->number == group.number;
         });
}

void Runner::propose(Group& group) noexcept {
  group.key = mixed(mixed(group.members.hash + group.occurrence) + group.attempt);
  group.number = group.key >> (64 - kNumberBits);
}

namespace {

uint64_t tag_of_join(const Group& group) noexcept {
  return group.key & ((uint64_t{1} << kOperationBits) - 1);
}
uint64_t tag_of_operation(const Group& group) noexcept {
  const uint64_t operation = group.operations & ((uint64_t{1} << kOperationBits) - 1);
  return group.number << kOperationBits | operation;
}

}  // namespace

void Runner::join(Group& group, Starter& starter) {
  auto counted = std::find_if(joins_.begin(), joins_.end(),
                              [&](const auto& j) { return j.first == group.members.hash; });
  if (counted == joins_.end()) counted = joins_.insert(joins_.end(), {group.members.hash, 0});
  group.occurrence = counted->second;
  propose(group);
  Plan plan = plan_join(group.members.place(), number_is_taken(group) ? 1 : 0);
  auto run = std::make_unique<Run>(*this, group, std::move(plan), starter, tag_of_join(group));
  groups_.reserve(groups_.size() + 1);
  runs_.push_back(std::move(run));
  groups_.push_back(&group);
  ++counted->second;
  note();
}

void Runner::begin(Group& group, Plan plan, Starter& starter) {
  assert(group.is_joined);
  runs_.push_back(
      std::make_unique<Run>(*this, group, std::move(plan), starter, tag_of_operation(group)));
  ++group.operations;
  static_cast<void>(runs_.back()->advance());  // what finds no room is tried again when polled
  note();
}

// A join has no buffers but its own.
bool Runner::leave(Group& group) noexcept {
  bool all_over = true;
  for (const auto& run : runs_) {
    if (!run->is_of(group)) continue;
    run->fail(Errc::canceled);
    static_cast<void>(run->advance());
    if (group.is_joined && !run->has_ended()) {
      all_over = false;
    } else if (Starter* starter = run->take_starter()) {
      starter->on_over(run->error(), run->sentence());
    }
  }
  if (all_over) std::erase(groups_, &group);
  note();
  return all_over;
}

bool Runner::poll(uint64_t) noexcept {
  if (!is_due_) return false;
  is_due_ = false;
  bool waits = false, any = false;
  for (auto it = runs_.begin(); it != runs_.end();) {
    Run& run = **it;
    waits = !run.advance().ok() || waits;
    if (run.has_ended()) {
      any = true;
      Group* const group = run.group_;
      const bool joins = !group->is_joined;
      if (joins && run.error() == Errc::ok && run.plan().scratch[0] != std::byte{0}) {
        ++group->attempt;
        propose(*group);
        try {
          run.restart(plan_join(group->members.place(), number_is_taken(*group) ? 1 : 0),
                      group->key, tag_of_join(*group));
          continue;
        } catch (const std::bad_alloc&) {
          run.fail(Errc::no_memory);
        }
      }
      if (joins && run.error() == Errc::ok) group->is_joined = true;
      if (Starter* starter = run.take_starter()) starter->on_over(run.error(), run.sentence());
    }
    it = run.is_over() ? runs_.erase(it) : std::next(it);
  }
  is_due_ = is_due_ || waits;
  is_blocked_ = waits;
  return any || !waits;
}

}  // namespace aperture::collective
