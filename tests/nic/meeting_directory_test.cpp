// Sockets in the directory of APERTURE_SHARE: who can come by them, and that nothing stays behind.
#include "nic/meeting_directory.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/forked.hpp"
#include "base/random.hpp"
#include "base/value_of.hpp"
#include "nic/identity.hpp"

namespace aperture::nic {
namespace {

namespace fs = std::filesystem;
using aperture::test::value_of;

constexpr wire::Id128 kBoot{1, 2, 3};

wire::Id128 random_id() {
  wire::Id128 id;
  random_bytes(id.data(), id.size());
  return id;
}

class Meeting : public testing::Test {
 protected:
  Meeting() {
    char path[] = "/tmp/aperture-meeting-XXXXXX";
    folder_ = ::mkdtemp(path);
  }
  ~Meeting() override { fs::remove_all(folder_); }

  std::shared_ptr<MeetingDirectory> open() const { return open(folder_); }
  static std::shared_ptr<MeetingDirectory> open(const fs::path& path) {
    auto opened = MeetingDirectory::open(path.c_str(), kBoot);
    EXPECT_TRUE(opened.ok()) << describe(opened.error());
    return *std::move(opened);
  }
  size_t files() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(folder_), fs::directory_iterator{}));
  }
  fs::path path_of(const wire::Id128& id) const {
    const auto name = wire::socket_name(id);
    return folder_ / std::string(name.data(), name.size());
  }
  // What a process has bound that was killed a minute ago, or that lives.
  ParentOnlyFd bound_long_ago(const fs::path& path) const {
    const UniqueFd at(::open(folder_.c_str(), O_PATH | O_CLOEXEC));
    ParentOnlyFd socket = value_of(listen_in(at.get(), path.filename().c_str()));
    make_old(path);
    return socket;
  }
  static void make_old(const fs::path& path) {
    const timespec long_ago{::time(nullptr) - 60, 0};
    const timespec times[2] = {long_ago, long_ago};
    EXPECT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW), 0);
  }

  fs::path folder_;
};

TEST_F(Meeting, two_meet_whose_paths_to_the_directory_differ) {
  const fs::path elsewhere = folder_.string() + "-link";
  fs::create_symlink(folder_, elsewhere);
  const auto one = open(), other = open(elsewhere);
  fs::remove(elsewhere);
  const wire::Id128 id = random_id();
  {
    const auto door = value_of(one->listen(id));
    struct stat st;
    ASSERT_EQ(::stat(path_of(id).c_str(), &st), 0);
    EXPECT_TRUE(S_ISSOCK(st.st_mode));
    EXPECT_EQ(st.st_mode & 07777, 0600u);
    const ParentOnlyFd came = value_of(other->connect(id));
    const ParentOnlyFd met = value_of(accept_one(door.socket.get()));
    ASSERT_TRUE(send_packet(came.get(), wire::encode_ring().view(), {}));
    Packet packet;
    ASSERT_TRUE(receive_packet(met.get(), packet));
    EXPECT_EQ(value_of(peer_credentials(met.get())).pid, ::getpid());
  }
  EXPECT_EQ(files(), 0u);
  EXPECT_EQ(other->connect(id).error(), Errc::io);
}

TEST_F(Meeting, a_tag_tells_the_same_directory_of_the_same_boot_from_others) {
  const auto one = open(), same = open();
  const wire::Id128 nonce = random_id();
  EXPECT_EQ(one->tag(nonce), same->tag(nonce));
  EXPECT_NE(one->tag(nonce), wire::KeyTag{});
  EXPECT_NE(one->tag(nonce), one->tag(random_id()));
  fs::create_directory(folder_ / "within");
  EXPECT_NE(open(folder_ / "within")->tag(nonce), one->tag(nonce));
  const auto another_boot = value_of(MeetingDirectory::open(folder_.c_str(), wire::Id128{9}));
  EXPECT_NE(another_boot->tag(nonce), one->tag(nonce));
}

TEST_F(Meeting, what_is_no_directory_is_refused) {
  const auto missing = (folder_ / "missing").string();
  EXPECT_EQ(MeetingDirectory::open(missing.c_str(), kBoot).error(), Errc::io);
  const auto file = (folder_ / "file").string();
  std::ofstream(file) << "no directory";
  EXPECT_FALSE(MeetingDirectory::open(file.c_str(), kBoot).ok());
}

TEST_F(Meeting, a_directory_that_is_gone_is_an_error_and_no_more) {
  const auto one = open();
  fs::remove(folder_);
  EXPECT_FALSE(one->listen(random_id()).ok());
  EXPECT_EQ(one->connect(random_id()).error(), Errc::io);
}

// Whoever may write in the directory may also put something there in place of a socket.
TEST_F(Meeting, what_is_no_socket_is_not_gone_to) {
  const auto one = open();
  const wire::Id128 id = random_id(), link = random_id(), file = random_id();
  const auto door = value_of(one->listen(id));
  fs::create_symlink(path_of(id), path_of(link));
  EXPECT_EQ(one->connect(link).error(), Errc::invalid);
  std::ofstream(path_of(file)) << "no socket";
  EXPECT_EQ(one->connect(file).error(), Errc::invalid);
  EXPECT_TRUE(one->connect(id).ok());
}

TEST_F(Meeting, a_name_that_is_taken_is_left_to_who_has_it) {
  const auto one = open();
  const wire::Id128 id = random_id();
  std::ofstream(path_of(id)) << "mine";
  EXPECT_EQ(one->listen(id).error(), Errc::addr_in_use);
  EXPECT_EQ(files(), 1u);
}

TEST_F(Meeting, another_users_socket_is_not_gone_to) {
  if (::geteuid() != 0) GTEST_SKIP() << "another user is root's to be";
  const auto one = open();
  const wire::Id128 id = random_id();
  const auto door = value_of(one->listen(id));
  fs::permissions(folder_, fs::perms::all);
  EXPECT_TRUE(test::holds_in_child([&] {
    if (::setresuid(4711, 4711, 4711) != 0) return false;
    const bool refused = one->connect(id).error() == Errc::access_denied;
    // also one that lets everybody in
    ::chmod(path_of(id).c_str(), 0666);
    return refused;
  }));
  ASSERT_EQ(::chmod(path_of(id).c_str(), 0666), 0);
  EXPECT_TRUE(test::holds_in_child([&] {
    return ::setresuid(4711, 4711, 4711) == 0 && one->connect(id).error() == Errc::access_denied;
  }));
}

TEST_F(Meeting, what_dead_processes_have_left_is_removed_and_nothing_else) {
  const wire::Id128 dead = random_id(), living = random_id(), file = random_id();
  bound_long_ago(path_of(dead)).reset();
  const ParentOnlyFd held = bound_long_ago(path_of(living));
  std::ofstream(path_of(file)) << "no socket";
  make_old(path_of(file));
  const fs::path foreign = folder_ / "another.socket";
  bound_long_ago(foreign).reset();
  fs::create_symlink(path_of(living), path_of(random_id()));
  {
    const auto opened = open();
    EXPECT_FALSE(fs::exists(path_of(dead)));
    EXPECT_TRUE(fs::exists(path_of(living)));
    EXPECT_TRUE(fs::exists(path_of(file)));
    EXPECT_TRUE(fs::exists(foreign));
    EXPECT_EQ(files(), 4u);
  }
  pollfd p{held.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&p, 1, 0), 0) << "nobody has knocked";
}

TEST_F(Meeting, what_has_just_been_bound_is_left_alone) {
  const wire::Id128 id = random_id();
  const UniqueFd at(::open(folder_.c_str(), O_PATH | O_CLOEXEC));
  value_of(listen_in(at.get(), path_of(id).filename().c_str())).reset();
  open();
  EXPECT_TRUE(fs::exists(path_of(id)));
}

TEST_F(Meeting, a_process_that_exits_takes_its_names_along_and_its_forked_child_does_not) {
  ::setenv("APERTURE_SHARE", folder_.c_str(), 1);
  const wire::Id128 id = random_id();
  EXPECT_EXIT(
      {
        const auto one = MeetingDirectory::by_setting(kBoot);
        auto door = value_of(one->listen(id));
        const pid_t child = ::fork();
        if (child == 0) std::exit(0);
        ::waitpid(child, nullptr, 0);
        const bool left_alone = fs::exists(path_of(id));
        std::exit(left_alone ? 7 : 8);
      },
      testing::ExitedWithCode(7), "");
  EXPECT_EQ(files(), 0u);
  ::unsetenv("APERTURE_SHARE");
  EXPECT_EQ(MeetingDirectory::by_setting(kBoot), nullptr);
}

}  // namespace
}  // namespace aperture::nic
