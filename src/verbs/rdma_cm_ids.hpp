// The ids that applications have, by the numbers under which they know them, and how the events of
// a cm::Id become those of the kernel's interface. rdma/rdma_user_cm.h, ABI version 4.
//
// All of it is the control thread's own, but what rdma_cm_channel.hpp says of events.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/address.hpp"
#include "cm/id.hpp"
#include "verbs/rdma_cm_channel.hpp"

namespace aperture::verbs::rdma_cm {

// The lowest free number for each new object, as a kernel gives them.
class Numbers {
 public:
  uint32_t take();  // errors by exception std::bad_alloc
  void give_back(uint32_t number) noexcept;

 private:
  std::vector<bool> taken_;
  size_t lowest_free_ = 0;
};

// What applications know by a number, which it has for as long as it lives.
struct Numbered : Reporter {
  explicit Numbered(Numbers& from) : numbers(from), handle(from.take()) {}
  ~Numbered() { numbers.give_back(handle); }
  Numbered(const Numbered&) = delete;
  Numbered& operator=(const Numbered&) = delete;

  Numbers& numbers;
  const uint32_t handle;
  uint64_t uid = 0;  // what the application has given for it
};

// One for which it has given none is a request that nobody has accepted; its events are dropped.
struct AppId : Numbered {
  using Numbered::Numbered;
  uint16_t port_space = 0;
  std::shared_ptr<Channel> channel;
  std::unique_ptr<cm::Id> id;
  bool ack_timeout_set = false;
  uint8_t ack_timeout = 0;
  uint8_t tos = 0;
  uint32_t qpn = 0;  // of its queue pair, once it has connected or accepted
  // That the other side has ended the connection; waits until what had come before is taken.
  Events held;
  uint64_t held_until_ns = 0;
  nic::ControlThread::TimerId held_timer = 0;
};

// Of an id in a multicast group.
struct Membership : Numbered {
  using Numbered::Numbered;
  AppId* of = nullptr;
};

class Ids {
 public:
  // Of this process. Errors: no_memory, no_fds.
  static Result<Ids*> instance() noexcept;
  // Null: no id has been made in this process so far.
  static Ids* existing() noexcept;
  nic::ControlThread& control() noexcept { return control_; }

  // --- on the control thread ---
  Result<AppId*> create(std::shared_ptr<Channel> channel, uint16_t port_space,
                        const cm::Service& service, uint64_t uid) noexcept;
  // 0 and the id, ENOENT (there is none of that number) or EINVAL (it is another channel's).
  int find(const Channel& channel, uint32_t handle, AppId*& found) noexcept;
  // How many events of it have been handed out.
  uint32_t destroy(AppId& app) noexcept;
  uint32_t migrate(AppId& app, std::shared_ptr<Channel> to) noexcept;
  void close(const Channel& channel) noexcept;
  // An event of the application's own, behind those that wait.
  void write_event(AppId& app, uint32_t event, uint32_t status, uint64_t arg) noexcept;

  // The number of the membership. Errors: no_memory.
  Result<uint32_t> join(AppId& app, const Address& group, uint64_t uid, uint32_t qkey) noexcept;
  // As find(); how many events of it have been handed out is in `reported`.
  int leave(const Channel& channel, uint32_t handle, uint32_t& reported) noexcept;

 private:
  explicit Ids(nic::ControlThread& control) noexcept : control_(control) {}

  // Errors: no_memory.
  Result<AppId*> add(std::shared_ptr<Channel> channel, uint16_t port_space, uint64_t uid,
                     std::unique_ptr<cm::Id> id) noexcept;
  void on_event(AppId& app, cm::Event&& event) noexcept;
  // Until its queue pair's completions have been polled, but not for ever.
  void hold(AppId& app, Events&& events) noexcept;
  void look_at_held(AppId& app, uint64_t again_after_ns) noexcept;
  void let_go(AppId& app) noexcept;

  nic::ControlThread& control_;
  Numbers id_numbers_;
  Numbers membership_numbers_;
  std::map<uint32_t, std::unique_ptr<AppId>> ids_;
  std::map<uint32_t, std::unique_ptr<Membership>> members_;
};

// --- what the kernel's interface says about an id ---

uint8_t sgid_index_of(const Address& local) noexcept;
// Towards that address, by way of our one port.
void fill_ah(const Address& local, const Address& remote, ib_uverbs_ah_attr& out) noexcept;
// rdma_init_qp_attr(3). 0 or EINVAL.
int init_qp_attr(const AppId& app, uint32_t qp_state, ib_uverbs_qp_attr& out) noexcept;
void query_route(const AppId& app, rdma_ucm_query_route_resp& out) noexcept;
void query_addr(const AppId& app, rdma_ucm_query_addr_resp& out) noexcept;
void query_gid(const AppId& app, rdma_ucm_query_addr_resp& out) noexcept;
// False: there is no path yet.
bool query_path(const AppId& app, ib_path_rec_data& out) noexcept;

inline constexpr uint32_t kUdpQkey = 0x0123'4567;  // RDMA_UDP_QKEY
inline constexpr uint8_t kPortNumber = 1;
inline constexpr uint16_t kAfIb = 27;  // AF_IB

}  // namespace aperture::verbs::rdma_cm
