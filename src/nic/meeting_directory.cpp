// Sockets in a directory: see meeting_directory.hpp.
#include "nic/meeting_directory.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "base/fork.hpp"
#include "base/log.hpp"
#include "base/no_throw.hpp"
#include "base/settings.hpp"
#include "nic/proof.hpp"

namespace aperture::nic {

namespace {

constexpr const char* kVariable = "APERTURE_SHARE";
// Nobody waits at a name for half as long, and it was bound long ago.
constexpr time_t kStaleAfterSeconds = 10;
constexpr int kMostEntriesSwept = 4096;

struct FileName {
  char text[wire::kSocketNameBytes + 1] = {};
  explicit FileName(const wire::Id128& id) noexcept {
    const auto name = wire::socket_name(id);
    std::memcpy(text, name.data(), name.size());
  }
};

Result<Secret> which_directory(const wire::Id128& boot_id, const struct stat& st) noexcept {
  const uint64_t device = st.st_dev, number = st.st_ino;
  std::array<uint8_t, sizeof boot_id + sizeof device + sizeof number> bytes;
  std::memcpy(bytes.data(), boot_id.data(), sizeof boot_id);
  std::memcpy(bytes.data() + sizeof boot_id, &device, sizeof device);
  std::memcpy(bytes.data() + sizeof boot_id + sizeof device, &number, sizeof number);
  return Secret::copy_of(bytes);
}

// The one whose names are removed at exit, and the process that it is of: a forked child has its
// parent's, and leaves them alone.
std::atomic<MeetingDirectory*> left_at_exit{nullptr};
std::atomic<uint64_t> leaving_process{0};

}  // namespace

MeetingDirectory::Name& MeetingDirectory::Name::operator=(Name&& other) noexcept {
  if (this == &other) return *this;
  reset();
  directory_ = std::exchange(other.directory_, nullptr);
  id_ = other.id_;
  return *this;
}

void MeetingDirectory::Name::reset() noexcept {
  if (MeetingDirectory* const directory = std::exchange(directory_, nullptr)) {
    directory->remove(id_);
  }
}

// --- the directory -------------------------------------------------------------------------------

std::shared_ptr<MeetingDirectory> MeetingDirectory::by_setting(
    const wire::Id128& boot_id) noexcept {
  const char* const path = setting_text(kVariable);
  if (path == nullptr) return nullptr;
  auto opened = open(path, boot_id);
  if (!opened) {
    APERTURE_INFO(
        "%s=%s cannot be used (%s): processes of other network namespaces are reached over TCP",
        kVariable, path, describe(opened.error()));
    return nullptr;
  }
  // relaxed: the next store tells of it
  leaving_process.store(process_epoch(), std::memory_order_relaxed);
  // SYNC POINT: meeting-directory. Whoever exits sees the directory, and whose it is.
  left_at_exit.store(opened->get(), std::memory_order_release);
  return *std::move(opened);
}

Result<std::shared_ptr<MeetingDirectory>> MeetingDirectory::open(
    const char* path, const wire::Id128& boot_id) noexcept {
  UniqueFd fd = move_high(UniqueFd(::open(path, O_PATH | O_DIRECTORY | O_CLOEXEC)));
  struct stat st;
  if (!fd || ::fstat(fd.get(), &st) != 0) return errc_from_errno(errno);
  auto which = which_directory(boot_id, st);
  if (!which) return which.error();
  return no_throw([&]() -> Result<std::shared_ptr<MeetingDirectory>> {
    std::shared_ptr<MeetingDirectory> made(new MeetingDirectory(std::move(fd), *std::move(which)));
    made->sweep();
    return made;
  });
}

MeetingDirectory::MeetingDirectory(UniqueFd fd, Secret which) noexcept
    : fd_(std::move(fd)), which_(std::move(which)) {}

MeetingDirectory::~MeetingDirectory() {
  assert(names_.empty());
  MeetingDirectory* self = this;
  left_at_exit.compare_exchange_strong(self, nullptr);
}

wire::KeyTag MeetingDirectory::tag(const wire::Id128& nonce) const noexcept {
  return tag_of(&which_, nonce);
}

// --- names in it ---------------------------------------------------------------------------------

Result<MeetingDirectory::Door> MeetingDirectory::listen(const wire::Id128& name) noexcept {
  const std::lock_guard guard(mutex_);
  if (over_) return Errc::shut_down;
  assert(!names_.contains(name));  // nobody draws the same 128 bits again
  if (const Status noted = no_throw([&] { names_.insert(name); }); !noted) return noted.error();
  auto socket = listen_in(fd_.get(), FileName(name).text);
  if (socket) return Door{*std::move(socket), Name(*this, name)};
  names_.erase(name);
  return socket.error();
}

Result<ParentOnlyFd> MeetingDirectory::connect(const wire::Id128& name) const noexcept {
  return connect_in(fd_.get(), FileName(name).text);
}

void MeetingDirectory::remove(const wire::Id128& name) noexcept {
  const std::lock_guard guard(mutex_);
  assert(over_ || names_.contains(name));
  if (names_.erase(name) != 0) ::unlinkat(fd_.get(), FileName(name).text, 0);
}

void MeetingDirectory::at_exit() noexcept {
  // SYNC POINT: meeting-directory. Of the one that is seen, all that it was made with is.
  MeetingDirectory* const directory = left_at_exit.load(std::memory_order_acquire);
  // relaxed: it was stored before what has just been read
  const uint64_t whose = leaving_process.load(std::memory_order_relaxed);
  if (directory == nullptr || whose != process_epoch()) return;
  const std::lock_guard guard(directory->mutex_);
  directory->over_ = true;
  for (const wire::Id128& name : directory->names_) {
    ::unlinkat(directory->fd_.get(), FileName(name).text, 0);
  }
  directory->names_.clear();
}

// The control thread is there until the very end, and so is what it has not removed yet.
[[gnu::destructor]] void leave_meeting_directory() noexcept {
  MeetingDirectory::at_exit();
}

// --- what dead processes have left ---------------------------------------------------------------

void MeetingDirectory::sweep() const noexcept {
  const int fd = ::openat(fd_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const entries = fd < 0 ? nullptr : ::fdopendir(fd);
  if (entries == nullptr) {
    if (fd >= 0) ::close(fd);
    return;  // it may not be listed: others may
  }
  for (int i = 0; i < kMostEntriesSwept; ++i) {
    const dirent* const entry = ::readdir(entries);
    if (entry == nullptr) break;
    if (wire::is_socket_name(entry->d_name)) sweep(entry->d_name);
  }
  ::closedir(entries);
}

// Removes it if nobody has that socket any more. Names are never used again, so nobody else's can
// take its place meanwhile.
void MeetingDirectory::sweep(const char* name) const noexcept {
  const UniqueFd file(::openat(fd_.get(), name, O_PATH | O_NOFOLLOW | O_CLOEXEC));
  struct stat st;
  if (!file || ::fstat(file.get(), &st) != 0) return;
  const bool is_old = std::time(nullptr) - st.st_mtime >= kStaleAfterSeconds;
  if (!S_ISSOCK(st.st_mode) || st.st_uid != ::geteuid() || !is_old) return;
  if (is_socket_dead(file.get())) ::unlinkat(fd_.get(), name, 0);
}

void explain_not_met(const Address& whom, const char* why) noexcept {
  APERTURE_INFO(
      "%s is in another network namespace of this host, and connected over TCP: %s; memory is "
      "shared where both name a directory that both have mounted, and may write in, in "
      "APERTURE_SHARE",
      whom.print().c_str(), why != nullptr ? why : "APERTURE_SHARE is not set here");
}

}  // namespace aperture::nic
