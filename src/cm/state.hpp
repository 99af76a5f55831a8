// The life of an rdma_cm id, as one table: what each command of the application, each message of
// the peer and each loss makes of each state. rdma_cm(7); IBTA volume 1, 12.9 (the communication
// states) and 12.11 (service id resolution).
//
// A connection, active side:   idle, (bound), addr_resolved, route_resolved, req_sent,
//                              rep_received, established, dreq_sent or dreq_received, timewait
//               passive side:  req_received, rep_sent, established, ...
// Service id resolution:       ..., route_resolved, sidr_sent, sidr_done
//                              sidr_received, sidr_done
// What the table leaves empty is refused with EINVAL (a command) or ends the connection (a
// message). Values; the control thread owns every state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace aperture::cm {

enum class State : uint8_t {
  idle,
  bound,
  addr_resolved,
  route_resolved,
  listening,
  req_sent,
  req_received,
  abandoned,  // requested, but who asked has gone: the application learns it when it accepts
  rep_sent,
  rep_received,
  established,
  dreq_sent,
  dreq_received,
  timewait,
  over,
  sidr_sent,
  sidr_received,
  sidr_done,
};
inline constexpr size_t kStates = 18;

enum class Input : uint8_t {
  // commands
  bind,
  resolve_addr,
  resolve_route,
  listen,
  connect,
  ask,  // connect of a datagram id
  accept,
  establish,  // accept of the active side; or the application has seen data before the RTU
  reject,
  disconnect,
  // messages
  rep,
  rtu,
  rej,
  dreq,
  drep,
  // and their absence
  lost,     // the connection is gone
  expired,  // the state has lasted too long, or (timewait) long enough
};
inline constexpr size_t kInputs = 17;

struct Transition {
  State from;
  Input input;
  State to;
};

inline constexpr Transition kTransitions[] = {
    {State::idle, Input::bind, State::bound},
    {State::idle, Input::resolve_addr, State::addr_resolved},
    {State::idle, Input::listen, State::listening},
    {State::bound, Input::resolve_addr, State::addr_resolved},
    {State::bound, Input::listen, State::listening},
    {State::addr_resolved, Input::resolve_route, State::route_resolved},
    {State::route_resolved, Input::connect, State::req_sent},
    {State::route_resolved, Input::ask, State::sidr_sent},
    {State::req_sent, Input::reject, State::over},
    {State::req_sent, Input::disconnect, State::req_sent},
    {State::req_sent, Input::rep, State::rep_received},
    {State::req_sent, Input::rej, State::over},
    {State::req_sent, Input::lost, State::over},
    {State::req_sent, Input::expired, State::over},
    {State::req_received, Input::accept, State::rep_sent},
    {State::req_received, Input::reject, State::over},
    {State::req_received, Input::disconnect, State::req_received},
    {State::req_received, Input::rej, State::abandoned},
    {State::req_received, Input::lost, State::abandoned},
    {State::abandoned, Input::accept, State::over},
    {State::abandoned, Input::reject, State::over},
    {State::abandoned, Input::disconnect, State::abandoned},
    {State::rep_sent, Input::establish, State::established},
    {State::rep_sent, Input::reject, State::over},
    {State::rep_sent, Input::disconnect, State::rep_sent},
    {State::rep_sent, Input::rtu, State::established},
    {State::rep_sent, Input::rej, State::over},
    {State::rep_sent, Input::dreq, State::dreq_received},
    {State::rep_sent, Input::lost, State::over},
    {State::rep_sent, Input::expired, State::over},
    {State::rep_received, Input::establish, State::established},
    {State::rep_received, Input::reject, State::over},
    {State::rep_received, Input::disconnect, State::rep_received},
    {State::rep_received, Input::rej, State::over},
    {State::rep_received, Input::lost, State::over},
    {State::established, Input::disconnect, State::dreq_sent},
    {State::established, Input::rtu, State::established},
    {State::established, Input::dreq, State::dreq_received},
    {State::established, Input::lost, State::dreq_received},
    {State::dreq_sent, Input::disconnect, State::dreq_sent},
    {State::dreq_sent, Input::rtu, State::dreq_sent},
    {State::dreq_sent, Input::dreq, State::timewait},
    {State::dreq_sent, Input::drep, State::timewait},
    {State::dreq_sent, Input::lost, State::timewait},
    {State::dreq_sent, Input::expired, State::timewait},
    {State::dreq_received, Input::disconnect, State::timewait},
    {State::timewait, Input::disconnect, State::timewait},
    {State::timewait, Input::expired, State::over},
    {State::over, Input::disconnect, State::over},
    {State::sidr_sent, Input::disconnect, State::sidr_sent},
    {State::sidr_sent, Input::rep, State::sidr_done},
    {State::sidr_sent, Input::rej, State::over},
    {State::sidr_sent, Input::lost, State::over},
    {State::sidr_sent, Input::expired, State::over},
    {State::sidr_received, Input::accept, State::sidr_done},
    {State::sidr_received, Input::reject, State::over},
    {State::sidr_received, Input::disconnect, State::sidr_received},
    {State::sidr_done, Input::disconnect, State::sidr_done},
};

// What it becomes; nothing: not legal there.
constexpr std::optional<State> after(State now, Input input) noexcept {
  for (const Transition& t : kTransitions) {
    if (t.from == now && t.input == input) return t.to;
  }
  return std::nullopt;
}

}  // namespace aperture::cm
