// The directory in which processes of one host meet that are in different network namespaces: what
// APERTURE_SHARE names, and the containers of both have mounted.
//
// Abstract socket names end with the network namespace, so whoever is offered shared memory from
// another one is told the name of a socket in this directory. It is a file there for as long as
// nobody has come by it, 5 s at most: made for this user alone (mode 0600), under 128 fresh random
// bits, removed by whoever listens at it when one has joined, when its time is up, or when its
// process exits. What a process that was killed has left is removed by the next that opens the
// directory.
//
// The directory is opened once, and all names are looked up in what was opened: it may be mounted
// at another path in each container, and who renames what leads to it changes nothing. Others that
// may write in it can remove what is ours, which costs shared memory and nothing else. Calls are
// the control thread's, but for the sweep at the beginning and the one at exit, which any thread
// may be the one to do.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "base/fd.hpp"
#include "base/secret.hpp"
#include "nic/sockets.hpp"

namespace aperture::nic {

class MeetingDirectory {
 public:
  // A name in the directory, until it ends.
  class Name {
   public:
    Name() noexcept = default;
    Name(Name&& other) noexcept
        : directory_(std::exchange(other.directory_, nullptr)), id_(other.id_) {}
    Name& operator=(Name&& other) noexcept;
    ~Name() { reset(); }
    void reset() noexcept;

   private:
    friend class MeetingDirectory;
    Name(MeetingDirectory& directory, const wire::Id128& id) noexcept
        : directory_(&directory), id_(id) {}
    MeetingDirectory* directory_ = nullptr;  // null: none
    wire::Id128 id_{};
  };
  struct Door {
    ParentOnlyFd socket;
    Name name;
  };

  // The one that APERTURE_SHARE names; null where it is unset, or cannot be used, which is said.
  static std::shared_ptr<MeetingDirectory> by_setting(const wire::Id128& boot_id) noexcept;
  // Opens it, and removes what dead processes have left there. Errors: access_denied, no_fds,
  // no_memory, io (there is no such directory).
  static Result<std::shared_ptr<MeetingDirectory>> open(const char* path,
                                                        const wire::Id128& boot_id) noexcept;
  ~MeetingDirectory();
  MeetingDirectory(const MeetingDirectory&) = delete;
  MeetingDirectory& operator=(const MeetingDirectory&) = delete;

  // Which directory it is, to whoever has the same one of the same host. That is a hint, which
  // keeps those apart who would look for each other in vain: it proves nothing.
  wire::KeyTag tag(const wire::Id128& nonce) const noexcept;

  // Listens there under that name, which lives as long as Door::name, and we longer. Errors:
  // access_denied, no_space, no_fds, no_memory, io...
  Result<Door> listen(const wire::Id128& name) noexcept;
  // To who listens there under that name. Errors: io (there is no such name), invalid (it is no
  // socket), access_denied (it is not for our user), refused, again (its queue is full), no_fds...
  Result<ParentOnlyFd> connect(const wire::Id128& name) const noexcept;

 private:
  MeetingDirectory(UniqueFd fd, Secret which) noexcept;
  static void at_exit() noexcept;
  friend void leave_meeting_directory() noexcept;

  void remove(const wire::Id128& name) noexcept;
  void sweep() const noexcept;
  void sweep(const char* name) const noexcept;

  const UniqueFd fd_;   // O_PATH
  const Secret which_;  // its device and number, and the boot
  std::mutex mutex_;    // of what follows, and held while names are made and removed
  std::set<wire::Id128> names_;
  bool over_ = false;  // the process exits: nothing is made any more
};

// Says at info why no memory is shared with an endpoint of this host; null: we have no directory.
void explain_not_met(const Address& whom, const char* why) noexcept;

}  // namespace aperture::nic
