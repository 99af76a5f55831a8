// Groups of endpoints: see group.hpp.
#include "collective/group.hpp"

#include <algorithm>
#include <cassert>

#include "collective/run.hpp"

namespace aperture::collective {

namespace {

constexpr unsigned kOperationBits = 20;
constexpr uint64_t kJoin = uint64_t{1} << 63;
constexpr unsigned kNumberBits = 63 - kOperationBits;

// splitmix64's finalizer: each bit of the input reaches each of the output.
uint64_t mixed(uint64_t x) noexcept {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

bool has_twins(std::vector<Address> addresses) {
  std::sort(addresses.begin(), addresses.end());
  return std::adjacent_find(addresses.begin(), addresses.end()) != addresses.end();
}

uint64_t tag_of_operation(const Group& group) noexcept {
  const uint64_t operation = group.operations & ((uint64_t{1} << kOperationBits) - 1);
  return group.number << kOperationBits | operation;
}

}  // namespace

Result<Members> members_of(std::span<const Address> addresses, std::vector<uint64_t> indices,
                           const Address& own) {
  assert(addresses.size() == indices.size());
  const auto at = std::find(addresses.begin(), addresses.end(), own);
  if (at == addresses.end()) return Errc::no_entry;
  if (has_twins({addresses.begin(), addresses.end()})) return Errc::invalid;
  Members made;
  made.rank = static_cast<uint32_t>(at - addresses.begin());
  for (const Address& a : addresses) {
    for (const uint8_t byte : a.ip) made.hash = mixed(made.hash ^ byte);
    made.hash = mixed(made.hash ^ (uint64_t{a.port} << 8 | a.index));
  }
  made.indices = std::make_shared<const std::vector<uint64_t>>(std::move(indices));
  return made;
}

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

// ---- joins --------------------------------------------------------------------------------------

Runner::Count* Runner::counted(const Group& group) noexcept {
  const auto at = std::find_if(counts_.begin(), counts_.end(),
                               [&](const Count& c) { return c.members == group.members.hash; });
  return at != counts_.end() ? &*at : nullptr;
}

bool Runner::take_number(Group& group) noexcept {
  group.key = mixed(mixed(group.members.hash) + group.occurrence);
  group.number = group.key >> (64 - kNumberBits);
  return group.number != 0 && std::none_of(groups_.begin(), groups_.end(), [&](const Group* other) {
           return other != &group && other->number == group.number;
         });
}

bool Runner::must_wait(const Run& run) const noexcept {
  if (!run.joins()) return false;
  for (const auto& other : runs_) {
    if (other.get() == &run) return false;
    if (other->is_join_of(run.tag()) && !other->has_begun_all()) return true;
  }
  return false;
}

void Runner::join(Group& group, Starter& starter) {
  assert(!group.is_joined && group.members.indices != nullptr);
  if (counted(group) == nullptr) counts_.push_back({group.members.hash, 0});
  const uint64_t key = mixed(group.members.hash);
  auto run = std::make_unique<Run>(*this, group, plan_join(group.members.place()), starter,
                                   Run::Marks{.tag = kJoin | key >> 1, .key = key, .joins = true});
  groups_.reserve(groups_.size() + 1);
  runs_.push_back(std::move(run));
  groups_.push_back(&group);
  note();
}

// ---- what is under way --------------------------------------------------------------------------

void Runner::begin(Group& group, Plan plan, Starter& starter) {
  assert(group.is_joined);
  runs_.push_back(
      std::make_unique<Run>(*this, group, std::move(plan), starter,
                            Run::Marks{.tag = tag_of_operation(group), .key = group.key}));
  ++group.operations;
  static_cast<void>(runs_.back()->advance());  // what finds no room is tried again when polled
  note();
}

bool Runner::leave(Group& group) noexcept {
  bool all_over = true;
  for (const auto& run : runs_) {
    if (!run->is_of(group)) continue;
    if (run->joins() || !run->has_ended()) run->fail(Errc::canceled);
    if (!must_wait(*run)) static_cast<void>(run->advance());
    if (run->has_ended()) {
      run->take_starter()->on_over(run->error(), run->sentence());
    } else {
      all_over = false;
    }
  }
  if (all_over) std::erase(groups_, &group);
  note();
  return all_over;
}

void Runner::abandon() noexcept {
  assert(groups_.empty());
  for (const auto& run : runs_) run->abandon();
}

void Runner::end(Run& run) noexcept {
  assert(run.has_ended());
  Group& group = *run.group();
  if (run.joins() && run.error() == Errc::ok && run.must_propose_again()) return run.restart();
  if (run.joins() && run.error() == Errc::ok) {
    group.is_joined = true;
    counted(group)->next = group.occurrence + 1;
  }
  run.take_starter()->on_over(run.error(), run.sentence());
}

// What is noted meanwhile is done in the next one.
bool Runner::poll(uint64_t) noexcept {
  if (!is_due_) return false;
  is_due_ = false;
  bool waits = false, any = false;
  for (auto it = runs_.begin(); it != runs_.end();) {
    Run& run = **it;
    if (!must_wait(run)) waits = !run.advance().ok() || waits;
    if (run.has_ended()) {
      any = true;
      end(run);
      if (!run.is_told()) continue;  // begins anew
    }
    it = run.is_over() ? runs_.erase(it) : std::next(it);
  }
  is_blocked_ = waits && !is_due_;
  is_due_ = is_due_ || waits;
  return any || !waits;
}

}  // namespace aperture::collective
