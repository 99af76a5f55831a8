// Address vectors with a name, which processes share: fi_av(3), "name", "map_addr", FI_READ.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "doors/called.hpp"
#include "doors/contexts.hpp"

namespace aperture::doors {
namespace {

constexpr const char* kName = "of all/..";
constexpr uint64_t kCaps = FI_MSG | FI_TAGGED | FI_SOURCE | FI_SHARED_AV;

HubOptions named(uint64_t flags = 0) {
  return {.caps = kCaps, .av_flags = flags, .av_name = kName};
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
  // The file behind the name; empty: there is none.
  std::string file() const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
      if (entry.is_regular_file()) return entry.path();
    }
    return {};
  }
  std::string folder_;
};

struct Opened {
  explicit Opened(uint64_t flags = 0) : hub(named(flags)), ep(hub.enabled(nullptr)) {}
  std::vector<uint8_t> name() { return name_of(&ep->fid); }
  Completion receive() {
    Op op;
    uint64_t box = 0;
    EXPECT_EQ(fi_recv(ep.get(), &box, 8, nullptr, FI_ADDR_UNSPEC, &op), 0);
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

TEST_F(SharedAv, what_one_process_inserts_another_sends_to) {
  Opened here;
  const fi_addr_t self = here.hub.insert(here.name());
  EXPECT_EQ(self, 0u);
  RemoteSharer reader;
  reader.open(FI_READ);
  EXPECT_EQ(reader.mapped(self), self);
  EXPECT_EQ(reader.look_up(self), here.name());
  EXPECT_EQ(reader.send(reader.mapped(self), 1), 0);
  EXPECT_EQ(here.receive().err, 0);
}

TEST_F(SharedAv, what_is_inserted_later_is_found_too_and_what_is_removed_is_not) {
  RemoteSharer other;
  const auto theirs = other.open();
  Opened here(FI_READ);
  const fi_addr_t there = other.insert(theirs);
  const fi_addr_t me = other.insert(here.name());
  EXPECT_EQ(here.look_up(there), theirs);
  EXPECT_EQ(other.send(me, 1), 0);
  EXPECT_EQ(here.receive().source, there);
  EXPECT_EQ(other.remove(there), 0);
  EXPECT_EQ(here.look_up(there).size(), 0u);
  EXPECT_EQ(here.code, -FI_EINVAL);
  EXPECT_EQ(other.insert(here.name()), there) << "the lowest index that is free";
}

TEST_F(SharedAv, a_source_that_another_process_inserts_is_reported_from_then_on) {
  Opened here;
  RemoteSharer other;
  const auto theirs = other.open();
  const fi_addr_t me = other.insert(here.name());
  EXPECT_EQ(other.send(me, 1), 0);
  EXPECT_EQ(here.receive().source, FI_ADDR_NOTAVAIL);
  const fi_addr_t there = other.insert(theirs);
  EXPECT_EQ(other.send(me, 2), 0);
  EXPECT_EQ(here.receive().source, there);
}

TEST_F(SharedAv, processes_that_insert_at_once_agree) {
  constexpr uint64_t kEach = 150;
  Opened here;
  RemoteSharer other;
  other.open();
  other.begin_inserting(20000, kEach);
  for (uint64_t i = 0; i < kEach; ++i) here.hub.insert(Sharer::at_port(10000 + i));
  other.finish();
  std::vector<std::vector<uint8_t>> seen;
  for (fi_addr_t i = 0; i < 2 * kEach; ++i) {
    seen.push_back(here.look_up(i));
    EXPECT_EQ(seen.back(), other.look_up(i));
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::unique(seen.begin(), seen.end()), seen.end()) << "each once";
}

TEST_F(SharedAv, is_written_by_those_who_opened_it_to_write) {
  fi_av_attr attr{.type = FI_AV_TABLE, .name = kName, .flags = FI_READ};
  Hub hub({.caps = kCaps});
  EXPECT_EQ(code_of(fi_av_open, hub.domain(), &attr), -FI_ENOENT) << "it must exist";
  Opened writer;
  fi_addr_t addr = writer.hub.insert(writer.name());
  Opened reader(FI_READ);
  const auto name = reader.name();
  EXPECT_EQ(fi_av_insert(reader.hub.av(), name.data(), 1, &addr, 0, nullptr), -FI_EACCES);
  EXPECT_EQ(fi_av_remove(reader.hub.av(), &addr, 1, 0), -FI_EACCES);
  EXPECT_EQ(fi_av_remove(writer.hub.av(), &addr, 1, 0), 0);
  EXPECT_EQ(fi_av_remove(writer.hub.av(), &addr, 1, 0), -FI_EINVAL);
  addr = 5;
  EXPECT_EQ(fi_av_insert(writer.hub.av(), name.data(), 1, &addr, FI_AV_USER_ID, nullptr),
            -FI_EINVAL)
      << "no user ids";
  attr.name = "";
  attr.flags = 0;
  EXPECT_EQ(code_of(fi_av_open, hub.domain(), &attr), -FI_EINVAL);
  const std::string long_name(300, 'x');
  attr.name = long_name.c_str();
  EXPECT_EQ(code_of(fi_av_open, hub.domain(), &attr), -FI_EINVAL);
}

TEST_F(SharedAv, goes_with_its_last_user_in_whatever_order_they_close) {
  auto first = std::make_unique<Opened>();
  first->hub.insert(first->name());
  auto second = std::make_unique<Opened>();
  EXPECT_NE(file(), "");
  first.reset();
  EXPECT_EQ(second->look_up(0).size(), sizeof(sockaddr_in));
  auto reader = std::make_unique<Opened>(FI_READ);
  second.reset();
  EXPECT_EQ(reader->look_up(0).size(), sizeof(sockaddr_in));
  reader.reset();
  EXPECT_EQ(file(), "");
  Opened anew;
  EXPECT_EQ(anew.look_up(0).size(), 0u);
}

TEST_F(SharedAv, of_processes_that_were_killed_begins_anew) {
  {
    RemoteSharer killed;
    killed.insert(killed.open());
  }  // it was killed
  EXPECT_NE(file(), "");
  Hub hub({.caps = kCaps});
  fi_av_attr attr{.type = FI_AV_TABLE, .name = kName, .flags = FI_READ};
  EXPECT_EQ(code_of(fi_av_open, hub.domain(), &attr), -FI_ENOENT) << "nobody has it open";
  Opened here;
  EXPECT_EQ(here.look_up(0).size(), 0u);
}

TEST_F(SharedAv, a_forked_child_does_not_end_it) {
  Opened here;
  here.hub.insert(here.name());
  const pid_t child = ::fork();
  if (child == 0) {
    const bool so = fi_close(&here.hub.av()->fid) == 0 && !file().empty();
    ::_exit(so ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  Opened reader(FI_READ);
  EXPECT_EQ(reader.look_up(0), here.name());
}

// --- whatever somebody does to the file ----------------------------------------------------------

void overwrite(const std::string& path, off_t at, const void* bytes, size_t size) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(::pwrite(fd, bytes, size, at), static_cast<ssize_t>(size));
  ::close(fd);
}

TEST_F(SharedAv, entries_that_make_no_sense_are_not_there) {
  Opened here;
  here.hub.insert(here.name());
  const uint64_t generation = 1000;
  const uint32_t count = 1000;  // more than the file holds
  std::vector<uint8_t> rubbish(32 * 3, 0xee);
  overwrite(file(), 64, rubbish.data(), rubbish.size());
  overwrite(file(), 12, &count, sizeof count);
  overwrite(file(), 16, &generation, sizeof generation);
  for (const fi_addr_t addr : {0, 1, 2, 500}) EXPECT_EQ(here.look_up(addr).size(), 0u);
  uint64_t word = 0;
  EXPECT_EQ(fi_send(here.ep.get(), &word, 8, nullptr, 1, nullptr), -FI_EINVAL);
  EXPECT_EQ(here.hub.insert(here.name()), 0u) << "and it works on";
}

TEST_F(SharedAv, a_file_without_its_head_is_refused_and_harms_nobody) {
  Opened here;
  here.hub.insert(here.name());
  for (const uint32_t count : {uint32_t{0xffff'ffff}, (1u << 20) + 1}) {
    overwrite(file(), 12, &count, sizeof count);
    const auto name = here.name();
    fi_addr_t addr = 7;
    EXPECT_EQ(fi_av_insert(here.hub.av(), name.data(), 1, &addr, 0, nullptr), 0);
    EXPECT_EQ(addr, FI_ADDR_NOTAVAIL);
  }
  ASSERT_EQ(::truncate(file().c_str(), 10), 0);
  EXPECT_EQ(here.look_up(0), here.name()) << "what was known is";
  fi_av_attr attr{.type = FI_AV_TABLE, .name = kName};
  EXPECT_LT(code_of(fi_av_open, here.hub.domain(), &attr), 0);
}

TEST_F(SharedAv, what_is_not_the_users_own_file_is_not_opened) {
  std::string path;
  {
    Opened here;
    path = file();
  }
  Hub hub({.caps = kCaps});
  fi_av_attr attr{.type = FI_AV_TABLE, .name = kName};
  ASSERT_EQ(::symlink("/etc/passwd", path.c_str()), 0);
  EXPECT_EQ(code_of(fi_av_open, hub.domain(), &attr), -FI_EACCES);
  ASSERT_EQ(::unlink(path.c_str()), 0);
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(::fchmod(fd, 0666), 0) << "others may write it";
  ::close(fd);
  EXPECT_EQ(code_of(fi_av_open, hub.domain(), &attr), -FI_EACCES);
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  EXPECT_EQ(code_of(fi_av_open, hub.domain(), &attr), 0);
}

}  // namespace

DOOR_ROLE(sharer) {
  Sharer sharer;
  return serve_calls(control, &sharer, [&] { return sharer.polls(); });
}

}  // namespace aperture::doors
