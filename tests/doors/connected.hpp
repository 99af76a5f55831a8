// What the tests of connected endpoints share: a station (fabric, domain, event queue, completion
// queue), endpoints that belong to it, and reading the events of connections.
//
// Owned by the test's thread.
#pragma once

#include <netinet/in.h>

#include "doors/fixture.hpp"
#include "doors/payload.hpp"

namespace aperture::doors {

struct StationOptions {
  uint64_t caps = FI_MSG | FI_TAGGED | FI_RMA;
  fi_threading threading = FI_THREAD_UNSPEC;
  fi_progress progress = FI_PROGRESS_UNSPEC;
  bool shared_receive = false;  // ask for FI_SHARED_CONTEXT
  bool shared_transmit = false;
  bool counters = false;        // bound to every endpoint
  uint64_t cq_flags = 0;        // FI_SELECTIVE_COMPLETION
  uint64_t mode = 0;            // beside what all applications here do
  const char* domain_key = "";  // authorization keys, as text
  const char* ep_key = "";
};

// An event of a connection, or an error (type 0).
struct CmEvent {
  int64_t code = 0;  // what reading gave
  uint32_t type = 0;
  int err = 0;
  fid_t fid = nullptr;
  Info info;
  std::vector<uint8_t> data;  // private data, or err_data of an error
};

class Station : public Polled {
 public:
  explicit Station(const StationOptions& options = {}) : Station(options, nullptr) {}
  // Another event queue and completion queue in the same domain.
  Station(const StationOptions& options, Station& host) : Station(options, &host) {}

  fid_eq* eq() { return eq_.get(); }
  fid_cq* cq() { return cq_.get(); }
  fid_cntr* tx_cntr() { return tx_cntr_.get(); }
  fid_cntr* rx_cntr() { return rx_cntr_.get(); }

  // fi_getinfo for FI_EP_MSG; throws when nothing matches.
  static Info ask(const StationOptions& options);

  Fid<fid_pep> passive(bool listening = true);
  // Bound to the queues, not enabled.
  Fid<fid_ep> open(fi_info* info = nullptr, fid_ep* shared = nullptr);
  Fid<fid_ep> shared_receive();

  // The next event, polling all stations meanwhile; code -FI_EAGAIN: none came in time.
  CmEvent event(int timeout_ms = 20000);
  // The next event is of that type (and fid): it, or a failed expectation and whatever came.
  CmEvent expect(uint32_t type, const fid* about = nullptr);
  CmEvent expect_error(int err, const fid* about = nullptr);
  bool no_event(int for_ms = 30) { return event(for_ms).code == -FI_EAGAIN; }

  void poll() override;

 private:
  Station(const StationOptions& options, Station* host);

  StationOptions options_;
  Fid<fid_eq> eq_;
  Fid<fid_cq> cq_;
  Fid<fid_cntr> tx_cntr_;
  Fid<fid_cntr> rx_cntr_;
};

// Asks `to` for a connection from a new endpoint of `from`.
Fid<fid_ep> ask_for_connection(Station& from, fid_pep* to, const std::vector<uint8_t>& data = {});

// The next request of a passive endpoint of `at` (if it is named, of that one), accepted;
// FI_CONNECTED is still to be read.
Fid<fid_ep> accept_next(Station& at, const fid_pep* pep = nullptr, fid_ep* shared = nullptr);

// Two endpoints connected through a passive one, all in this process.
struct Connected {
  Connected(Station& from, Station& to);
  Station& a;
  Station& b;
  Fid<fid_pep> pep;
  Fid<fid_ep> at_a;
  Fid<fid_ep> at_b;
};

}  // namespace aperture::doors
