// revoke_lat and revoke_stopped_lat: fi_close of a region into which the peer writes without pause.
//
// Here rank 0 owns the memory, and rank 1 writes. Between its registration and its close the owner
// makes no call into the provider: bytes that arrive were written by the peer directly. Each
// close comes at a random moment after the first of them, and is believed only as far as it is
// seen to hold: nothing may change in the memory after it, until the writer has had its refusal.
#include "fabbench/revoking.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <random>

#include "fabbench/messenger.hpp"
#include "harness/contents.hpp"
#include "stopwatch/failure.hpp"
#include "stopwatch/pages.hpp"

namespace aperture::bench {

namespace {

constexpr uint64_t kLongestMomentNs = 20'000;  // from the first write that is seen to the close
constexpr char kFirstWrite[] =
    "the first write of the peer (the target makes no call: the provider does not write by itself)";

// Stops a process, and lets it go on whatever happens meanwhile.
class Stopped {
 public:
  Stopped(pid_t pid, int stat_fd) : pid_(pid) {
    if (::kill(pid, SIGSTOP) != 0) throw Failure("kill: %s", std::strerror(errno));
    Patience patience("the peer to be stopped");
    while (!is_stopped(stat_fd)) patience.tick();
  }
  ~Stopped() { ::kill(pid_, SIGCONT); }
  Stopped(const Stopped&) = delete;
  Stopped& operator=(const Stopped&) = delete;

 private:
  static bool is_stopped(int stat_fd) {
    char text[256];
    const ssize_t n = ::pread(stat_fd, text, sizeof text - 1, 0);
    if (n <= 0) throw Failure("the peer's /proc/PID/stat cannot be read");
    text[n] = '\0';
    const char* const name_end = std::strrchr(text, ')');
    return name_end != nullptr && name_end[1] == ' ' && name_end[2] == 'T';
  }

  const pid_t pid_;
};

class Revoking final : public FabricTask {
 public:
  Revoking(const Setup& setup, Side& side, size_t size_bytes, Writer writer)
      : FabricTask(setup, side),
        channel_(side.channel),
        stopped_(writer == Writer::stopped),
        size_(size_bytes),
        memory_(size_bytes, Pages::Kind::own),
        local_(session_.register_local(memory_.data(), size_bytes)) {
    if (setup.provider != "aperture") {
      throw Failure(
          "skipped: it is Aperture alone that promises that nothing lands after fi_close");
    }
    if (rank_ == 1) {
      channel_.send_word(static_cast<uint64_t>(::getpid()));
      return;
    }
    writer_ = static_cast<pid_t>(channel_.receive_word());
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%d/stat", static_cast<int>(writer_));
    stat_ = UniqueFd(::open(path, O_RDONLY | O_CLOEXEC));
    if (stopped_ && !stat_) throw Failure("%s: %s", path, std::strerror(errno));
  }

  // The target polls here: the endpoints may meet.
  void verify(uint64_t seed, Channel& channel) override {
    if (rank_ == 1) {
      const RemoteRegion theirs = await_region();
      fill_pattern(memory_.data(), size_, seed);
      write(theirs);
      session_.await_tx("the completion of a write");
      channel.send_word(0);
      return;
    }
    std::memset(memory_.data(), 0, size_);
    const Region region = session_.register_target(memory_.data(), size_);
    tell(region);
    await_word(channel);
    expect_pattern(memory_.data(), size_, seed);
  }

  void initiate(uint64_t count, Samples& samples) override {
    for (uint64_t i = 0; i < count; i++) samples.add(revoke_once());
  }

  void respond(uint64_t count) override {
    for (uint64_t i = 0; i < count; i++) {
      const RemoteRegion theirs = await_region();
      int refusal = 0;
      while (refusal == 0) {
        stamp(++stamp_);
        write(theirs);
        refusal = session_.await_tx_or_error("a write, or its refusal");
      }
      if (refusal != FI_EACCES && refusal != FI_EKEYREJECTED && refusal != FI_ENOKEY) {
        throw Failure("a write was refused with %s (%d)", fi_strerror(refusal), refusal);
      }
      channel_.send_word(0);
    }
  }

  std::string note() const override {
    return std::string("fi_close under a writing peer") +
           (stopped_ ? ", stopped before it, " : ", ") + session_.registration_text();
  }

 private:
  // Ticks that one close took.
  uint64_t revoke_once() {
    std::memset(memory_.data(), 0, size_);
    Region region = session_.register_target(memory_.data(), size_);
    tell(region);
    Patience patience(kFirstWrite);
    while (word(0) == 0) patience.tick();
    const uint64_t moment = ticks() + ticks_from_ns(random_() % kLongestMomentNs);
    while (ticks() < moment) continue;
    const uint64_t took = stopped_ ? close_stopped(region) : close(region);
    const uint64_t first = word(0), last = word(size_ / sizeof(uint64_t) - 1);
    channel_.receive_word();  // the writer has been refused: whatever could land has landed
    if (word(0) != first || word(size_ / sizeof(uint64_t) - 1) != last) {
      throw Failure("a write landed after fi_close");
    }
    return took;
  }

  uint64_t close_stopped(Region& region) {
    const Stopped stopped(writer_, stat_.get());
    return close(region);
  }

  static uint64_t close(Region& region) {
    const uint64_t start = ticks();
    const int ret = fi_close(&region.mr.release()->fid);
    const uint64_t took = ticks() - start;
    check("fi_close", ret);
    return took;
  }

  void tell(const Region& region) {
    const RemoteRegion mine = session_.remote_of(region, memory_.data());
    channel_.send(&mine, sizeof mine);
  }

  RemoteRegion await_region() { return await_whole<RemoteRegion>(channel_, "region"); }

  void write(const RemoteRegion& theirs) {
    session_.post("room to write", [&] {
      return fi_write(session_.ep(), memory_.data(), size_, local_.desc, session_.peer(),
                      theirs.base, theirs.key, &slot_.context);
    });
  }

  // The first and the last word of the memory; another process writes them.
  uint64_t word(size_t index) const noexcept {
    auto* words = reinterpret_cast<uint64_t*>(memory_.data());
    return std::atomic_ref(words[index]).load(std::memory_order_acquire);
  }
  void stamp(uint64_t value) noexcept { stamp_ends(memory_.data(), size_, value); }

  Channel& channel_;
  const bool stopped_;
  const size_t size_;
  Pages memory_;
  Slot slot_{};
  Region local_;
  uint64_t stamp_ = 0;         // rank 1
  pid_t writer_ = -1;          // rank 0
  UniqueFd stat_;              // rank 0: of the writer
  std::mt19937_64 random_{7};  // rank 0
};

}  // namespace

std::unique_ptr<FabricTask> make_revoking(const Setup& setup, Side& side, size_t size_bytes,
                                          Writer writer) {
  return std::make_unique<Revoking>(setup, side, size_bytes, writer);
}

}  // namespace aperture::bench
