// Shared address vectors: see av_shared.hpp.
#include "provider/av_shared.hpp"

#include <algorithm>
#include <cassert>
#include <numeric>

#include "provider/av.hpp"
#include "provider/ep.hpp"
#include "provider/errors.hpp"

namespace aperture::provider {

namespace {
constexpr size_t kMapped = 1024;  // at least so many indices are in the array
}  // namespace

SharedAddresses::SharedAddresses(Av& av, std::unique_ptr<nic::AddressFile> file, size_t expected)
    : av_(av),
      file_(std::move(file)),
      map_(std::clamp<size_t>(expected, kMapped, nic::AddressFile::kMostEntries)) {
  std::iota(map_.begin(), map_.end(), fi_addr_t{0});
  av_.table.set_origin(this);
}

void SharedAddresses::refresh() noexcept {
  if (const Status s = file_->refresh(*this); !s)
    APERTURE_WARN("a shared address vector cannot be read: %s", describe(s.error()));
}

Result<uint64_t> SharedAddresses::insert(const Address& address) noexcept {
  auto lock = file_->lock();
  if (!lock) return lock.error();
  if (const Status s = file_->refresh(*this); !s) return s.error();
  Result<uint64_t> index = av_.table.insert(address);
  if (!index) return index;
  if (const Status s = file_->put(*lock, *index, address); !s) {
    [[maybe_unused]] const Status undone = av_.table.remove(*index);
    assert(undone.ok());
    return s.error();
  }
  return index;
}

Status SharedAddresses::remove(const fi_addr_t* addrs, size_t count) noexcept {
  auto lock = file_->lock();
  if (!lock) return lock.error();
  if (const Status s = file_->refresh(*this); !s) return s;
  for (size_t i = 0; i < count; ++i) {
    if (av_.table.find(addrs[i]) == nullptr) return Errc::no_entry;
  }
  for (size_t i = count; i-- > 0;) {  // backwards: the lowest index is the next to be given
    if (av_.table.find(addrs[i]) == nullptr) return Errc::no_entry;  // named twice
    if (const Status s = file_->erase(*lock, addrs[i]); !s) return s;
    on_removed(addrs[i]);
  }
  return {};
}

// --- what others have changed --------------------------------------------------------------------

Status SharedAddresses::on_inserted(uint64_t index, const Address& address) noexcept {
  if (const Status s = av_.table.place(index, address); !s) return s;
  av_.tell_inserted(index);
  return {};
}

void SharedAddresses::on_removed(uint64_t index) noexcept {
  av_.tell_removed(index);
  [[maybe_unused]] const Status removed = av_.table.remove(index);
  assert(removed.ok());
}

const Address* SharedAddresses::known(uint64_t index) const noexcept {
  return av_.table.find(index);
}

int share_addresses(Av& av, const fi_av_attr& attr) {
  const bool reads_only = (attr.flags & FI_READ) != 0;
  std::string why;
  auto file = nic::AddressFile::open(
      attr.name,
      reads_only ? nic::AddressFile::Access::read_only : nic::AddressFile::Access::read_write, why);
  if (!file)
    return refuse(fi_code(file.error()), "fi_av_open: the shared address vector \"%s\": %s",
                  attr.name, why.empty() ? describe(file.error()) : why.c_str());
  av.shared = std::make_unique<SharedAddresses>(av, *std::move(file), attr.count);
  nic::EngineGuard guard(*av.domain->engine);
  av.shared->refresh();
  return 0;
}

}  // namespace aperture::provider
