// fid_eq: control events. man 3 fi_eq.
//
// Guarded by its own mutex; any thread (the control thread will report connections here). Its
// eventfd is readable exactly while an event is queued.
#pragma once

#include <rdma/fi_eq.h>

#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "base/fd.hpp"
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
    std::vector<uint8_t> body;  // as fi_eq_read hands it out
    fi_eq_err_entry error{};
    std::string sentence;  // goes with an error
    // of connections:
    bool is_connection = false;
    struct fid* about = nullptr;
    InfoPtr info;                // the application's once it has read the event
    wire::PrivateData rejected;  // goes with an error instead of a sentence
  };

  fid_eq fid{};
  Fabric* fabric = nullptr;
  fi_wait_obj wait_obj = FI_WAIT_NONE;
  WaitSet* wait_set = nullptr;
  bool writable = false;  // opened with FI_WRITE
  size_t capacity = 0;    // of events that the application writes
  Uses uses;              // objects bound to it
  std::mutex mutex;       // guards what follows
  std::deque<Event> events;
  std::string last_sentence;  // lent out as err_data until the next read, as is the next
  wire::PrivateData last_rejected;
  UniqueFd event_fd;  // empty for FI_WAIT_NONE and FI_WAIT_YIELD

  // A control operation has ended. Never refused.
  void report(uint32_t type, struct fid* what, void* context, uint64_t data);
  void report_error(struct fid* what, void* context, uint64_t data, int err, std::string sentence);
  // A connection has changed: fi_eq_cm_entry with `data` behind it.
  void report_connection(uint32_t type, struct fid* what, InfoPtr info,
                         const wire::PrivateData& data);
  // prov_errno says that err_data, if any, is the application's at the other side.
  void report_no_connection(struct fid* what, Errc why, const wire::PrivateData* data);
  // The object is closed: nothing about it is to be read any more.
  void forget(const struct fid* what);
  // True if that request was still to be read; it is not any more.
  bool forget_request(const struct fid* handle);
  bool empty();

 private:
  friend struct EqCalls;
  void push(Event event);
  void pop();
  void drained();
};

}  // namespace aperture::provider
