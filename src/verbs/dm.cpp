// Allocating and copying device memory: see dm.hpp.
#include "verbs/dm.hpp"

#include <unistd.h>

#include <cassert>
#include <cstring>
#include <memory>

#include "verbs/errors.hpp"
#include "verbs/real.hpp"

namespace aperture::verbs {

namespace {

constexpr uint64_t kWordBytes = 4;

// The same as mlx5 says, so that what runs here runs there. 0 or an errno.
int validate_copy(const char* call, const Dm& dm, uint64_t offset, uint64_t length) noexcept {
  if (offset > dm.length || length > dm.length - offset)
    return refuse(EFAULT, "%s: %llu bytes at %llu leave the device memory, which has %llu", call,
                  static_cast<unsigned long long>(length), static_cast<unsigned long long>(offset),
                  static_cast<unsigned long long>(dm.length));
  if (offset % kWordBytes != 0 || length % kWordBytes != 0)
    return refuse(EINVAL, "%s: %llu bytes at %llu; offset and length are multiples of 4 bytes",
                  call, static_cast<unsigned long long>(length),
                  static_cast<unsigned long long>(offset));
  return 0;
}

// copy(ours): what is left to do. In a forked child there is no such memory.
template <typename Copy>
int copy_if_valid(const char* call, ibv_dm* dm, uint64_t offset, uint64_t length,
                  Copy&& copy) noexcept {
  return guarded(call, life_of(dm), [&] {
    auto& ours = object_of<Dm>(dm);
    const int error = validate_copy(call, ours, offset, length);
    if (error == 0 && length != 0) copy(ours);  // memcpy takes no null pointer
    return error;
  });
}

int memcpy_to_dm(ibv_dm* dm, uint64_t offset, const void* from, size_t length) noexcept {
  return copy_if_valid("ibv_memcpy_to_dm", dm, offset, length,
                       [&](Dm& ours) { std::memcpy(ours.memory.data() + offset, from, length); });
}

int memcpy_from_dm(void* to, ibv_dm* dm, uint64_t offset, size_t length) noexcept {
  return copy_if_valid("ibv_memcpy_from_dm", dm, offset, length,
                       [&](Dm& ours) { std::memcpy(to, ours.memory.data() + offset, length); });
}

int allocate(Context& context, const ibv_alloc_dm_attr& attr, Dm*& made) {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  if (attr.comp_mask != 0)
    return refuse(EINVAL, "ibv_alloc_dm: comp_mask 0x%x has unknown bits", attr.comp_mask);
  if (attr.length == 0 || attr.log_align_req > 63 || (uint64_t{1} << attr.log_align_req) > page)
    return refuse(EINVAL,
                  "ibv_alloc_dm: it takes at least one byte and an alignment of at most %llu bytes",
                  static_cast<unsigned long long>(page));
  if (attr.length > kMaxDmBytes)
    return refuse(ENOMEM, "ibv_alloc_dm: at most %llu bytes can be had at once",
                  static_cast<unsigned long long>(kMaxDmBytes));
  auto memory = Mapping::map_anonymous((attr.length + page - 1) / page * page);
  if (!memory.ok()) return refuse(ENOMEM, "ibv_alloc_dm: out of memory");
  auto dm = std::make_unique<Dm>();
  dm->base.context = context.base();
  dm->base.memcpy_to_dm = memcpy_to_dm;
  dm->base.memcpy_from_dm = memcpy_from_dm;
  dm->base.comp_mask = IBV_DM_MASK_HANDLE;
  dm->base.handle = context.next_handle();
  dm->memory = std::move(memory).value();
  assert(dm->memory.size() >= attr.length && attr.length != 0);
  dm->length = attr.length;
  dm->use_context = ContextUse(context);
  made = dm.release();
  return 0;
}

}  // namespace

ibv_dm* alloc_dm(ibv_context* context, ibv_alloc_dm_attr* attr) noexcept {
  return guarded_new_base<Dm>("ibv_alloc_dm", life_of(context),
                              [&](Dm*& out) { return allocate(context_of(context), *attr, out); });
}

int free_dm(ibv_dm* dm) noexcept {
  return guarded_release("ibv_free_dm", life_of(dm), [&] {
    auto& ours = object_of<Dm>(dm);
    if (ours.uses.count() != 0)
      return refuse(EBUSY, "ibv_free_dm: a region of it is still registered");
    assert(ours.length <= ours.memory.size());
    delete &ours;
    return 0;
  });
}

}  // namespace aperture::verbs

using namespace aperture::verbs;

// Since rdma-core 62. -1 and errno, or a descriptor.
APERTURE_VERB int ibv_dm_export_dmabuf_fd(ibv_dm* dm) {
  APERTURE_FORWARD(is_ours(dm->context), -1, ibv_dm_export_dmabuf_fd, "IBVERBS_1.16", dm);
  errno = refuse(EOPNOTSUPP,
                 "ibv_dm_export_dmabuf_fd: the memory of a software NIC is no dma-buf; use "
                 "ibv_memcpy_from_dm");
  return -1;
}
