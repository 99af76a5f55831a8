// Address vectors with a name, which processes of one user share. man 3 fi_av, "name", "map_addr".
//
// An fi_addr_t is an index in all of them, so map_addr needs no memory at a certain place: what is
// returned there is an array in which each index holds itself. Guarded by the engine's lock, but
// for lock(), which may wait for another process and is called before that is taken.
#pragma once

#include <rdma/fi_domain.h>

#include <memory>
#include <span>
#include <vector>

#include "nic/address_file.hpp"
#include "nic/address_table.hpp"

namespace aperture::provider {

struct Av;

class SharedAddresses final : public nic::AddressTable::Origin, private nic::AddressFile::Changes {
 public:
  SharedAddresses(Av& av, std::unique_ptr<nic::AddressFile> file, size_t expected);

  bool is_read_only() const noexcept { return file_->is_read_only(); }
  void* map_addr() noexcept { return map_.data(); }

  void refresh() noexcept override;
  // Engine's lock not held. Held for one call that changes what all see. Errors: those of
  // AddressFile::lock().
  using Lock = nic::AddressFile::Lock;
  Result<Lock> lock() noexcept { return file_->lock(); }
  // As many as can be at once, from the first on, and at least one; they have the indices from
  // `first` on. Errors are about the first: those of AddressFile, no_memory.
  struct Inserted {
    uint64_t first;
    size_t count;
  };
  static constexpr size_t kAtOnce = nic::AddressFile::kAtOnce;
  Result<Inserted> insert(const Lock& lock, std::span<const Address> addresses) noexcept;
  // All of them or, where one is not there, none. Errors: those of AddressFile, no_entry,
  // no_memory.
  Status remove(const Lock& lock, std::span<const fi_addr_t> addrs) noexcept;

 private:
  Status on_inserted(uint64_t index, const Address& address) noexcept override;
  void on_removed(uint64_t index) noexcept override;
  const Address* known(uint64_t index) const noexcept override;
  Status place(uint64_t first, std::span<const Address> addresses) noexcept;
  void take_back(uint64_t first, size_t count) noexcept;

  Av& av_;
  const std::unique_ptr<nic::AddressFile> file_;
  std::vector<fi_addr_t> map_;
  Errc unreadable_ = Errc::ok;  // what was said last
};

// By exception std::bad_alloc. 0 or a negative fi_errno, logged.
int share_addresses(Av& av, const fi_av_attr& attr);

}  // namespace aperture::provider
