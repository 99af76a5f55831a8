// The connected queue pairs of the verbs door by their numbers: what the connection manager asks
// about the queue pair of an id, of which it has nothing but the number.
//
// Any thread, without an engine's lock, which is taken within.
#pragma once

#include "base/number_map.hpp"
#include "base/per_process.hpp"
#include "nic/qp_numbers.hpp"

namespace aperture::ib {
class QueuePair;
}

namespace aperture::nic {

class Engine;

class VerbsQps {
 public:
  struct Entry {
    Engine& engine;
    ib::QueuePair& qp;
  };

  // Of this process. The entry stays where it is until it is removed. By exception std::bad_alloc.
  static void add(QpNumber number, Entry& entry);
  // From here on nobody is inside it. Unknown ones are ignored.
  static void remove(QpNumber number) noexcept;
  // Takes what has reached that queue pair. True: it has completions, successes, that nobody has
  // polled yet. Of a number that is not here: false.
  static bool has_untaken(QpNumber number) noexcept;

 private:
  ProcessLock lock_;          // held while an entry is looked into; outside of the engine's
  NumberMap<Entry> entries_;  // guarded by lock_
};

}  // namespace aperture::nic
