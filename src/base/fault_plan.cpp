// Reading a list of faults, and drawing them: see fault_plan.hpp.
#include "base/fault_plan.hpp"

#include <algorithm>
#include <cassert>

#include "base/spelling.hpp"
#include "base/text.hpp"

namespace aperture {

namespace {

using std::string;
using std::string_view;

// The kinds last, in their order.
constexpr std::array<string_view, 2 + kFaultKinds> kWords = {
    "seed", "delay", "rnr", "retry", "flush", "death", "drop", "duplicate", "reorder"};
constexpr size_t kDelay = 1;
constexpr size_t kFirstKind = 2;
constexpr uint64_t kRnrNs = 1'000'000'000;
constexpr uint64_t kMostNs = 60'000'000'000;
constexpr string_view kAfter = "after:";

// "0.1%": digits, and a point with digits behind it; std::from_chars of a double is not everywhere.
bool read_share(string_view text, uint64_t& of_2_32) noexcept {
  if (text.empty() || text.back() != '%') return false;
  text.remove_suffix(1);
  const size_t point = text.find('.');
  string_view behind = point == string_view::npos ? string_view() : text.substr(point + 1);
  if (point != string_view::npos && (behind.empty() || behind.size() > 6)) return false;
  uint64_t whole = 0;
  uint64_t millionths = 0;
  if (!is_number(text.substr(0, point), whole) || whole > 100) return false;
  if (!behind.empty() && !is_number(behind, millionths)) return false;
  for (size_t i = behind.size(); i < 6; ++i) millionths *= 10;
  const uint64_t share = whole * 1'000'000 + millionths;  // of 100 million
  if (share > 100'000'000) return false;
  of_2_32 = (share << 32) / 100'000'000;
  return share == 0 || of_2_32 != 0;
}

bool read_when(string_view text, FaultWhen& when) noexcept {
  if (!begins(text, kAfter)) return read_share(text, when.of_2_32);
  when.is_once = true;
  return is_number(text.substr(kAfter.size()), when.after);
}

bool read_time(string_view text, uint64_t& ns) noexcept {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const string_view unit = text.substr(digits);
  const uint64_t ns_per_unit = unit == "us"   ? 1'000
                               : unit == "ms" ? 1'000'000
                               : unit == "s"  ? 1'000'000'000
                                              : 0;
  uint64_t count = 0;
  if (ns_per_unit == 0 || !is_number(text.substr(0, digits), count)) return false;
  if (count > kMostNs / ns_per_unit) return false;
  ns = count * ns_per_unit;
  return ns != 0;
}

bool read_timed(string_view text, uint64_t& ns, FaultWhen& when) noexcept {
  const size_t colon = text.find(':');
  return colon != string_view::npos && read_time(text.substr(0, colon), ns) &&
         read_when(text.substr(colon + 1), when);
}

// kWords.size(): it is none.
size_t index_of(string_view word) noexcept {
  return static_cast<size_t>(std::find(kWords.begin(), kWords.end(), word) - kWords.begin());
}

string_view wish_of(string_view word) noexcept {
  if (word == "seed") return "a whole number, as in seed=7";
  if (word == "delay") return "a time and when, as in delay=2ms:10% or delay=50ms:after:100";
  if (word == "rnr") return "when, and a time before it, as in rnr=5% or rnr=50ms:after:100";
  return "when: a share, such as 5% or 0.1%, or after:100";
}

// False: it is no value of that word.
bool read_value(string_view word, string_view value, FaultPlan& plan) noexcept {
  if (word == "seed") {
    plan.has_seed = true;
    return is_number(value, plan.seed);
  }
  if (word == "delay") {
    FaultPlan::Delay& delay = plan.delays[plan.delay_count++];
    return read_timed(value, delay.ns, delay.when);
  }
  const size_t at = index_of(word) - kFirstKind;
  assert(at < kFaultKinds);
  if (at == static_cast<size_t>(FaultKind::rnr) && !read_when(value, plan.of[at])) {
    plan.of[at] = {};
    return read_timed(value, plan.rnr_ns, plan.of[at]);
  }
  return read_when(value, plan.of[at]);
}

string all_words() {
  string all;
  for (const string_view word : kWords) all.append(all.empty() ? "" : ", ").append(word);
  return all;
}

string fault_of_word(string_view word) {
  const string said = word.empty() ? "an empty word" : "'" + string(word) + "'";
  for (const string_view meant : kWords) {
    if (!word.empty() && is_nearly(word, meant)) {
      return said + " is no fault; '" + string(meant) + "' is perhaps what is meant";
    }
  }
  return said + " is no fault; there are " + all_words();
}

}  // namespace

bool FaultPlan::is_of_lanes() const noexcept {
  const auto is_any = [this](FaultKind kind) { return when(kind).is_ever(); };
  return delays_any() || is_any(FaultKind::rnr) || is_any(FaultKind::retry) ||
         is_any(FaultKind::flush) || is_any(FaultKind::death);
}

bool FaultPlan::is_of_datagrams() const noexcept {
  const auto is_any = [this](FaultKind kind) { return when(kind).is_ever(); };
  return delays_any() || is_any(FaultKind::drop) || is_any(FaultKind::duplicate) ||
         is_any(FaultKind::reorder);
}

uint64_t FaultPlan::delay_ns(const FaultDice& dice, uint32_t salt, uint64_t n) const noexcept {
  assert(delay_count <= delays.size());
  uint64_t ns = 0;
  for (uint32_t i = 0; i < delay_count; ++i) {
    if (delays[i].when.strikes(n, dice.draw(salt + i, n))) ns = std::max(ns, delays[i].ns);
  }
  return ns;
}

std::string read_fault_plan(string_view text, FaultPlan& plan) {
  FaultPlan read;
  read.rnr_ns = kRnrNs;
  std::array<size_t, kWords.size()> said{};
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const string_view item = text.substr(at, comma - at);
    const size_t equals = std::min(item.find('='), item.size());
    const string_view word = trimmed(item.substr(0, equals));
    const size_t index = index_of(word);
    if (index == kWords.size()) return fault_of_word(word);
    if (++said[index] > (index == kDelay ? FaultPlan::kMostDelays : 1)) {
      return "'" + string(word) + "' is said too often";
    }
    const string_view value =
        equals < item.size() ? trimmed(item.substr(equals + 1)) : string_view();
    if (!read_value(word, value, read)) {
      return "'" + string(trimmed(item)) + "': " + string(word) + " wants " + string(wish_of(word));
    }
    at = comma + 1;
  }
  assert(read.delay_count <= FaultPlan::kMostDelays && read.rnr_ns != 0);
  plan = read;
  return {};
}

// --- dice ---

namespace {

// splitmix64's finalizer: each bit of the input reaches each of the output.
uint64_t mixed(uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}
constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;

}  // namespace

FaultDice::FaultDice(uint64_t seed, uint64_t number) noexcept
    : key_(mixed(mixed(seed + kGolden) + number * kGolden)) {}

uint32_t FaultDice::draw(uint32_t salt, uint64_t n) const noexcept {
  return static_cast<uint32_t>(mixed(mixed(key_ + salt * kGolden) + n * kGolden) >> 32);
}

}  // namespace aperture
