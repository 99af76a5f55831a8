// Address vectors with a name as the tests share them: this process and others of the same user.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <unistd.h>

#include <filesystem>

#include "doors/called.hpp"
#include "doors/contexts.hpp"

namespace aperture::doors {

inline constexpr const char* kName = "of all/..";
inline constexpr uint64_t kCaps = FI_MSG | FI_TAGGED | FI_SOURCE | FI_SHARED_AV;
// Of the file behind the name, as docs and src have it: how many addresses it may hold, and where
// its words lie.
inline constexpr uint32_t kMostEntries = 1u << 20;
inline constexpr off_t kCountAt = 12, kGenerationAt = 16, kChangesByte = 25, kRewrittenAt = 32,
                       kEntriesAt = 64;

inline HubOptions named(uint64_t flags = 0, uint64_t more_caps = 0) {
  return {.caps = kCaps | more_caps, .av_flags = flags, .av_name = kName};
}

// A process that shares the vector, or a part of this one.
class Sharer {
 public:
  bool polls() const { return hub_ != nullptr; }

  Name open(uint64_t flags) {
    hub_ = std::make_unique<Hub>(named(flags));
    ep_ = hub_->enabled(nullptr);
    return name_of(&ep_->fid);
  }
  fi_addr_t insert(const Name& name) { return hub_->insert(name); }
  int64_t remove(fi_addr_t addr) { return fi_av_remove(hub_->av(), &addr, 1, 0); }
  Name look_up(fi_addr_t addr) {
    std::vector<uint8_t> bytes(256);
    size_t len = bytes.size();
    DOOR(fi_av_lookup(hub_->av(), addr, bytes.data(), &len));
    bytes.resize(len);
    return bytes;
  }
  fi_addr_t mapped(uint64_t index) { return hub_->map()[index]; }
  int64_t send(fi_addr_t to, uint64_t word) {
    Op op;
    const int64_t posted = post(fi_send, ep_.get(), &word, 8, nullptr, to, &op);
    return posted != 0 ? posted : hub_->wait(&op).err;
  }
  // Inserts the ports from `first` on.
  void insert_many(uint64_t first, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) hub_->insert(at_port(first + i));
  }
  static std::vector<uint8_t> at_port(uint64_t port) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(static_cast<uint16_t>(port));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const auto* bytes = reinterpret_cast<const uint8_t*>(&at);
    return {bytes, bytes + sizeof at};
  }

 private:
  std::unique_ptr<Hub> hub_;
  Fid<fid_ep> ep_;
};

class RemoteSharer : public Called<Sharer> {
 public:
  RemoteSharer() : Called("sharer", {}) {}
  std::vector<uint8_t> open(uint64_t flags = 0) { return call<&Sharer::open>(flags); }
  fi_addr_t insert(const Name& name) { return call<&Sharer::insert>(name); }
  int64_t remove(fi_addr_t addr) { return call<&Sharer::remove>(addr); }
  std::vector<uint8_t> look_up(fi_addr_t addr) { return call<&Sharer::look_up>(addr); }
  fi_addr_t mapped(uint64_t index) { return call<&Sharer::mapped>(index); }
  int64_t send(fi_addr_t to, uint64_t word) { return call<&Sharer::send>(to, word); }
  // finish() waits for its end.
  void begin_inserting(uint64_t first, uint64_t n) { begin<&Sharer::insert_many>(first, n); }
};

// The file behind the name, with that runtime folder; empty: there is none.
inline std::string file_in(const std::string& folder) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) return entry.path();
  }
  return {};
}

// With a runtime folder of the test's own.
class SharedAv : public testing::Test {
 protected:
  SharedAv() {
    char folder[] = "/tmp/aperture-test-XXXXXX";
    EXPECT_NE(::mkdtemp(folder), nullptr);
    folder_ = folder;
    ::setenv("XDG_RUNTIME_DIR", folder, 1);
  }
  ~SharedAv() override {
    ::unsetenv("XDG_RUNTIME_DIR");
    std::filesystem::remove_all(folder_);
  }
  std::string file() const { return file_in(folder_); }
  std::string folder_;
};

struct Opened {
  explicit Opened(uint64_t flags = 0) : Opened(named(flags)) {}
  explicit Opened(const HubOptions& options) : hub(options), ep(hub.enabled(nullptr)) {}
  std::vector<uint8_t> name() { return name_of(&ep->fid); }
  Completion receive(fi_addr_t from = FI_ADDR_UNSPEC) {
    Op op;
    uint64_t box = 0;
    EXPECT_EQ(fi_recv(ep.get(), &box, 8, nullptr, from, &op), 0);
    return hub.wait(&op);
  }
  std::vector<uint8_t> look_up(fi_addr_t addr) {
    std::vector<uint8_t> bytes(256);
    size_t len = bytes.size();
    code = fi_av_lookup(hub.av(), addr, bytes.data(), &len);
    bytes.resize(code == 0 ? len : 0);
    return bytes;
  }
  Hub hub;
  Fid<fid_ep> ep;
  int code = 0;
};

// Whatever somebody does to the file.
inline void overwrite(const std::string& path, off_t at, const void* bytes, size_t size) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(::pwrite(fd, bytes, size, at), static_cast<ssize_t>(size));
  ::close(fd);
}

}  // namespace aperture::doors
