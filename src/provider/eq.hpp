// fid_eq: control events. man 3 fi_eq.
//
// Guarded by its own mutex; any thread (the control thread reports connections and registrations).
// Its eventfd is readable exactly while an event is queued. What the control thread reports has
// nobody to hand an error to: events that find no memory in the heap are taken from the reserve
// (base/reserve.hpp).
#pragma once

#include <rdma/fi_eq.h>

#include <array>
#include <list>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.hpp"
#include "base/reserve.hpp"
#include "nic/contact.hpp"
#include "provider/entry.hpp"
#include "provider/fabric.hpp"
#include "provider/info_memory.hpp"

namespace aperture::provider {

struct WaitSet;

struct Eq {
  struct Event {
    uint32_t type = 0;
    bool is_error = false;
    bool is_connection = false;
    uint32_t size = 0;  // of the body
    // As fi_eq_read hands it out; of a connection that was rejected, what it was rejected with.
    std::array<std::byte, sizeof(fi_eq_entry) + wire::kPrivateBytes> body;
    std::vector<std::byte> written;  // by the application, instead of a body
    fi_eq_err_entry error{};
    std::string sentence;  // goes with an error; empty where there was no memory for it
    struct fid* about = nullptr;
    InfoPtr info;  // of a connection request: the application's once it has read the event

    void append(const void* bytes, size_t count) noexcept;
    std::span<const std::byte> bytes() const noexcept;
  };

  fid_eq fid{};
  Fabric* fabric = nullptr;
  ForkRound round;  // in which it was opened
  fi_wait_obj wait_obj = FI_WAIT_NONE;
  WaitSet* wait_set = nullptr;
  bool writable = false;  // opened with FI_WRITE
  size_t capacity = 0;    // of events that the application writes
  Uses uses;              // objects bound to it
  std::mutex mutex;       // guards what follows
  std::list<Event, reserve::Allocator<Event>> events;
  std::string last_sentence;  // lent out as err_data until the next read, as is the next
  wire::PrivateData last_rejected;
  UniqueFd event_fd;  // empty for FI_WAIT_NONE and FI_WAIT_YIELD

  // A control operation has ended. Never refused; std::bad_alloc once the reserve is used up too.
  void report(uint32_t type, struct fid* what, void* context, uint64_t data);
  void report_error(struct fid* what, void* context, uint64_t data, int err,
                    std::string_view sentence);
  // A connection has changed: fi_eq_cm_entry with `data` behind it.
  void report_connection(uint32_t type, struct fid* what, InfoPtr info,
                         const wire::PrivateData& data);
  // prov_errno says that err_data, if any, is the application's at the other side.
  void report_no_connection(struct fid* what, Errc why, const wire::PrivateData* data);
  // The object is closed: nothing about it is to be read any more.
  void forget(const struct fid* what);
  // Another handle of it stays open: what was about this one is about that one.
  void rename(const struct fid* what, struct fid* now);
  // True if that request was still to be read; it is not any more.
  bool forget_request(const struct fid* handle);
  bool empty();

 private:
  friend struct EqCalls;
  void push(Event&& event);
  void pop();
  void drained();
};

// fi_*_bind: an object of that fabric reports in the event queue `what` from now on. 0 or a
// refusal, logged, of flags other than `known`, of what is no event queue or another fabric's, and
// of a second one.
int bind_eq(const char* call, struct fid* what, uint64_t flags, uint64_t known,
            const Fabric* fabric, Eq*& bound) noexcept;

}  // namespace aperture::provider
