// Where buffers lie, and host memory that stands in for a device's: see device_places.hpp.
#include "provider/device_places.hpp"

#include <cassert>

#include "base/no_throw.hpp"
#include "provider/errors.hpp"

namespace aperture::provider {

namespace {

// The descriptor's region, if it is in a device and the descriptor is right.
ssize_t find_by_descriptor(const Ep& ep, const char* call, protect::LocalAsk ask,
                           InDevice& device) noexcept {
  protect::KeyTable& keys = ep.engine->keys();
  const protect::LocalAnswer answer = look_at_descriptor(ep, ask);
  if (answer.denial != protect::Denial::none || answer.beside.generation == 0) return 0;
  nic::EngineGuard guard(*ep.engine);
  const protect::SideRecord* const side = keys.side(answer.beside);
  if (side == nullptr || !side->in_device) return 0;
  if (protect::check_beside(keys, answer.beside, ask) != protect::Denial::none) return 0;
  for (const protect::Segment& s : side->segments) {
    const auto base = reinterpret_cast<uint64_t>(s.base);
    if (ask.addr < base || ask.addr - base >= s.length || ask.len > s.length - (ask.addr - base))
      continue;
    device = s.device;
    return 0;
  }
  return refuse(-FI_EINVAL,
                "%s: the %llu bytes at %p lie in two buffers of one region of device memory; name "
                "each by a piece of its own",
                call, static_cast<unsigned long long>(ask.len), reinterpret_cast<void*>(ask.addr));
}

}  // namespace

ssize_t find_place(const Ep& ep, const char* call, const void* buf, size_t len, void* desc,
                   protect::Rights need, InDevice& device) noexcept {
  if (len == 0 || buf == nullptr) return 0;
  const bool is_described =
      ep.descriptors != DescriptorRule::ignored && ep.descriptors != DescriptorRule::own;
  if (is_described && desc != nullptr) {
    return find_by_descriptor(
        ep, call, {ep.pd, desc, reinterpret_cast<uint64_t>(buf), len, need, ep.through}, device);
  }
  memory::Driver* const driver = memory::find(buf);
  if (driver == nullptr) return 0;
  if (ep.body->domain->region_rules.described_devices)
    return refuse(-FI_EINVAL,
                  "%s: %p is device memory (%s) and has no descriptor; register it with its iface "
                  "and pass its fi_mr_desc(), as FI_MR_HMEM demands",
                  call, buf, memory::name_of(driver->kind()));
  const char* why = "";
  auto found = driver->add(const_cast<void*>(buf), len, memory::Driver::kAnyDevice, why);
  if (!found)
    return refuse(fi_code(found.error()), "%s: the %zu bytes at %p (%s): %s", call, len, buf,
                  memory::name_of(driver->kind()), why);
  device = std::move(*found);
  return 0;
}

ssize_t refuse_device(const Ep& ep, const char* call, const void* buf, size_t len, void* desc,
                      protect::Rights need) noexcept {
  if (!ep.body->domain->region_rules.hmem) return 0;
  InDevice device;
  if (const ssize_t rc = find_place(ep, call, buf, len, desc, need, device); rc != 0) return rc;
  if (device == nullptr) return 0;
  return refuse(-FI_EOPNOTSUPP,
                "%s: %p is device memory (%s), which this call does not reach; copy it to the "
                "host's first",
                call, buf, memory::name_of(device->kind()));
}

ssize_t Places::find(const Ep& ep, const char* call, const iovec* iov, void** desc, size_t count,
                     size_t limit, protect::Rights need) noexcept {
  if (iov == nullptr || count > limit || count > devices_.size()) return 0;
  const auto desc_of = [desc](size_t i) { return desc != nullptr ? desc[i] : nullptr; };
  for (size_t i = 0; i < count; ++i) {
    const ssize_t rc =
        find_place(ep, call, iov[i].iov_base, iov[i].iov_len, desc_of(i), need, devices_[i]);
    if (rc != 0) return rc;
    any_ = any_ || devices_[i] != nullptr;
  }
  if (!any_ || ep.descriptors == DescriptorRule::ignored) return 0;
  for (size_t i = 0; i < count; ++i) {
    if (devices_[i] != nullptr) continue;
    const ssize_t rc = check_buffer(ep, call, iov[i].iov_base, iov[i].iov_len, desc_of(i), need);
    if (rc != 0) return rc;
  }
  return 0;
}

void Places::stand_in(Staging& staging, iovec* kept, size_t count, Staging::Way way) {
  assert(count <= devices_.size());
  uint64_t offset = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t len = kept[i].iov_len;
    if (devices_[i] != nullptr) staging.add(std::move(devices_[i]), kept[i], offset, way);
    offset += len;
  }
}

ssize_t InjectedBytes::take(const char* call, const void* buf, size_t len) noexcept {
  bytes_ = buf;
  if (buf == nullptr || len == 0 || len > copy_.size()) return 0;
  memory::Driver* const driver = memory::find(buf);
  if (driver == nullptr) return 0;
  const char* why = "its driver did not copy it";
  auto found = driver->add(const_cast<void*>(buf), len, memory::Driver::kAnyDevice, why);
  if (!found || !(*found)->copy_out(copy_.data(), static_cast<const std::byte*>(buf), len))
    return refuse(-FI_EFAULT, "%s: the %zu bytes at %p (%s): %s", call, len, buf,
                  memory::name_of(driver->kind()), why);
  bytes_ = copy_.data();
  return 0;
}

ssize_t stage(Work& work, const char* call, std::initializer_list<StagedArgument> args) noexcept {
  assert(work.is_staged && work.staging == nullptr);
  work.buf = work.iovs[0][0].iov_base;
  const Status s = no_throw([&]() -> Status {
    auto staging = std::make_unique<Staging>(work.body->domain->staging);
    for (const StagedArgument& arg : args) {
      if (!arg.places->any()) continue;
      arg.places->stand_in(*staging, work.iovs[arg.which].data(), work.pieces_of(arg.which),
                           arg.way);
    }
    const bool piecewise = work.kind == Work::Kind::send || work.kind == Work::Kind::write;
    if (const Status begun = staging->begin(piecewise); !begun) return begun;
    work.staging = std::move(staging);
    return {};
  });
  if (s.ok()) return 0;
  return refuse(fi_code(s),
                s.error() == Errc::bad_buffer
                    ? "%s: the device memory could not be copied: its driver refused, or it is not "
                      "what was registered any more"
                    : "%s: no host memory to stand in for that of the device",
                call);
}

}  // namespace aperture::provider
