// What is the same at both doors: see live.hpp.
#include "hostile/live.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

namespace aperture::hostile {
namespace {

constexpr std::array<size_t, 14> kSizes = {0,    1,    8,     44,    45,    200,    257,
                                           1000, 4096, 20000, 32768, 65537, 131072, kLongest};

// An honest peer's rounds. The region's last word is its counter, the rest is written and read.
class Rounds {
 public:
  Rounds(Connection& connection, uint64_t seed)
      : connection_(connection), random_(seed), shadow_(kRegionBytes - 8, 0) {}

  // "" or what went wrong.
  std::string run(Report& report) {
    const size_t size = kSizes[random_() % kSizes.size()];
    report.bytes += size;
    switch (random_() % 4) {
      case 0: return echo(size);
      case 1: return write(size);
      case 2: return read(size);
      default: return add();
    }
  }
  std::string whole_region() {
    std::vector<uint8_t> all(shadow_.size());
    if (const std::string s = connection_.read(0, all); !s.empty()) return "last read: " + s;
    return all == shadow_ ? "" : "wrong bytes in the region at the end";
  }

 private:
  std::string echo(size_t size) {
    const uint64_t seed = random_();
    std::vector<uint8_t> out(size);
    doors::Guarded in(size);
    doors::fill(out, seed);
    if (const std::string s = connection_.send(out); !s.empty()) return "send: " + s;
    if (const std::string s = connection_.receive(in.span()); !s.empty()) return "echo: " + s;
    if (doors::first_difference(in.span(), seed)) return "wrong bytes came back";
    return in.intact() ? "" : "bytes beside a receive";
  }
  std::string write(size_t size) {
    const size_t at = random_() % (shadow_.size() - size);
    const std::span<uint8_t> piece(shadow_.data() + at, size);
    doors::fill(piece, random_());
    const std::string s = connection_.write(at, piece);
    return s.empty() ? s : "write: " + s;
  }
  std::string read(size_t size) {
    const size_t at = random_() % (shadow_.size() - size);
    doors::Guarded in(size);
    if (const std::string s = connection_.read(at, in.span()); !s.empty()) return "read: " + s;
    if (!std::equal(in.span().begin(), in.span().end(), shadow_.begin() + static_cast<long>(at)))
      return "wrong bytes were read";
    return in.intact() ? "" : "bytes beside a read";
  }
  std::string add() {
    const uint64_t value = random_();
    uint64_t before = 0;
    if (const std::string s = connection_.add(shadow_.size(), value, &before); !s.empty())
      return "add: " + s;
    const bool right = before == sum_;
    sum_ += value;
    return right ? "" : "a wrong sum";
  }

  Connection& connection_;
  std::mt19937_64 random_;
  std::vector<uint8_t> shadow_;
  uint64_t sum_ = 0;
};

}  // namespace

bool be_honest(Connection& connection, doors::Control& control, uint64_t seed, pid_t victim) {
  Report report;
  Stopwatch stopwatch({::getpid(), victim});
  Rounds rounds(connection, seed);
  while (report.ok() && !control.ready()) {
    stopwatch.begin();
    report.fail(rounds.run(report));
    stopwatch.end(report);
    ++report.rounds;
  }
  if (report.ok()) report.fail(rounds.whole_region());
  uint64_t word = 0;
  const bool told = !control.ready() || control.get(&word);
  return told && control.put(report) && control.get(&word);
}

Moods::Mood Moods::mood() {
  if (const int64_t now = doors::now_ns(); now >= until_ns_) {
    seed_ = seed_ * 6364136223846793005 + 1442695040888963407;
    const uint64_t drawn = seed_ >> 33;
    until_ns_ = now + static_cast<int64_t>(5 + drawn / 8 % 40) * 1'000'000;
    mood_ = drawn % 8 < 4 ? Mood::polls : drawn % 8 < 7 ? Mood::sleeps : Mood::away;
  }
  return mood_;
}

void Moods::end(Report& report) {
  lookout_.end();
  const int64_t before = report.standstill_ns;
  stopwatch_.end(report);
  if (report.standstill_ns <= std::max(before, Lookout::kLong_ns)) return;
  std::snprintf(report.seen, sizeof report.seen, "%s", lookout_.text().c_str());
}

// --- time ----------------------------------------------------------------------------------------

void Stopwatch::begin() {
  constexpr int64_t kNoteEvery_ns = 20'000'000;
  began_ns_ = doors::now_ns();
  if (began_ns_ - noted_at_ns_ < kNoteEvery_ns) return;
  noted_ = spent();
  noted_at_ns_ = began_ns_ = doors::now_ns();
}

void Stopwatch::end(Report& report) {
  constexpr int64_t kLong_ns = 50'000'000;
  const int64_t took = doors::now_ns() - began_ns_;
  report.worst_ns = std::max(report.worst_ns, took);
  if (took <= std::max(kLong_ns, report.standstill_ns)) {
    report.standstill_ns = std::max(report.standstill_ns, std::min(took, kLong_ns));
    return;
  }
  const Spent now = spent();
  // a thread that has ended is not among them any more
  const int64_t waited = std::max<int64_t>(0, now.waited_ns - noted_.waited_ns);
  const int64_t stolen = std::max<int64_t>(0, now.stolen_ns - noted_.stolen_ns);
  const int64_t still = took - waited - stolen;
  if (still <= report.standstill_ns) return;
  report.standstill_ns = still;
  report.ran_ns = now.ran_ns - noted_.ran_ns;
  report.waited_ns = waited;
  report.stolen_ns = stolen;
}

// As /proc/PID/task/TID/schedstat says: time on a processor, time waiting for one, turns. What the
// machine beneath has taken is counted by processor, in /proc/stat.
Stopwatch::Spent Stopwatch::spent() const {
  namespace fs = std::filesystem;
  Spent sum;
  std::ifstream stat("/proc/stat");
  std::string cpu;
  int64_t ticks[8] = {};  // user, nice, system, idle, iowait, irq, softirq, steal
  stat >> cpu;
  for (int64_t& each : ticks) stat >> each;
  sum.stolen_ns = ticks[7] * (1'000'000'000 / ::sysconf(_SC_CLK_TCK));
  for (const pid_t pid : processes_) {
    std::error_code gone;
    for (const auto& thread :
         fs::directory_iterator("/proc/" + std::to_string(pid) + "/task", gone)) {
      std::string name;
      if (std::ifstream(thread.path() / "comm") >> name; name == Lookout::kName) continue;
      std::ifstream file(thread.path() / "schedstat");
      int64_t ran = 0, waited = 0;
      if (!(file >> ran >> waited)) continue;
      sum.ran_ns += ran;
      sum.waited_ns += waited;
    }
  }
  return sum;
}

}  // namespace aperture::hostile
