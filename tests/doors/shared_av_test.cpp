// Address vectors with a name, which processes share: fi_av(3), "name", "map_addr", FI_READ.
#include "doors/shared_av.hpp"

#include <rdma/fi_collective.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <thread>

namespace aperture::doors {
namespace {

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
  EXPECT_EQ(other.insert(here.name()), me + 1) << "no index that others may still hold";
}

TEST_F(SharedAv, an_index_that_was_removed_never_means_another_endpoint_to_who_still_holds_it) {
  RemoteSharer before, after, inserter;
  const auto first = before.open();
  const auto second = after.open();
  inserter.open();
  Opened here;
  const fi_addr_t held = inserter.insert(first);
  uint64_t word = 0;
  Op op;
  ASSERT_EQ(post(fi_send, here.ep.get(), &word, 8, nullptr, held, &op), 0);
  EXPECT_EQ(here.hub.wait(&op).err, 0);
  ASSERT_EQ(inserter.remove(held), 0);
  const fi_addr_t anew = inserter.insert(second);
  EXPECT_NE(anew, held);
  EXPECT_EQ(here.look_up(anew), second);
  EXPECT_EQ(fi_send(here.ep.get(), &word, 8, nullptr, held, &op), -FI_EINVAL) << "it is gone";
}

TEST_F(SharedAv, where_all_indices_were_given_the_free_ones_are_used_again) {
  Opened here;
  const auto name = here.name();
  EXPECT_EQ(here.hub.insert(name), 0u);
  fi_addr_t removed = here.hub.insert(name);
  ASSERT_EQ(removed, 1u);
  here.hub.insert(name);
  ASSERT_EQ(fi_av_remove(here.hub.av(), &removed, 1, 0), 0);
  const uint64_t generation = 1000;
  overwrite(file(), kCountAt, &kMostEntries, sizeof kMostEntries);
  overwrite(file(), kGenerationAt, &generation, sizeof generation);
  EXPECT_EQ(here.hub.insert(name), removed);
  EXPECT_EQ(here.hub.insert(name), 3u);
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

TEST_F(SharedAv, processes_and_threads_that_insert_at_once_agree) {
  constexpr uint64_t kEach = 150;
  Opened here;
  RemoteSharer other;
  other.open();
  other.begin_inserting(20000, kEach);
  const auto insert_from = [&](uint64_t first) {
    for (uint64_t i = 0; i < kEach; ++i) here.hub.insert(Sharer::at_port(first + i));
  };
  std::thread beside([&] { insert_from(15000); });
  insert_from(10000);
  beside.join();
  other.finish();
  std::vector<std::vector<uint8_t>> seen;
  for (fi_addr_t i = 0; i < 3 * kEach; ++i) {
    seen.push_back(here.look_up(i));
    EXPECT_EQ(seen.back(), other.look_up(i));
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::unique(seen.begin(), seen.end()), seen.end()) << "each once";
}

// --- whoever has it, and of whatever kind --------------------------------------------------------

constexpr uint64_t kDgramCaps = FI_MSG | FI_SOURCE;

HubOptions named_datagrams() {
  return {.caps = kDgramCaps, .av_name = kName, .type = FI_EP_DGRAM};
}

TEST_F(SharedAv, datagrams_go_to_what_another_process_has_inserted) {
  RemoteSharer other;
  other.open();
  Opened from(named_datagrams());
  Opened to(HubOptions{.caps = kDgramCaps, .type = FI_EP_DGRAM});
  const fi_addr_t there = other.insert(to.name());
  uint64_t word = 0;
  Op sent, received;
  ASSERT_EQ(fi_recv(to.ep.get(), &word, 8, nullptr, FI_ADDR_UNSPEC, &received), 0);
  ASSERT_EQ(fi_send(from.ep.get(), &word, 8, nullptr, there, &sent), 0);
  EXPECT_EQ(to.hub.wait(&received).err, 0);
  EXPECT_EQ(fi_send(from.ep.get(), &word, 8, nullptr, there + 1, &sent), -FI_EINVAL);
}

TEST_F(SharedAv, the_source_of_a_datagram_is_what_another_process_has_inserted) {
  RemoteSharer other;
  other.open();
  Opened to(named_datagrams());
  Opened from(HubOptions{.caps = kDgramCaps, .type = FI_EP_DGRAM});
  const fi_addr_t at = from.hub.insert(to.name());
  const auto source = [&] {
    uint64_t word = 0, box = 0;
    Op sent, received;
    EXPECT_EQ(fi_recv(to.ep.get(), &box, 8, nullptr, FI_ADDR_UNSPEC, &received), 0);
    EXPECT_EQ(fi_send(from.ep.get(), &word, 8, nullptr, at, &sent), 0);
    return to.hub.wait(&received).source;
  };
  EXPECT_EQ(source(), FI_ADDR_NOTAVAIL);
  const fi_addr_t known = other.insert(from.name());
  EXPECT_EQ(source(), known);
}

TEST_F(SharedAv, sets_are_of_what_other_processes_have_inserted_too) {
  RemoteSharer other;
  const auto theirs = other.open();
  Opened here;
  fi_av_set_attr none{.start_addr = FI_ADDR_NOTAVAIL, .end_addr = FI_ADDR_NOTAVAIL};
  fi_av_set_attr all{
      .start_addr = FI_ADDR_NOTAVAIL, .end_addr = FI_ADDR_NOTAVAIL, .flags = FI_UNIVERSE};
  Fid<fid_av_set> by_one = DOOR_MADE(fi_av_set, here.hub.av(), &none);
  const fi_addr_t there = other.insert(theirs);
  EXPECT_EQ(fi_av_set_insert(by_one.get(), there), 0);
  const fi_addr_t later = other.insert(here.name());
  Fid<fid_av_set> whole = DOOR_MADE(fi_av_set, here.hub.av(), &all);
  EXPECT_EQ(fi_av_set_insert(whole.get(), later), -FI_EINVAL) << "it is there already";
  EXPECT_EQ(fi_av_set_insert(whole.get(), later + 1), -FI_EINVAL) << "it is in no vector";
  EXPECT_EQ(fi_av_set_remove(whole.get(), later), 0);
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

TEST_F(SharedAv, entries_that_make_no_sense_are_not_there) {
  Opened here;
  here.hub.insert(here.name());
  const uint64_t generation = 1000;
  const uint32_t count = 1000;  // more than the file holds
  std::vector<uint8_t> rubbish(32 * 3, 0xee);
  overwrite(file(), kEntriesAt, rubbish.data(), rubbish.size());
  overwrite(file(), kCountAt, &count, sizeof count);
  for (const off_t at : {kGenerationAt, kRewrittenAt})
    overwrite(file(), at, &generation, sizeof generation);
  for (const fi_addr_t addr : {0, 1, 2, 500}) EXPECT_EQ(here.look_up(addr).size(), 0u);
  uint64_t word = 0;
  EXPECT_EQ(fi_send(here.ep.get(), &word, 8, nullptr, 1, nullptr), -FI_EINVAL);
  EXPECT_EQ(here.hub.insert(here.name()), count) << "and it works on";
}

TEST_F(SharedAv, a_file_without_its_head_is_refused_and_harms_nobody) {
  Opened here;
  here.hub.insert(here.name());
  for (const uint32_t count : {uint32_t{0xffff'ffff}, kMostEntries + 1}) {
    overwrite(file(), kCountAt, &count, sizeof count);
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
