// Ids, addresses, events, options and groups among the commands, and their table: see
// rdma_cm_commands.hpp; connections are in rdma_cm_connect.cpp.
#include "verbs/rdma_cm_commands.hpp"

#include <infiniband/verbs.h>
#include <sys/socket.h>

#include <cassert>
#include <cstring>

#include "base/log.hpp"
#include "verbs/errors.hpp"
#include "verbs/path_fds.hpp"
#include "verbs/rdma_cm_call.hpp"

namespace aperture::verbs::rdma_cm {

namespace {

constexpr size_t kMaxBacklog = 1024;  // net.rdma_ucm.max_backlog
// Answers may end before the fields that newer libraries have.
constexpr size_t kRouteBytes = offsetof(rdma_ucm_query_route_resp, ibdev_index);
constexpr size_t kAddrBytes = offsetof(rdma_ucm_query_addr_resp, ibdev_index);
constexpr size_t kEventBytes = offsetof(rdma_ucm_event_resp, reserved);

// Commands that kernels have since 6.17 and older headers have not. The second may be longer: what
// follows is unused in the events that it may write.
constexpr uint32_t kCmdWriteEvent = 24;
struct ResolveIbService {
  uint32_t id;
  uint32_t reserved;
};
struct WriteEvent {
  uint32_t id;
  uint32_t reserved;
  uint32_t event;
  uint32_t status;
  uint64_t arg;
};
static_assert(sizeof(WriteEvent) == 24);
constexpr uint32_t kEventUser = 18;      // RDMA_CM_EVENT_USER
constexpr uint32_t kEventInternal = 19;  // RDMA_CM_EVENT_INTERNAL: librdmacm to itself

sa_family_t family_of(const void* sockaddr_bytes) noexcept {
  sa_family_t family;
  std::memcpy(&family, sockaddr_bytes, sizeof family);
  return family;
}

// rdma_create_id(3): in RDMA_PS_IB, what kind of queue pair the id will have decides.
std::optional<cm::Service> service_of(uint16_t port_space, uint8_t qp_type) noexcept {
  switch (port_space) {
    case RDMA_PS_TCP: return cm::PortSpace::tcp;
    case RDMA_PS_UDP: return cm::PortSpace::udp;
    case RDMA_PS_IPOIB: return cm::PortSpace::ipoib;
    case RDMA_PS_IB: return cm::Service(cm::PortSpace::ib, qp_type == IBV_QPT_UD);
    default: return std::nullopt;
  }
}

int do_create_id(const Call& call, const rdma_ucm_create_id& command) {
  if (call.out_bytes() < sizeof(rdma_ucm_create_id_resp)) return ENOSPC;
  const auto service = service_of(command.ps, command.qp_type);
  if (!service) return EINVAL;
  auto ids = Ids::instance();
  if (!ids) return ids.error() == Errc::no_memory ? ENOMEM : ENODEV;
  rdma_ucm_create_id_resp answer{};
  call.channel()->note_use();
  int error = 0;
  (*ids)->control().run([&] {
    auto app = (*ids)->create(call.channel(), command.ps, *service, command.uid);
    assert(!app || (*app)->channel == call.channel());
    if (app) {
      answer.id = (*app)->handle;
    } else {
      error = errno_of(app.error());
    }
  });
  if (error != 0) return error;
  error = call.answer(command.response, answer);
  if (error != 0) {
    call.with_id(answer.id, [&](AppId& app) {
      (*ids)->destroy(app);
      return 0;
    });
  }
  return error;
}

int do_destroy_id(const Call& call, const rdma_ucm_destroy_id& command) {
  if (call.out_bytes() < sizeof(rdma_ucm_destroy_id_resp)) return ENOSPC;
  rdma_ucm_destroy_id_resp answer{};
  const int error = call.with_id(command.id, [&](AppId& app) {
    answer.events_reported = Ids::existing()->destroy(app);
    return 0;
  });
  return error != 0 ? error : call.answer(command.response, answer);
}

int explain_address(const char* call, const Address& address, Status s) noexcept {
  switch (s.error()) {
    case Errc::ok: return 0;
    case Errc::unreachable: return ENETUNREACH;  // cm/ says why
    case Errc::bad_state:
      APERTURE_WARN("%s: the id has been bound or connected already", call);
      break;
    case Errc::addr_not_avail: break;  // likewise
    default: APERTURE_WARN("%s: %s: %s", call, address.print().c_str(), describe(s.error())); break;
  }
  return errno_of(s);
}

// librdmacm binds an address of AF_IB once, to learn whether there are any. Told that there are
// none, it refuses each itself (EINVAL), and rdma_getaddrinfo(3) answers with addresses of IP.
int refuse_family(const char* call, const void* sockaddr_bytes) noexcept {
  if (family_of(sockaddr_bytes) == kAfIb) {
    APERTURE_INFO(
        "%s: an address of AF_IB: the port is an Ethernet port and has none; ids are addressed by "
        "IP (AF_INET, AF_INET6), and librdmacm refuses AF_IB from now on (EINVAL)",
        call);
  } else {
    APERTURE_INFO("%s: an address that is neither AF_INET nor AF_INET6", call);
  }
  return EINVAL;
}

int bind_to(const Call& call, uint32_t id, const void* sockaddr_bytes, size_t size) {
  const auto at = address_of(sockaddr_bytes, size);
  if (!at) return refuse_family("rdma_bind_addr", sockaddr_bytes);
  return call.with_id(
      id, [&](AppId& app) { return explain_address("rdma_bind_addr", *at, app.id->bind(*at)); });
}

int do_bind_ip(const Call& call, const rdma_ucm_bind_ip& command) {
  return bind_to(call, command.id, &command.addr, sizeof command.addr);
}

int do_bind(const Call& call, const rdma_ucm_bind& command) {
  if (command.reserved != 0 || command.addr_size == 0 ||
      command.addr_size != sockaddr_bytes_of(&command.addr)) {
    return refuse_family("rdma_bind_addr", &command.addr);
  }
  return bind_to(call, command.id, &command.addr, command.addr_size);
}

int resolve(const Call& call, uint32_t id, const std::optional<Address>& from,
            const void* sockaddr_bytes, size_t size) {
  const auto to = address_of(sockaddr_bytes, size);
  if (!to) return refuse_family("rdma_resolve_addr", sockaddr_bytes);
  return call.with_id(id, [&](AppId& app) {
    return explain_address("rdma_resolve_addr", *to, app.id->resolve_addr(from, *to));
  });
}

int do_resolve_ip(const Call& call, const rdma_ucm_resolve_ip& command) {
  return resolve(call, command.id, address_of(&command.src_addr, sizeof command.src_addr),
                 &command.dst_addr, sizeof command.dst_addr);
}

int do_resolve_addr(const Call& call, const rdma_ucm_resolve_addr& command) {
  if (command.reserved != 0 || command.dst_size == 0 ||
      command.dst_size != sockaddr_bytes_of(&command.dst_addr) ||
      (command.src_size != 0 && command.src_size != sockaddr_bytes_of(&command.src_addr))) {
    return refuse_family("rdma_resolve_addr", &command.dst_addr);
  }
  return resolve(call, command.id, address_of(&command.src_addr, command.src_size),
                 &command.dst_addr, command.dst_size);
}

int do_resolve_route(const Call& call, const rdma_ucm_resolve_route& command) {
  return call.with_id(command.id, [](AppId& app) { return errno_of(app.id->resolve_route()); });
}

// `option` is not looked at, and old libraries do not write it
int do_query_route(const Call& call, const rdma_ucm_query& command) {
  rdma_ucm_query_route_resp answer{};
  const int error = call.with_id(command.id, [&](AppId& app) {
    query_route(app, answer);
    return 0;
  });
  return error != 0 ? error : call.answer(command.response, answer, kRouteBytes);
}

int do_query_path(const Call& call, const rdma_ucm_query& command) {
  struct {
    uint32_t num_paths;
    uint32_t reserved;
    ib_path_rec_data path;
  } answer{};
  constexpr size_t kHeadBytes = sizeof(rdma_ucm_query_path_resp);
  static_assert(offsetof(decltype(answer), path) == kHeadBytes);
  const int error = call.with_id(command.id, [&](AppId& app) {
    answer.num_paths = query_path(app, answer.path) ? 1 : 0;
    return 0;
  });
  if (error != 0) return error;
  return call.answer(command.response, answer, kHeadBytes);
}

int do_query(const Call& call, const rdma_ucm_query& command) {
  if (command.option == RDMA_USER_CM_QUERY_PATH) return do_query_path(call, command);
  if (command.option > RDMA_USER_CM_QUERY_GID) return ENOSYS;
  rdma_ucm_query_addr_resp answer{};
  const int error = call.with_id(command.id, [&](AppId& app) {
    command.option == RDMA_USER_CM_QUERY_GID ? query_gid(app, answer) : query_addr(app, answer);
    return 0;
  });
  return error != 0 ? error : call.answer(command.response, answer, kAddrBytes);
}

int do_listen(const Call& call, const rdma_ucm_listen& command) {
  const auto asked = static_cast<int32_t>(command.backlog);
  const size_t backlog = asked > 0 && static_cast<size_t>(asked) < kMaxBacklog
                             ? static_cast<size_t>(asked)
                             : kMaxBacklog;
  return call.with_id(command.id, [&](AppId& app) {
    const Status s = app.id->listen(backlog);
    return explain_address("rdma_listen", app.id->binding().local().value_or(Address{}), s);
  });
}

int set_id_option(AppId& app, const rdma_ucm_set_option& command, uint32_t value) {
  switch (command.optname) {
    case RDMA_OPTION_ID_TOS:
      if (command.optlen != 1) return EINVAL;
      app.tos = static_cast<uint8_t>(value);
      return 0;
    case RDMA_OPTION_ID_REUSEADDR:
      if (command.optlen != sizeof(int)) return EINVAL;
      return errno_of(app.id->set_reuse(value != 0));
    case RDMA_OPTION_ID_AFONLY:
      if (command.optlen != sizeof(int)) return EINVAL;
      return errno_of(app.id->set_six_only(value != 0));
    case RDMA_OPTION_ID_ACK_TIMEOUT:
      if (command.optlen != 1 || (value & 0xe0) != 0 || app.id->is_datagram()) return EINVAL;
      app.ack_timeout = static_cast<uint8_t>(value);
      app.ack_timeout_set = true;
      return 0;
    default: return ENOSYS;
  }
}

// RDMA_OPTION_IB_PATH stands for rdma_resolve_route(). There is one path, whatever it says.
int set_path(const Call& call, const rdma_ucm_set_option& command) {
  ib_path_rec_data path;
  constexpr uint32_t kWhole = IB_PATH_GMP | IB_PATH_PRIMARY | IB_PATH_BIDIRECTIONAL;
  constexpr uint32_t kMaxPaths = 64;
  if (command.optname != RDMA_OPTION_IB_PATH) return ENOSYS;
  if (command.optlen % sizeof path != 0 || command.optlen / sizeof path > kMaxPaths) return EINVAL;
  for (uint32_t at = 0; at < command.optlen; at += sizeof path) {
    const auto* from = reinterpret_cast<const std::byte*>(command.optval) + at;
    if (!guarded_copy(&path, from, sizeof path)) return EFAULT;
    if (path.flags != kWhole) continue;
    return call.with_id(command.id, [](AppId& app) { return errno_of(app.id->resolve_route()); });
  }
  return EINVAL;
}

int do_set_option(const Call& call, const rdma_ucm_set_option& command) {
  if (command.level == RDMA_OPTION_IB) return set_path(call, command);
  if (command.level != RDMA_OPTION_ID) return ENOSYS;
  uint32_t value = 0;
  if (command.optlen > sizeof value) return EINVAL;
  if (!guarded_copy(&value, reinterpret_cast<const void*>(command.optval), command.optlen)) {
    return EFAULT;
  }
  return call.with_id(command.id, [&](AppId& app) { return set_id_option(app, command, value); });
}

int join(const Call& call, uint64_t response, uint64_t uid, uint32_t id, const void* sockaddr_bytes,
         size_t size) {
  if (call.out_bytes() < sizeof(rdma_ucm_create_id_resp)) return ENOSPC;
  const auto group = address_of(sockaddr_bytes, size);
  if (!group) return refuse_family("rdma_join_multicast", sockaddr_bytes);
  rdma_ucm_create_id_resp answer{};
  const int error = call.with_id(id, [&](AppId& app) {
    const cm::State state = app.id->state();
    const bool fit = state == cm::State::bound || state == cm::State::addr_resolved ||
                     state == cm::State::route_resolved;
    if (!app.id->is_datagram() || !app.id->binding().has_device() || !fit) {
      APERTURE_WARN(
          "rdma_join_multicast: the id must be of RDMA_PS_UDP or RDMA_PS_IPOIB, and bound "
          "to an address of the device");
      return EINVAL;
    }
    auto joined = Ids::existing()->join(app, *group, uid, kUdpQkey);
    if (!joined) return errno_of(joined.error());
    answer.id = *joined;
    return 0;
  });
  return error != 0 ? error : call.answer(response, answer);
}

int do_join_ip(const Call& call, const rdma_ucm_join_ip_mcast& command) {
  return join(call, command.response, command.uid, command.id, &command.addr, sizeof command.addr);
}

int do_join(const Call& call, const rdma_ucm_join_mcast& command) {
  if (command.addr_size == 0 || command.addr_size != sockaddr_bytes_of(&command.addr) ||
      command.join_flags >= RDMA_MC_JOIN_FLAG_RESERVED) {
    return refuse_family("rdma_join_multicast", &command.addr);
  }
  return join(call, command.response, command.uid, command.id, &command.addr, command.addr_size);
}

int do_leave(const Call& call, const rdma_ucm_destroy_id& command) {
  if (call.out_bytes() < sizeof(rdma_ucm_destroy_id_resp)) return ENOSPC;
  auto ids = Ids::instance();
  if (!ids) return ENODEV;
  rdma_ucm_destroy_id_resp answer{};
  int error = 0;
  (*ids)->control().run(
      [&] { error = (*ids)->leave(*call.channel(), command.id, answer.events_reported); });
  return error != 0 ? error : call.answer(command.response, answer);
}

int do_migrate(const Call& call, const rdma_ucm_migrate_id& command) {
  if (call.out_bytes() < sizeof(rdma_ucm_migrate_resp)) return ENOSPC;
  const std::shared_ptr<Channel> from = channel_behind(static_cast<int>(command.fd));
  if (from == nullptr) return ENOENT;
  rdma_ucm_migrate_resp answer{};
  const Call there(from, nullptr, 0, 0);
  const int error = there.with_id(command.id, [&](AppId& app) {
    answer.events_reported = Ids::existing()->migrate(app, call.channel());
    return 0;
  });
  return error != 0 ? error : call.answer(command.response, answer);
}

int do_resolve_ib_service(const Call& call, const ResolveIbService& command) {
  return call.with_id(command.id, [](AppId&) {
    APERTURE_WARN(
        "rdma_resolve_addrinfo: RAI_SA asks a subnet manager, which an Ethernet port has not; "
        "RAI_DNS asks for names");
    return EOPNOTSUPP;
  });
}

// rdma_write_cm_event(3)
int do_write_event(const Call& call, const WriteEvent& command) {
  if (command.event != kEventUser && command.event != kEventInternal) return EINVAL;
  return call.with_id(command.id, [&](AppId& app) {
    Ids::existing()->write_event(app, command.event, command.status, command.arg);
    return 0;
  });
}

int get_event(const std::shared_ptr<Channel>& channel, const Call& call) {
  rdma_ucm_get_event command;
  if (const int e = call.read(command); e != 0) return e;
  if (call.out_bytes() < kEventBytes) return ENOSPC;
  for (;;) {
    {
      const std::lock_guard guard(events_mutex());
      if (const rdma_ucm_event_resp* first = channel->first(); first != nullptr) {
        const int error = call.answer(command.response, *first, kEventBytes);
        if (error == 0) channel->pop();  // who has no place for it finds it again
        return error;
      }
      channel->show_count();
    }
    // restarted, interrupted and cancelled as write()
    if (const int e = channel->wait(); e != 0) return e;
  }
}

// As they are numbered.
// clang-format off
constexpr Handler kHandlers[] = {
    handle<do_create_id>, handle<do_destroy_id>, handle<do_bind_ip>, handle<do_resolve_ip>,
    handle<do_resolve_route>, handle<do_query_route, offsetof(rdma_ucm_query, option)>,
    handle<do_connect, kConnectBytes>, handle<do_listen>, handle<do_accept, kAcceptBytes>,
    handle<do_reject>, handle<do_disconnect>, handle<do_init_qp_attr>, nullptr, nullptr,
    handle<do_set_option>, handle<do_notify>, handle<do_join_ip>, handle<do_leave>,
    handle<do_migrate>, handle<do_query>, handle<do_bind>, handle<do_resolve_addr>, handle<do_join>,
    handle<do_resolve_ib_service>, handle<do_write_event>,
};
// clang-format on
static_assert(std::size(kHandlers) == kCmdWriteEvent + 1);

}  // namespace

std::optional<Address> address_of(const void* sockaddr_bytes, size_t size) noexcept {
  auto a = Address::from_sockaddr(sockaddr_bytes, size);
  return a ? std::optional<Address>(*a) : std::nullopt;
}

size_t sockaddr_bytes_of(const void* sockaddr_bytes) noexcept {
  const sa_family_t family = family_of(sockaddr_bytes);
  return family == AF_INET ? sizeof(sockaddr_in) : family == AF_INET6 ? sizeof(sockaddr_in6) : 0;
}

namespace {

bool may_use(Channel& channel, int fd) noexcept {
  if (channel.is_of_this_process()) return true;
  const std::lock_guard guard(events_mutex());
  if (channel.is_of_this_process()) return true;
  if (!channel.adopt(fd)) return false;
  own_channels();
  return true;
}

}  // namespace

int carry_out(const std::shared_ptr<Channel>& channel, int fd, const void* bytes, size_t size) {
  if (!may_use(*channel, fd)) {
    APERTURE_WARN(
        "rdma_cm: this process was forked from the one that opened the event channel, and its "
        "connections stay with the parent; make a new channel with rdma_create_event_channel");
    return EOPNOTSUPP;
  }
  rdma_ucm_cmd_hdr head;
  if (size < sizeof head) return EINVAL;
  if (!guarded_copy(&head, bytes, sizeof head)) return EFAULT;
  if (head.cmd >= std::size(kHandlers) || head.in + sizeof head > size) return EINVAL;
  const Call call(channel, static_cast<const std::byte*>(bytes) + sizeof head, head.in, head.out);
  if (head.cmd == RDMA_USER_CM_CMD_GET_EVENT) return get_event(channel, call);
  assert(channel->is_of_this_process());
  const Handler handler = kHandlers[head.cmd];
  return handler == nullptr ? ENOSYS : handler(call);
}

void close(const Channel& channel) noexcept {
  Ids* const ids = Ids::existing();
  if (ids == nullptr || !channel.is_of_this_process()) return;
  ids->control().run([&] { ids->close(channel); });
}

}  // namespace aperture::verbs::rdma_cm
