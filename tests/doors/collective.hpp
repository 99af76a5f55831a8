// A member of groups: a node with an event queue, as the tests of fi_collective(3) need it.
#pragma once

#include <rdma/fi_collective.h>

#include "doors/fixture.hpp"

namespace aperture::doors {

inline Options collective_options(uint64_t caps = FI_MSG | FI_TAGGED | FI_COLLECTIVE) {
  Options o;
  o.caps = caps;
  o.av_type = FI_AV_TABLE;
  o.enable = false;
  o.counters = true;
  return o;
}

using SetPtr = Fid<fid_av_set>;
using McPtr = Fid<fid_mc>;

// A node with an event queue, and the other members' addresses in their order.
struct Member {
  // At that address, if one is given.
  explicit Member(const Options& options = collective_options(),
                  const std::vector<uint8_t>& name = {})
      : node(options) {
    fi_eq_attr attr{};
    eq = DOOR_MADE(fi_eq_open, node.fabric(), &attr);
    if (!name.empty())
      DOOR(fi_setname(&node.ep()->fid, const_cast<uint8_t*>(name.data()), name.size()));
    DOOR(fi_ep_bind(node.ep(), &eq->fid, 0));
    DOOR(fi_enable(node.ep()));
  }
  ~Member() { node.close_endpoint(); }  // before its event queue
  SetPtr set_of(const std::vector<fi_addr_t>& members, uint64_t flags = 0) {
    fi_av_set_attr attr{};
    attr.start_addr = attr.end_addr = FI_ADDR_NOTAVAIL;
    attr.flags = flags;
    SetPtr set = DOOR_MADE(fi_av_set, node.av(), &attr);
    for (const fi_addr_t member : members) DOOR(fi_av_set_insert(set.get(), member));
    return set;
  }
  // 0, the error that the event queue has of the join, or -FI_ETIMEDOUT, -FI_EOTHER.
  int joined(const fid_mc* mc) {
    int answer = -FI_ETIMEDOUT;
    pump_until([&] {
      uint32_t event = 0;
      fi_eq_entry entry{};
      const ssize_t n = fi_eq_read(eq.get(), &event, &entry, sizeof entry, 0);
      if (n == -FI_EAGAIN) return false;
      fi_eq_err_entry error{};
      if (n == -FI_EAVAIL && fi_eq_readerr(eq.get(), &error, 0) > 0) {
        answer = error.fid == &mc->fid && error.context == this ? error.err : -FI_EOTHER;
        return true;
      }
      answer = n == sizeof entry && event == FI_JOIN_COMPLETE && entry.fid == &mc->fid &&
                       entry.context == this
                   ? 0
                   : -FI_EOTHER;
      return true;
    });
    return answer;
  }
  // Begins to join; joined() is to follow.
  McPtr begin_to_join(const SetPtr& set) {
    fi_addr_t addr = 0;
    DOOR(fi_av_set_addr(set.get(), &addr));
    fid_mc* mc = nullptr;
    DOOR(fi_join_collective(node.ep(), addr, set.get(), 0, &mc, this));
    return McPtr(mc);
  }
  McPtr join(const SetPtr& set) {
    McPtr mc = begin_to_join(set);
    DOOR(joined(mc.get()));
    return mc;
  }
  template <typename Call, typename... Args>
  int64_t run(Call call, Args... args) {
    return node.run(call, args...);
  }

  Node node;
  Fid<fid_eq> eq;
};

}  // namespace aperture::doors
