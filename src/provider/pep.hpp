// fid_pep: passive endpoints. man 3 fi_endpoint, fi_cm.
//
// Control calls are serialised by the application; connection requests come on the control thread,
// which only reads what fi_listen has settled.
#pragma once

#include <rdma/fi_cm.h>
#include <rdma/fi_endpoint.h>

#include "nic/contact.hpp"
#include "provider/auth_key.hpp"
#include "provider/eq.hpp"
#include "provider/fabric.hpp"
#include "provider/info_memory.hpp"

namespace aperture::provider {

struct Pep;

class RequestReports final : public nic::ContactEvents {
 public:
  explicit RequestReports(Pep& pep) noexcept : pep_(pep) {}
  void on_request(const nic::ConnectionRequest& request) noexcept override;
  void on_request_gone(nic::RequestId id) noexcept override;
  // A passive endpoint has no lanes and connects nowhere.
  void on_lane_up(const Address&, std::unique_ptr<link::Lane>) noexcept override {}
  void on_connect_failed(const Address&, Errc) noexcept override {}
  void on_lane_down(link::Lane*, Errc) noexcept override {}

 private:
  Pep& pep_;
};

struct Pep {
  fid_pep fid{};
  Fabric* fabric = nullptr;
  ForkRound round;  // in which it was opened
  Eq* eq = nullptr;
  InfoPtr info;  // what its connection requests are described with; without keys
  std::shared_ptr<const Secret> domain_key;  // domain_attr->auth_key of that info, null: none
  std::shared_ptr<const Secret> auth_key;    // its own: that of ep_attr, or else domain_key
  Address local;                             // port 0 until it listens, unless one was given
  nic::ListenerId listener = 0;
  bool listening = false;
  bool spent = false;  // an active endpoint has taken its address
  size_t backlog = 0;
  RequestReports reports{*this};
};

int open_passive(fid_fabric* fabric, fi_info* info, fid_pep** pep, void* context) noexcept;
// fi_endpoint with info->handle: takes the address of a passive endpoint that does not listen. 0 or
// a negative fi_errno; -FI_ENOENT: that is no passive endpoint.
int take_passive(const fid* handle, Address& local) noexcept;

}  // namespace aperture::provider
