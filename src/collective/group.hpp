// Groups of endpoints, and the collective operations that are under way in them.
//
// A Runner belongs to one endpoint. It carries out plans (plan.hpp) by messages that are matched
// apart from the application's, so that several operations go on at once, in one group or in
// several (run.hpp). What tells them apart is in the tag, beside the source:
//
//   63  62    20 19       0
//   0   group    operation       of a collective operation
//   1   members                  of a join: they have no number for the group yet
//
// and the whole key of the group comes with each message, to be compared. What one member sends
// another in one operation comes in the order in which that one's plan wants it: plans differ in
// how many steps they have, and agree in that. The number is made of the key, which is made of the
// members' addresses and of an occurrence: so many groups of just these members there have been, as
// far as the one knows that knows of the most. A join asks all members for that, and then whether
// the number is taken at one of them; if so, they try the next occurrence.
//
// Joins of the same members have one tag, so an endpoint carries them out one after the other, and
// the first join of one member meets the first of another. One that a member left in the first
// round fails at all others, and they are where that one is when they call again. What remains: one
// that leaves in the second round may leave others joined; and where a member dies while others
// join or give up a join with it, and comes back at its address, their joins may not come together
// until they have new endpoints, too.
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
#include "link/chore.hpp"
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
  // In the endpoint's address table, by rank; what is under way has them, too.
  std::shared_ptr<const std::vector<uint64_t>> indices;
  uint64_t hash = 0;  // of their addresses
  uint32_t rank = 0;  // our own
  Place place() const noexcept { return {rank, static_cast<uint32_t>(indices->size())}; }
};
// Errors: no_entry (`own` is none of them), invalid (one is there twice). By exception
// std::bad_alloc.
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
  uint64_t occurrence = 0;  // so many groups of these members were there before
  uint64_t key = 0;         // from here on: 0 until its members have agreed upon the occurrence
  uint64_t number = 0;
  uint32_t operations = 0;  // begun so far
  bool is_joined = false;
};

class Runner final : public link::Chore<Runner> {
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
  // The endpoint goes, after all of its groups: nothing is begun any more.
  void abandon() noexcept;

  bool poll(uint64_t polls) noexcept override;

 private:
  friend class Run;
  friend class link::Chore<Runner>;

  struct Count {
    uint64_t members;  // their hash
    uint64_t next;     // occurrence
  };

  bool is_due() const noexcept { return is_due_; }
  bool is_blocked() const noexcept { return is_blocked_; }
  void note() noexcept;
  Count* counted(const Group& group) noexcept;
  uint64_t next_occurrence(const Group& group) noexcept { return counted(group)->next; }
  // Makes its key and its number of its occurrence. False: another group has that number.
  bool take_number(Group& group) noexcept;
  // A join of the same members was begun before, and has messages to begin.
  bool must_wait(const Run& run) const noexcept;
  void end(Run& run) noexcept;

  Carrier& carrier_;
  std::list<std::unique_ptr<Run>> runs_;  // in the order in which they were begun
  std::vector<Group*> groups_;            // joined, or joining
  std::vector<Count> counts_;             // of groups that were joined
  bool is_due_ = false;
  bool is_blocked_ = false;  // what is due has found no room
};

}  // namespace aperture::collective
