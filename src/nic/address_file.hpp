// Addresses that processes of one user share under a name: fi_av(3), "name".
//
// A file in the user's own folder (base/runtime_folder.hpp), which nobody else can open. It is read
// and written with pread and pwrite and never mapped, so whatever another process does to it is at
// worst an answer that makes no sense, and each entry is looked at before it counts. Changes are
// made under a lock of the file that ends with its process. The first who opens the name begins
// with no entries, and the last who closes it removes the file; after a crash the next one does.
//
//   0        8         12      16           24
//   | magic  | version | count | generation | 0 ... 64, then `count` entries:
//   0                16     18     20
//   | IP, 16         | port | used | 0 ... 32
//
// One thread at a time calls an object.
#pragma once

#include <memory>
#include <string>

#include "base/address.hpp"
#include "nic/fork_guard.hpp"

namespace aperture::nic {

class AddressFile {
 public:
  enum class Access : uint8_t { read_write, read_only };
  static constexpr uint32_t kMostEntries = 1u << 20;

  // Told of what others have changed.
  class Changes {
   public:
    virtual ~Changes() = default;
    virtual Status on_inserted(uint64_t index, const Address& address) noexcept = 0;
    virtual void on_removed(uint64_t index) noexcept = 0;
    // What is known here at that index; null: nothing.
    virtual const Address* known(uint64_t index) const noexcept = 0;
  };

  // While it lives, nobody else changes the file. Errors of lock(): timed_out (another process does
  // not let go of it), io.
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
  // With a lock, after refresh(). Errors: no_space, io.
  Status put(const Lock& lock, uint64_t index, const Address& address) noexcept;
  Status erase(const Lock& lock, uint64_t index) noexcept;

 private:
  struct Head;
  struct Entry;

  AddressFile(std::string path, Access access, ParentOnlyFd fd) noexcept
      : path_(std::move(path)), access_(access), fd_(std::move(fd)) {}
  static Result<std::unique_ptr<AddressFile>> try_open(const std::string& path, Access access,
                                                       std::string& why);
  Status enter(std::string& why) noexcept;
  Status read_head(Head& head) const noexcept;
  Status write(uint64_t index, const Entry& entry) noexcept;

  const std::string path_;
  const Access access_;
  ParentOnlyFd fd_;
  uint64_t seen_generation_ = 0;
  uint32_t seen_count_ = 0;
};

}  // namespace aperture::nic
