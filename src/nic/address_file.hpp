// Addresses that processes of one user share under a name: fi_av(3), "name".
//
// A file in the user's own folder (base/runtime_folder.hpp), which nobody else can open. It is read
// and written with pread and pwrite and never mapped, so whatever another process does to it is at
// worst an answer that makes no sense, and each entry is looked at before it counts. Changes are
// made under a lock of the file that ends with its process. The first who opens the name begins
// with no entries, and the last who closes it removes the file; after a crash the next one does.
//
//   0        8         12      16           24      32          40
//   | magic  | version | count | generation | locks | rewritten | 0 ... 64, then `count` entries:
//   0                16     18     20
//   | IP, 16         | port | used | 0 ... 32
//
// generation: counts the changes. rewritten: what it was after the last change of an entry that was
// there before, so that who has seen that reads no more than the new ones. An index is given once,
// as long as there are fresh ones, since others may still hold one that was removed.
//
// Any thread calls lock(); one at a time calls the rest. Order: the lock, which may be waited for,
// then the engine's lock of whoever has the object.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "base/address.hpp"
#include "base/fork_guard.hpp"

namespace aperture::nic {

class AddressFile {
 public:
  enum class Access : uint8_t { read_write, read_only };
  static constexpr uint32_t kMostEntries = 1u << 20;
  static constexpr size_t kAtOnce = 128;  // entries

  // Told of what others have changed.
  class Changes {
   public:
    virtual ~Changes() = default;
    virtual Status on_inserted(uint64_t index, const Address& address) noexcept = 0;
    virtual void on_removed(uint64_t index) noexcept = 0;
    // What is known here at that index; null: nothing.
    virtual const Address* known(uint64_t index) const noexcept = 0;
  };

  // While it lives, nobody else changes the file: no other process, and no other thread. The thread
  // that took it lets go of it. Errors of lock(): timed_out (somebody else had it for two seconds),
  // io.
  class Lock {
   public:
    Lock(Lock&& other) noexcept : file_(std::exchange(other.file_, nullptr)) {}
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    friend class AddressFile;
    explicit Lock(AddressFile* file) noexcept : file_(file) {}
    AddressFile* file_;
  };

  // Creates it if it may be written; why: a sentence, where it cannot be opened. By exception
  // std::bad_alloc. Errors: no_entry (read_only, and nobody has it open), invalid (the name),
  // access_denied (what has that name is not this user's file), timed_out, no_fds, protocol (of
  // another version), io.
  static Result<std::unique_ptr<AddressFile>> open(const std::string& name, Access access,
                                                   std::string& why);
  ~AddressFile();
  AddressFile(const AddressFile&) = delete;
  AddressFile& operator=(const AddressFile&) = delete;

  bool is_read_only() const noexcept { return access_ == Access::read_only; }
  Result<Lock> lock() noexcept;
  // Tells what others have changed since the last time; without a lock what is being changed may be
  // missed, and is told the next time. Errors: io, protocol (it makes no sense any more),
  // no_memory.
  Status refresh(Changes& changes) noexcept;
  // As of the last refresh(): all indices that were given are below.
  uint32_t count() const noexcept { return seen_.count; }
  // With a lock, after refresh(). At `first` and those behind it, at most kAtOnce: all of them, or
  // none. Errors: no_space, io, protocol (somebody changes it without the lock).
  Status put(const Lock& lock, uint64_t first, std::span<const Address> addresses) noexcept;
  // Errors: io, protocol; some may be gone then, which the next refresh() tells.
  Status erase(const Lock& lock, std::span<const uint64_t> indices) noexcept;

 private:
  struct Head;
  struct Entry;
  struct Seen {  // of the head, the last time
    uint64_t generation = 0;
    uint32_t count = 0;
  };

  AddressFile(std::string path, Access access, ParentOnlyFd fd) noexcept
      : path_(std::move(path)), access_(access), fd_(std::move(fd)) {}
  static Result<std::unique_ptr<AddressFile>> try_open(const std::string& path, Access access,
                                                       std::string& why);
  Status enter(std::string& why) noexcept;
  Status read_head(Head& head) const noexcept;
  Status head_to_change(Head& head) const noexcept;
  Status tell(Changes& changes, uint32_t first, const Head& head) const noexcept;
  Status commit(Head& head, bool rewrites) noexcept;

  const std::string path_;
  const Access access_;
  ParentOnlyFd fd_;
  std::mutex changing_;  // held with the file's lock, which is the same for all threads
  Seen seen_;
};

}  // namespace aperture::nic
