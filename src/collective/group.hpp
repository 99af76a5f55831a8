// Groups of endpoints, and the collective operations that are under way in them.
//
// A Runner belongs to one endpoint. It carries out plans (plan.hpp) by messages that are matched
// apart from the application's, so that several operations go on at once, in one group or in
// several. What tells them apart is in the tag, beside the source:
//
//   63     20 19       0
//   group     operation       of a collective operation
//   0         key             of a join: the members have no number for the group yet
//
// and the whole key of the group comes with each message, to be compared. What one member sends
// another in one operation comes in the order in which that one's plan wants it: plans differ in
// how many steps they have, and agree in that. The number is made of the
// key, which is made of the members' addresses, of how many groups of just these members there have
// been, and of an attempt: a join asks all members whether the number is taken at one of them, and
// if so they try the next attempt. Nobody has to be asked what the number is.
//
// Guarded by the engine's lock. Ends are told in the middle of progress: they are noted, and what
// follows is done in the next poll.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "base/address.hpp"
#include "collective/plan.hpp"
#include "link/pollable.hpp"
#include "qp/work_request.hpp"

namespace aperture::collective {

// The endpoint, as its groups know it: nic::Endpoint's calls of the same meaning.
class Carrier {
 public:
  virtual Status send(const qp::SendWr& wr) noexcept = 0;
  virtual Status recv(const qp::RecvWr& wr) noexcept = 0;
  virtual void cancel_recv(void* context) noexcept = 0;
  // Something is to be done: a sleeping engine is to poll.
  virtual void wake() noexcept = 0;

 protected:
  ~Carrier() = default;
};

struct Members {
  std::vector<uint64_t> indices;  // in the endpoint's address table, by rank
  uint64_t hash = 0;              // of their addresses
  uint32_t rank = 0;              // our own
  Place place() const noexcept { return {rank, static_cast<uint32_t>(indices.size())}; }
};
// Errors: no_entry (`own` is none of them).
Result<Members> members_of(std::span<const Address> addresses, std::vector<uint64_t> indices,
                           const Address& own);

class Run;

// Who has begun an operation: hears of its end once, with the lock held.
class Starter {
 public:
  virtual void on_over(Errc why, const std::string& sentence) noexcept = 0;

 protected:
  ~Starter() = default;
};

struct Group {
  Members members;
  uint64_t key = 0;
  uint64_t number = 0;
  uint64_t occurrence = 0;  // so many groups of these members were there before
  uint32_t attempt = 0;
  uint32_t operations = 0;  // begun so far
  bool is_joined = false;
};

class Runner final : public link::Pollable {
 public:
  explicit Runner(Carrier& carrier) noexcept;
  ~Runner() override;

  // Begins a join; `group` has its members. By exception std::bad_alloc, as the next one.
  void join(Group& group, Starter& starter);
  void begin(Group& group, Plan plan, Starter& starter);
  // The group is to be no more: what goes on in it ends with `canceled`, and its starters are told.
  // False: messages from or into the application's buffers are still under way; the starters are
  // told once these are over, and the group stays until then.
  bool leave(Group& group) noexcept;

  bool poll(uint64_t polls) noexcept override;
  Look look() noexcept override { return is_due_ ? Look::poll : Look::nothing; }
  void fall_asleep() noexcept override {}
  void wake_up() noexcept override {}
  bool anything_arrived() const noexcept override { return is_due_ && !is_blocked_; }
  bool needs_polling() const noexcept override { return anything_arrived(); }
  bool needs_later_look() const noexcept override { return is_due_; }
  bool has_pending() const noexcept override { return true; }  // it is looked at in every poll
  bool needs_wind_up() const noexcept override { return false; }

 private:
  friend class Run;

  void note() noexcept;
  bool number_is_taken(const Group& group) const noexcept;
  void propose(Group& group) noexcept;

  Carrier& carrier_;
  std::list<std::unique_ptr<Run>> runs_;              // in the order in which they were begun
  std::vector<Group*> groups_;                        // joined, or joining
  std::vector<std::pair<uint64_t, uint64_t>> joins_;  // members' hash, joins so far
  bool is_due_ = false;
  bool is_blocked_ = false;  // what is due has found no room
};

}  // namespace aperture::collective
