// One of our ends, as first contact knows it: what its owner asked for, who is told, and the door
// through which others come to it. A value of the control thread's.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "nic/peer.hpp"

namespace aperture::nic {

class Doorway;

using EndPair = std::pair<ListenerId, Address>;  // an end of ours, and one elsewhere

struct ListeningEnd {
  ListenSpec spec;
  LocalEnd end;
  // Null: nobody comes; the end of a connection that was accepted has no door of its own.
  std::shared_ptr<Doorway> doorway;
  // Of a listener for requests: those that wait for an answer, and how many may.
  size_t waiting = 0;
  size_t backlog = 0;

  ListenFor what() const noexcept { return spec.what; }
  ContactEvents& events() const noexcept { return *spec.events; }
};

}  // namespace aperture::nic
