// fid_eq: see eq.hpp.
#include "provider/eq.hpp"

#include <sys/eventfd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "base/event_fd.hpp"
#include "base/guarded_copy.hpp"
#include "base/no_throw.hpp"
#include "provider/error_text.hpp"
#include "provider/errors.hpp"
#include "provider/offer.hpp"
#include "provider/stubs.hpp"
#include "provider/wait.hpp"

namespace aperture::provider {

void Eq::Event::append(const void* bytes, size_t count) noexcept {
  assert(written.empty() && count <= body.size() - size);
  if (count != 0) std::memcpy(&body[size], bytes, count);
  size += static_cast<uint32_t>(count);
}

std::span<const std::byte> Eq::Event::bytes() const noexcept {
  if (!written.empty()) return written;
  return {body.data(), size};
}

void Eq::push(Event&& event) {
  events.push_back(std::move(event));
  if (event_fd && events.size() == 1) {
    signal_eventfd(event_fd.get());
  }
}

void Eq::pop() {
  assert(!events.empty());
  events.pop_front();
  drained();
}

void Eq::drained() {
  if (event_fd && events.empty()) {
    drain_eventfd(event_fd.get());
  }
}

void Eq::report(uint32_t type, struct fid* what, void* context, uint64_t data) {
  const fi_eq_entry entry{what, context, data};
  Event event;
  event.type = type;
  event.about = what;
  event.append(&entry, sizeof entry);
  std::lock_guard guard(mutex);
  push(std::move(event));
}

void Eq::report_error(struct fid* what, void* context, uint64_t data, int err,
                      std::string_view sentence) {
  Event event;
  event.is_error = true;
  event.about = what;
  event.error.fid = what;
  event.error.context = context;
  event.error.data = data;
  event.error.err = err;
  [[maybe_unused]] const Status s = no_throw([&] { event.sentence = sentence; });
  std::lock_guard guard(mutex);
  push(std::move(event));
}

void Eq::report_connection(uint32_t type, struct fid* what, InfoPtr info,
                           const wire::PrivateData& data) {
  Event event;
  event.type = type;
  event.is_connection = true;
  event.about = what;
  fi_eq_cm_entry entry{};
  entry.fid = what;
  entry.info = info.get();
  event.append(&entry, sizeof entry);
  event.append(data.bytes.data(), data.size);
  event.info = std::move(info);
  std::lock_guard guard(mutex);
  push(std::move(event));
}

void Eq::report_no_connection(struct fid* what, Errc why, const wire::PrivateData* data) {
  Event event;
  event.is_error = true;
  event.is_connection = true;
  event.about = what;
  event.error.fid = what;
  event.error.err = fi_error(why);
  event.error.prov_errno = provider_code(0, why);
  if (data != nullptr) event.append(data->bytes.data(), data->size);
  std::lock_guard guard(mutex);
  push(std::move(event));
}

void Eq::forget(const struct fid* what) {
  std::lock_guard guard(mutex);
  const bool any = std::erase_if(events, [&](const Event& e) { return e.about == what; }) != 0;
  if (any) drained();
}

void Eq::rename(const struct fid* what, struct fid* now) {
  static_assert(offsetof(fi_eq_entry, fid) == 0 && offsetof(fi_eq_cm_entry, fid) == 0);
  std::lock_guard guard(mutex);
  for (Event& event : events) {
    if (event.about != what) continue;
    event.about = now;
    if (event.is_error) {
      event.error.fid = now;
    } else {
      assert(event.size >= sizeof now);
      std::memcpy(event.body.data(), &now, sizeof now);
    }
  }
}

bool Eq::forget_request(const struct fid* handle) {
  std::lock_guard guard(mutex);
  const bool any = std::erase_if(events, [&](const Event& e) {
                     return e.info != nullptr && e.info->handle == handle;
                   }) != 0;
  if (any) drained();
  return any;
}

bool Eq::empty() {
  std::lock_guard guard(mutex);
  return events.empty();
}

// The C entries.
struct EqCalls {
  // What the other side's application rejected with.
  static void put_rejected(Eq& eq, bool own_buffer, const fi_eq_err_entry& asked,
                           fi_eq_err_entry& entry) {
    wire::PrivateData& data = eq.last_rejected;
    entry.err_data = nullptr;
    entry.err_data_size = 0;
    if (data.size == 0) return;
    const size_t size = own_buffer ? data.size : std::min<size_t>(data.size, asked.err_data_size);
    if (!own_buffer && !guarded_copy(asked.err_data, data.bytes.data(), size)) return;
    entry.err_data = own_buffer ? data.bytes.data() : asked.err_data;
    entry.err_data_size = size;
  }

  static ssize_t read_event(Eq& eq, uint32_t* event, void* buf, size_t len, uint64_t flags) {
    if (event == nullptr || (buf == nullptr && len != 0)) return -FI_EINVAL;
    if ((flags & ~FI_PEEK) != 0) return -FI_EBADFLAGS;
    std::lock_guard guard(eq.mutex);
    if (eq.events.empty()) return -FI_EAGAIN;
    const Eq::Event& first = eq.events.front();
    if (first.is_error) return -FI_EAVAIL;
    // data of a connection is "limited to the buffer space provided"
    const std::span<const std::byte> bytes = first.bytes();
    if (len < (first.is_connection ? sizeof(fi_eq_cm_entry) : bytes.size())) return -FI_ETOOSMALL;
    *event = first.type;
    const size_t size = std::min(len, bytes.size());
    if (size != 0) std::memcpy(buf, bytes.data(), size);
    if ((flags & FI_PEEK) == 0) {
      static_cast<void>(eq.events.front().info.release());  // "user must call fi_freeinfo"
      eq.pop();
    }
    return static_cast<ssize_t>(size);
  }

  [[gnu::noinline]] static ssize_t read(fid_eq* fid, uint32_t* event, void* buf, size_t len,
                                        uint64_t flags) noexcept {
    return guarded("fi_eq_read", fid,
                   [&] { return read_event(object_of<Eq>(fid), event, buf, len, flags); });
  }

  static ssize_t readerr(fid_eq* fid, fi_eq_err_entry* buf, uint64_t flags) noexcept {
    return guarded("fi_eq_readerr", fid, [&]() -> ssize_t {
      auto& eq = object_of<Eq>(fid);
      if (buf == nullptr) return -FI_EINVAL;
      if ((flags & ~FI_PEEK) != 0) return -FI_EBADFLAGS;
      std::lock_guard guard(eq.mutex);
      if (eq.events.empty() || !eq.events.front().is_error) return -FI_EAGAIN;
      Eq::Event& first = eq.events.front();
      fi_eq_err_entry entry = first.error;
      const uint32_t api = eq.fabric->fid.api_version;
      const bool own_buffer = api < kApi15 || buf->err_data_size == 0 || buf->err_data == nullptr;
      eq.last_sentence = first.sentence;
      if (first.is_connection) {
        eq.last_rejected.size = first.size;
        std::copy_n(first.body.begin(), first.size, eq.last_rejected.bytes.begin());
        put_rejected(eq, own_buffer, *buf, entry);
      } else if (own_buffer) {
        entry.err_data = eq.last_sentence.empty() ? nullptr : eq.last_sentence.data();
        entry.err_data_size = eq.last_sentence.empty() ? 0 : eq.last_sentence.size() + 1;
      } else {
        entry.err_data_size = copy_text(eq.last_sentence, buf->err_data, buf->err_data_size);
        entry.err_data = entry.err_data_size != 0 ? buf->err_data : nullptr;
      }
      // before 1.5 the entry ended with err_data
      std::memcpy(buf, &entry,
                  api < kApi15 ? offsetof(fi_eq_err_entry, err_data_size) : sizeof entry);
      if ((flags & FI_PEEK) == 0) eq.pop();
      return sizeof(fi_eq_err_entry);
    });
  }

  static ssize_t write(fid_eq* fid, uint32_t event, const void* buf, size_t len,
                       uint64_t flags) noexcept {
    return guarded("fi_eq_write", fid, [&]() -> ssize_t {
      auto& eq = object_of<Eq>(fid);
      if (!eq.writable)
        return refuse(
            -FI_EINVAL,
            "fi_eq_write: the event queue was opened without FI_WRITE; set it in attr.flags");
      if (buf == nullptr && len != 0) return -FI_EINVAL;
      if (flags != 0) return -FI_EBADFLAGS;
      Eq::Event made;
      made.type = event;
      const auto* bytes = static_cast<const std::byte*>(buf);
      made.written.assign(bytes, bytes + len);
      std::lock_guard guard(eq.mutex);
      if (eq.events.size() >= eq.capacity) return -FI_EAGAIN;
      eq.push(std::move(made));
      assert(eq.events.size() <= eq.capacity);
      return static_cast<ssize_t>(len);
    });
  }

  // A cancellation point while it sleeps.
  static ssize_t sread(fid_eq* fid, uint32_t* event, void* buf, size_t len, int timeout,
                       uint64_t flags) {
    auto& eq = object_of<Eq>(fid);
    if (const int rc = check_blocking("fi_eq_sread", eq.wait_obj); rc != 0) return rc;
    const Deadline deadline(timeout);
    for (;;) {
      const ssize_t n = read(fid, event, buf, len, flags);
      if (n != -FI_EAGAIN || deadline.passed()) return n;
      if (sleep_on(eq.wait_obj, eq.event_fd.get(), deadline) == Slept::interrupted) {
        return read(fid, event, buf, len, flags);
      }
    }
  }

  static const char* strerror(fid_eq*, int prov_errno, const void* err_data, char* buf,
                              size_t len) noexcept {
    // what a connection was rejected with is the application's, and no text
    return error_text(prov_errno, prov_errno == 0 ? err_data : nullptr, buf, len);
  }

  static int close(fid* fid) noexcept {
    return guarded_close("fi_close(eq)", fid, [&]() -> int {
      auto& eq = object_of<Eq>(fid);
      if (const uint32_t n = eq.uses.count(); n != 0)
        return refuse(-FI_EBUSY, "fi_close(eq): %u object(s) are bound to it; close them first", n);
      if (eq.wait_set != nullptr) leave_set(*eq.wait_set, fid, eq.event_fd.get());
      eq.fabric->uses.drop();
      delete &eq;
      return 0;
    });
  }

  static int control(fid* fid, int command, void* arg) noexcept {
    auto& eq = object_of<Eq>(fid);
    return control_wait("fi_control(eq)", eq.wait_obj, eq.event_fd.get(), command, arg);
  }
};

namespace {

fi_ops g_eq_fid_ops = fid_ops<"eq">(
    EqCalls::close, NotOffered<"fi_bind(eq): nothing can be bound to an event queue">{},
    EqCalls::control);

fi_ops_eq g_eq_ops = {
    .size = sizeof(fi_ops_eq),
    .read = EqCalls::read,
    .readerr = EqCalls::readerr,
    .write = EqCalls::write,
    .sread = EqCalls::sread,
    .strerror = EqCalls::strerror,
};

constexpr size_t kDefaultEqSize = 256;
constexpr size_t kMaxEqSize = size_t{1} << 20;

int check_attr(const fi_eq_attr& attr) {
  if ((attr.flags & ~(FI_WRITE | FI_AFFINITY)) != 0)
    return refuse(-FI_EBADFLAGS,
                  "fi_eq_open: flags 0x%llx; only FI_WRITE and FI_AFFINITY are known",
                  static_cast<unsigned long long>(attr.flags));
  if (attr.size > kMaxEqSize)
    return refuse(-FI_EINVAL, "fi_eq_open: size %zu; at most %zu is offered", attr.size,
                  kMaxEqSize);
  return check_wait_obj("fi_eq_open", attr.wait_obj, attr.wait_set);
}

}  // namespace

int open_eq(fid_fabric* fabric, fi_eq_attr* attr, fid_eq** out, void* context) noexcept {
  return guarded("fi_eq_open", fabric, [&]() -> int {
    if (fabric == nullptr || out == nullptr)
      return refuse(-FI_EINVAL, "fi_eq_open: fabric or eq is NULL");
    const fi_eq_attr defaults{};
    const fi_eq_attr& asked = attr != nullptr ? *attr : defaults;
    if (const int rc = check_attr(asked); rc != 0) return rc;
    auto eq = std::make_unique<Eq>();
    eq->wait_obj = settle_wait_obj(asked.wait_obj);
    eq->writable = (asked.flags & FI_WRITE) != 0;
    eq->capacity = asked.size != 0 ? asked.size : kDefaultEqSize;
    if (has_fd(eq->wait_obj)) {
      eq->event_fd = move_high(UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)));
      if (!eq->event_fd)
        return refuse(-FI_EMFILE,
                      "fi_eq_open: no file descriptor left (%s); raise the limit (ulimit -n)",
                      std::strerror(errno));
    }
    eq->fid.fid = {FI_CLASS_EQ, context, &g_eq_fid_ops};
    eq->fid.ops = &g_eq_ops;
    if (eq->wait_obj == FI_WAIT_SET) {
      const int rc = join_set(asked.wait_set, &eq->fid.fid, eq->event_fd.get(), eq->wait_set);
      if (rc != 0) return rc;
    }
    eq->fabric = &object_of<Fabric>(fabric);
    eq->fabric->uses.add();
    *out = &eq.release()->fid;
    return 0;
  });
}

int bind_eq(const char* call, struct fid* what, uint64_t flags, uint64_t known,
            const Fabric* fabric, Eq*& bound) noexcept {
  if (what == nullptr || what->fclass != FI_CLASS_EQ)
    return refuse(-FI_EINVAL, "%s: only an event queue can be bound to it", call);
  if ((flags & ~known) != 0)
    return refuse(-FI_EBADFLAGS, "%s: flags 0x%llx; 0x%llx are known for an event queue", call,
                  static_cast<unsigned long long>(flags), static_cast<unsigned long long>(known));
  auto& eq = object_of<Eq>(what);
  if (bound != nullptr || eq.fabric != fabric)
    return refuse(
        -FI_EINVAL,
        "%s: an event queue is bound already, or this one belongs to another fabric object", call);
  eq.uses.add();
  bound = &eq;
  assert(eq.uses.count() != 0);
  return 0;
}

}  // namespace aperture::provider
