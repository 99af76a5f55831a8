// A registration cache as cachebench sees it, whosever it is: the functions of peer.h. All caches
// are called in the same way, so that what a call costs beyond the cache is the same for all.
#pragma once

#include <string>

#include "cachebench/peer.h"

namespace aperture::bench {

struct Door {
  decltype(&cache_peer_version) version;
  decltype(&cache_peer_open) open;
  decltype(&cache_peer_use) use;
  decltype(&cache_peer_close) close;
  bool keeps = true;  // false: there is no cache behind it, to see what memory costs without one
};

// Aperture's own, linked to this program.
Door own_cache();
Door no_cache();
// Of the shared module at that path. Throws Failure.
Door load_cache(const std::string& path);
// "aperture", "none", or a path. Throws Failure.
Door door_of(const std::string& name);

}  // namespace aperture::bench
