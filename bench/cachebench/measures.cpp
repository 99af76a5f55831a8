// Taking a measure: batches of pages, each act upon one of them timed by itself.
#include "cachebench/measures.hpp"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstring>
#include <numeric>
#include <random>

#include "base/clock.hpp"
#include "stopwatch/failure.hpp"
#include "stopwatch/samples.hpp"

namespace aperture::bench {

namespace {

constexpr size_t kBatch = 128;     // pages; as they lie apart, less than a huge page
constexpr size_t kFewest = 2;      // batches, whatever they take
constexpr size_t kStep = 16;       // hits per sample
constexpr size_t kMany = 1000;     // entries
constexpr int kMostPauses = 2000;  // of a millisecond, until a page is kept
constexpr unsigned kSteadyArea = 0, kArea = 1;
constexpr size_t kMostSamples = 1u << 20;

class OpenCache {
 public:
  OpenCache(const Subject& subject, int cpu) : door_(door_of(subject.cache)) {
    const char* const why = door_.open(subject.monitor.c_str(), &counts_);
    if (why != nullptr) throw Failure("there is no %s here: %s", subject.monitor.c_str(), why);
    if (cpu < 0) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<unsigned>(cpu), &set);
    // this thread alone: its threads keep what the process was given
    if (::sched_setaffinity(0, sizeof set, &set) != 0) {
      throw Failure("CPU %d is not available: %s", cpu, std::strerror(errno));
    }
  }
  ~OpenCache() { door_.close(); }
  OpenCache(const OpenCache&) = delete;
  OpenCache& operator=(const OpenCache&) = delete;

  bool keeps() const noexcept { return door_.keeps; }
  const char* version() const { return door_.version(); }
  uint64_t added() const noexcept { return counts_.added; }
  void use(std::byte* at) {
    if (const int error = door_.use(at, PagesApart::kPage); error != 0) [[unlikely]] {
      throw Failure("it makes no resource: its error %d", error);
    }
  }

 private:
  const Door door_;
  cache_peer_counts counts_{};
};

// How many of them the cache makes a resource for: those that it does not find.
uint64_t count_misses(OpenCache& cache, const PagesApart& pages) {
  const uint64_t before = cache.added();
  for (size_t i = 0; i < pages.count(); i++) cache.use(pages.at(i));
  return cache.added() - before;
}

// What has changed since the cache kept it has to be made anew.
void expect_all_made(const OpenCache& cache, uint64_t before, const PagesApart& pages) {
  const uint64_t made = cache.added() - before;
  if (!cache.keeps() || made == pages.count()) return;
  throw Failure("it is wrong: %" PRIu64 " of %zu pages were found although they had changed",
                pages.count() - made, pages.count());
}

// Until all are found. Some caches keep nothing while they hear of a change, or for a while after
// pages were dropped.
void keep(OpenCache& cache, const PagesApart& pages) {
  if (!cache.keeps()) return;
  for (int pauses = 0; count_misses(cache, pages) != 0; pauses++) {
    if (pauses == kMostPauses) throw Failure("pages are never kept");
    if (pauses != 0) ::usleep(1000);
  }
}

class Deadline {
 public:
  explicit Deadline(const Extent& extent)
      : count_(extent.count), until_(now_ns() + static_cast<uint64_t>(extent.seconds * 1e9)) {}
  bool is_over(uint64_t done, uint64_t fewest) const {
    if (count_ != 0) return done >= count_;
    return done >= kMostSamples || (done >= fewest && now_ns() >= until_);
  }

 private:
  const uint64_t count_, until_;
};

Row time_hits(OpenCache& cache, const Measure& measure, const Extent& extent) {
  const PagesApart pages(kArea, measure.kept);
  keep(cache, pages);
  std::vector<std::byte*> order;
  for (size_t i = 0; i < std::lcm(measure.kept, kStep); i++) {
    order.push_back(pages.at(i % measure.kept));
  }
  std::mt19937_64 random(7);
  std::shuffle(order.begin(), order.end(), random);
  Samples samples(kMostSamples);
  const uint64_t before = cache.added();
  const Deadline deadline(extent);
  size_t next = 0;
  for (uint64_t done = 0; !deadline.is_over(done * kStep, kBatch); done++) {
    // the clock is looked at between the samples
    const uint64_t start = ticks();
    for (size_t i = 0; i < kStep; i++) cache.use(order[next + i]);
    samples.add(ticks() - start);
    next = next + kStep == order.size() ? 0 : next + kStep;
  }
  if (const uint64_t made = cache.added() - before; made != 0) {
    throw Failure("%" PRIu64 " uses of what is kept were no hits", made);
  }
  return latency_row(samples, 1.0 / static_cast<double>(kStep));
}

// Before each batch: what the last one has left to be done is, and the cache is not empty.
class Steady {
 public:
  explicit Steady(OpenCache& cache) : cache_(cache), page_(kSteadyArea, 1) {}
  void use() { keep(cache_, page_); }

 private:
  OpenCache& cache_;
  const PagesApart page_;
};

Row time_misses(OpenCache& cache, const Measure& measure, const Extent& extent) {
  Samples samples(kMostSamples);
  Steady steady(cache);
  uint64_t lost = 0;
  const Deadline deadline(extent);
  for (uint64_t done = 0; !deadline.is_over(done, kFewest * kBatch); done += kBatch) {
    const PagesApart pages(kArea, kBatch, measure.layout);
    steady.use();
    const uint64_t before = cache.added();
    for (size_t i = 0; i < kBatch; i++) {
      const uint64_t start = ticks();
      cache.use(pages.at(i));
      samples.add(ticks() - start);
    }
    expect_all_made(cache, before, pages);
    lost += count_misses(cache, pages);
  }
  Row row = latency_row(samples, 1);
  if (lost != 0) {
    row.note = std::to_string(lost) + " of " + std::to_string(samples.size()) + " were not kept";
  }
  return row;
}

template <typename Change>
void time_batch(Samples& samples, Change&& change) {
  for (size_t i = 0; i < kBatch; i++) {
    const uint64_t start = ticks();
    const int failed = change(i);
    samples.add(ticks() - start);
    if (failed != 0) throw Failure("the call failed: %s", std::strerror(errno));
  }
}

Row time_changes(OpenCache& cache, const Measure& measure, const Extent& extent) {
  Samples samples(kMostSamples);
  Steady steady(cache);
  const Deadline deadline(extent);
  for (uint64_t done = 0; !deadline.is_over(done, kFewest * kBatch); done += kBatch) {
    PagesApart pages(kArea, kBatch);
    steady.use();
    if (measure.is_watched) {
      // those of the batch before lay at the same places
      const uint64_t before = cache.added();
      count_misses(cache, pages);
      expect_all_made(cache, before, pages);
      keep(cache, pages);
    }
    if (measure.act == Act::unmap) {
      time_batch(samples, [&](size_t) { return pages.unmap_next(); });
      continue;
    }
    time_batch(samples,
               [&](size_t i) { return ::madvise(pages.at(i), PagesApart::kPage, MADV_DONTNEED); });
    if (!measure.is_watched) continue;
    const uint64_t before = cache.added();
    count_misses(cache, pages);
    expect_all_made(cache, before, pages);
  }
  return latency_row(samples, 1);
}

Row time_act(OpenCache& cache, const Measure& measure, const Extent& extent) {
  switch (measure.act) {
    case Act::hit: return time_hits(cache, measure, extent);
    case Act::miss: return time_misses(cache, measure, extent);
    case Act::unmap:
    case Act::drop: return time_changes(cache, measure, extent);
  }
  throw Failure("no such act");
}

}  // namespace

const std::vector<Measure>& all_measures() {
  static const std::vector<Measure> measures = {
      {"cache_hit_lat", Act::hit, "acquire and release of the one page that is kept"},
      {"cache_hit_lat_many", Act::hit, "of a random one of 1,000 that are kept", kMany},
      {"cache_miss_lat", Act::miss, "of a new page, a mapping of its own"},
      {"cache_miss_lat_heap", Act::miss, "of a new page of a mapping of which others are kept", 1,
       true, PagesApart::Layout::one_mapping},
      {"cache_unmap_lat", Act::unmap, "munmap of a page that is kept"},
      {"cache_unmap_lat_unwatched", Act::unmap, "munmap of a page that the cache has not seen", 1,
       false},
      {"cache_drop_lat", Act::drop, "madvise(MADV_DONTNEED) of a page that is kept"},
      {"cache_drop_lat_unwatched", Act::drop, "of a page that the cache has not seen", 1, false},
  };
  return measures;
}

Row take_measure(const Measure& measure, const Subject& subject, Side& side, const Extent& extent,
                 int cpu) {
  if (side.rank != 0) return Row{};
  OpenCache cache(subject, cpu);
  if (!cache.keeps() && (measure.act == Act::hit || measure.act == Act::miss)) {
    throw Failure("there is no cache that could find anything or not");
  }
  Row row = time_act(cache, measure, extent);
  std::string who = cache.version();
  if (cache.keeps()) who += ", " + subject.monitor;
  row.note = row.note.empty() ? who : who + ", " + row.note;
  return row;
}

}  // namespace aperture::bench
