// Address vectors with a name, which processes of one user share. man 3 fi_av, "name", "map_addr".
//
// An fi_addr_t is an index in all of them, so map_addr needs no memory at a certain place: what is
// returned there is an array in which each index holds itself. Guarded by the engine's lock.
#pragma once

#include <rdma/fi_domain.h>

#include <memory>
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
  // Of all processes. Errors: those of AddressFile, no_memory.
  Result<uint64_t> insert(const Address& address) noexcept;
  // All of them or, where one is not there, none. Errors: those of AddressFile, no_entry.
  Status remove(const fi_addr_t* addrs, size_t count) noexcept;

 private:
  Status on_inserted(uint64_t index, const Address& address) noexcept override;
  void on_removed(uint64_t index) noexcept override;
  const Address* known(uint64_t index) const noexcept override;

  Av& av_;
  const std::unique_ptr<nic::AddressFile> file_;
  std::vector<fi_addr_t> map_;
};

// By exception std::bad_alloc. 0 or a negative fi_errno, logged.
int share_addresses(Av& av, const fi_av_attr& attr);

}  // namespace aperture::provider
