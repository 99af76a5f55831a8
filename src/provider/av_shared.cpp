// Shared address vectors: see av_shared.hpp.
#include "provider/av_shared.hpp"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <utility>

#include "base/no_throw.hpp"
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
  const Errc before = std::exchange(unreadable_, file_->refresh(*this).error());
  if (unreadable_ != Errc::ok && unreadable_ != before)
    APERTURE_WARN("a shared address vector cannot be read: %s", describe(unreadable_));
}

// --- what is changed here ------------------------------------------------------------------------

Result<SharedAddresses::Inserted> SharedAddresses::insert(
    const Lock& lock, std::span<const Address> addresses) noexcept {
  assert(!addresses.empty());
  if (const Status s = file_->refresh(*this); !s) return s.error();
  Inserted made{file_->count(), std::min(addresses.size(), kAtOnce)};
  if (made.first + made.count > nic::AddressFile::kMostEntries) {
    made.count = 1;
    // others may still hold one that was removed, so these are the last to be given
    if (made.first == nic::AddressFile::kMostEntries) made.first = av_.table.lowest_free();
  }
  addresses = addresses.first(made.count);
  if (const Status s = place(made.first, addresses); !s) return s.error();
  if (const Status s = file_->put(lock, made.first, addresses); !s) {
    take_back(made.first, made.count);
    return s.error();
  }
  for (size_t i = 0; i < made.count; ++i) av_.tell_inserted(made.first + i);
  return made;
}

// In the table: all, or none.
Status SharedAddresses::place(uint64_t first, std::span<const Address> addresses) noexcept {
  if (first + addresses.size() > nic::AddressFile::kMostEntries) return Errc::no_space;
  for (size_t i = 0; i < addresses.size(); ++i) {
    // there already: the file is not what its head says
    const bool known = av_.table.find(first + i) != nullptr;
    const Status s = known ? Status(Errc::protocol) : av_.table.place(first + i, addresses[i]);
    if (s) continue;
    take_back(first, i);
    return s;
  }
  return {};
}

void SharedAddresses::take_back(uint64_t first, size_t count) noexcept {
  for (size_t i = 0; i < count; ++i) {
    [[maybe_unused]] const Status s = av_.table.remove(first + i);
    assert(s.ok());
  }
}

Status SharedAddresses::remove(const Lock& lock, std::span<const fi_addr_t> addrs) noexcept {
  if (const Status s = file_->refresh(*this); !s) return s;
  std::vector<uint64_t> sorted;
  if (const Status s = no_throw([&] { sorted.assign(addrs.begin(), addrs.end()); }); !s) return s;
  std::sort(sorted.begin(), sorted.end());
  const bool twice = std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
  const bool all = std::all_of(sorted.begin(), sorted.end(),
                               [this](uint64_t index) { return av_.table.find(index) != nullptr; });
  if (twice || !all) return Errc::no_entry;
  if (const Status s = file_->erase(lock, sorted); !s) {
    refresh();  // some may be gone
    return s;
  }
  for (const uint64_t index : sorted) on_removed(index);
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
