// Functions of libibverbs that this device has no answer to, and those that are younger than the
// headers we may be built with: for the objects of real devices they are handed to the real
// library, for ours they are refused with EOPNOTSUPP. ibv_import_device(3), ibv_attach_mcast(3).
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "verbs/device.hpp"
#include "verbs/entry.hpp"
#include "verbs/real.hpp"

using namespace aperture::verbs;

namespace {

void refuse_import(const char* call) noexcept {
  errno = refuse(EOPNOTSUPP,
                 "%s: objects of a software NIC belong to their process and cannot be imported "
                 "into another",
                 call);
}

bool is_descriptor_of_ours(int fd) noexcept {
  struct stat found {};
  constexpr unsigned kNullMajor = 1;
  constexpr unsigned kNullMinor = 3;
  return ::fstat(fd, &found) == 0 && S_ISCHR(found.st_mode) &&
         found.st_rdev == makedev(kNullMajor, kNullMinor);
}

}  // namespace

// --- import: a descriptor or a context ---
// ibv_import_device is given nothing but a descriptor. That of a context of ours is /dev/null,
// which is no device of anybody else's. The real function looks for the device in the list, which
// is ours by then, and behind each for what that library has there.
APERTURE_VERB ibv_context* ibv_import_device(int cmd_fd) {
  APERTURE_REAL(ibv_import_device, "IBVERBS_1.10");
  if (is_descriptor_of_ours(cmd_fd)) {
    refuse_import("ibv_import_device");
    return nullptr;
  }
  const RealDevicesAlone section;
  return real.call_or<ibv_context*>(nullptr, cmd_fd);
}

// Importing an object by its handle, and giving it back. `from` is what the import is given;
// `context_of_it` leads from there to the context.
#define APERTURE_IMPORT(object, version, From, from, context_of_it)                         \
  APERTURE_VERB ibv_##object* ibv_import_##object(From* from, uint32_t handle) {            \
    APERTURE_REAL(ibv_import_##object, version);                                            \
    if (!is_ours(context_of_it)) return real.call_or<ibv_##object*>(nullptr, from, handle); \
    refuse_import("ibv_import_" #object);                                                   \
    return nullptr;                                                                         \
  }                                                                                         \
  APERTURE_VERB void ibv_unimport_##object(ibv_##object* object) {                          \
    APERTURE_REAL(ibv_unimport_##object, version);                                          \
    auto* real_unimport = real.get();                                                       \
    if (!is_ours(object->context) && real_unimport != nullptr) real_unimport(object);       \
  }
APERTURE_IMPORT(pd, "IBVERBS_1.10", ibv_context, context, context)
APERTURE_IMPORT(mr, "IBVERBS_1.10", ibv_pd, pd, pd->context)
APERTURE_IMPORT(dm, "IBVERBS_1.13", ibv_context, context, context)

// --- younger than rdma-core 44 ---
// Their structs need not be known: nobody of ours looks into them.
struct ibv_dmah_init_attr;
struct ibv_mr_init_attr;
struct ibv_buf;
struct ibv_dmah;

namespace {

// It begins with its context.
ibv_context* context_of_dmah(const ibv_dmah* dmah) noexcept {
  return *reinterpret_cast<ibv_context* const*>(dmah);
}

}  // namespace

APERTURE_VERB ibv_dmah* ibv_alloc_dmah(ibv_context* context, ibv_dmah_init_attr* attr) {
  APERTURE_FORWARD(is_ours(context), nullptr, ibv_alloc_dmah, "IBVERBS_1.15", context, attr);
  errno = refuse(EOPNOTSUPP, "ibv_alloc_dmah: a software NIC does no DMA to be hinted");
  return nullptr;
}

APERTURE_VERB int ibv_dealloc_dmah(ibv_dmah* dmah) {
  APERTURE_REAL(ibv_dealloc_dmah, "IBVERBS_1.15");
  return is_ours(context_of_dmah(dmah)) ? EOPNOTSUPP : real.call_or(EOPNOTSUPP, dmah);
}

APERTURE_VERB ibv_mr* ibv_reg_mr_ex(ibv_pd* pd, ibv_mr_init_attr* attr) {
  APERTURE_FORWARD(is_ours(pd->context), nullptr, ibv_reg_mr_ex, "IBVERBS_1.15", pd, attr);
  errno = refuse(EOPNOTSUPP,
                 "ibv_reg_mr_ex: regions are registered with ibv_reg_mr or ibv_reg_mr_iova");
  return nullptr;
}

APERTURE_VERB void* ibv_alloc_buf(ibv_pd* pd, size_t size, ibv_buf** buf) {
  APERTURE_FORWARD(is_ours(pd->context), nullptr, ibv_alloc_buf, "IBVERBS_1.17", pd, size, buf);
  errno = refuse(EOPNOTSUPP, "ibv_alloc_buf: any memory will do; allocate it yourself");
  return nullptr;
}

// None of ours exist.
APERTURE_VERB void ibv_free_buf(ibv_buf* buf) {
  APERTURE_REAL(ibv_free_buf, "IBVERBS_1.17");
  auto* real_free = real.get();
  if (real_free != nullptr) real_free(buf);
}

APERTURE_VERB ibv_mr* ibv_reg_buf_mr(ibv_pd* pd, ibv_buf* buf, void* addr, size_t length,
                                     int access) {
  APERTURE_FORWARD(is_ours(pd->context), nullptr, ibv_reg_buf_mr, "IBVERBS_1.17", pd, buf, addr,
                   length, access);
  errno = refuse(EOPNOTSUPP, "ibv_reg_buf_mr: register memory with ibv_reg_mr");
  return nullptr;
}

// A buffer is nobody's but the real library's.
APERTURE_VERB int ibv_export_buf_dmabuf_fd(ibv_buf* buf) {
  APERTURE_REAL(ibv_export_buf_dmabuf_fd, "IBVERBS_1.18");
  return real.call_or(-1, buf);
}

// --- counters of completions: a device that has none says so, and makes none ---
struct ibv_comp_cntr_caps;
struct ibv_comp_cntr_init_attr;
struct ibv_qp_attach_comp_cntr_attr;
struct ibv_comp_cntr;

namespace {

int refuse_counter(const char* call) noexcept {
  return refuse(EOPNOTSUPP, "%s: this device has no counters of completions; poll the queue", call);
}

}  // namespace

APERTURE_VERB int _ibv_query_comp_cntr_caps(ibv_context* context, ibv_comp_cntr_caps* caps,
                                            size_t caps_bytes) {
  APERTURE_FORWARD(is_ours(context), EOPNOTSUPP, _ibv_query_comp_cntr_caps, "IBVERBS_1.18", context,
                   caps, caps_bytes);
  return refuse_counter("ibv_query_comp_cntr_caps");
}

APERTURE_VERB ibv_comp_cntr* ibv_create_comp_cntr(ibv_context* context,
                                                  ibv_comp_cntr_init_attr* attr) {
  APERTURE_FORWARD(is_ours(context), nullptr, ibv_create_comp_cntr, "IBVERBS_1.18", context, attr);
  errno = refuse_counter("ibv_create_comp_cntr");
  return nullptr;
}

APERTURE_VERB int ibv_qp_attach_comp_cntr(ibv_qp* qp, ibv_comp_cntr* counter,
                                          ibv_qp_attach_comp_cntr_attr* attr) {
  APERTURE_FORWARD(is_ours(qp->context), EOPNOTSUPP, ibv_qp_attach_comp_cntr, "IBVERBS_1.18", qp,
                   counter, attr);
  return refuse_counter("ibv_qp_attach_comp_cntr");
}

// None of ours exist.
#define APERTURE_COUNTER(call, ...)    \
  APERTURE_REAL(call, "IBVERBS_1.18"); \
  return real.call_or(EOPNOTSUPP, __VA_ARGS__)

APERTURE_VERB int ibv_destroy_comp_cntr(ibv_comp_cntr* counter) {
  APERTURE_COUNTER(ibv_destroy_comp_cntr, counter);
}
APERTURE_VERB int ibv_set_comp_cntr(ibv_comp_cntr* counter, uint64_t value) {
  APERTURE_COUNTER(ibv_set_comp_cntr, counter, value);
}
APERTURE_VERB int ibv_set_err_comp_cntr(ibv_comp_cntr* counter, uint64_t value) {
  APERTURE_COUNTER(ibv_set_err_comp_cntr, counter, value);
}
APERTURE_VERB int ibv_inc_comp_cntr(ibv_comp_cntr* counter, uint64_t amount) {
  APERTURE_COUNTER(ibv_inc_comp_cntr, counter, amount);
}
APERTURE_VERB int ibv_inc_err_comp_cntr(ibv_comp_cntr* counter, uint64_t amount) {
  APERTURE_COUNTER(ibv_inc_err_comp_cntr, counter, amount);
}
APERTURE_VERB int ibv_read_comp_cntr(ibv_comp_cntr* counter, uint64_t* value) {
  APERTURE_COUNTER(ibv_read_comp_cntr, counter, value);
}
APERTURE_VERB int ibv_read_err_comp_cntr(ibv_comp_cntr* counter, uint64_t* value) {
  APERTURE_COUNTER(ibv_read_err_comp_cntr, counter, value);
}
