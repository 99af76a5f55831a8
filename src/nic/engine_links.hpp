// The links of one engine that have something to move (link/progress.hpp): each poll progresses all
// of them before its queue pairs, and flushes them afterwards.
//
// Two are the engine's own: what moves lanes over streams, which is among them while there are such
// lanes, and what moves lanes with faults, where the user has asked for some. The descriptor of
// each wakes a sleeping engine. Guarded by the engine's lock.
#pragma once

#include <memory>
#include <vector>

#include "base/errc.hpp"
#include "link/faulty/mover.hpp"
#include "link/progress.hpp"
#include "link/tcp/mover.hpp"
#include "nic/wakers.hpp"

namespace aperture::nic {

class EngineLinks {
 public:
  // wakers: the engine's, open before the first link is added.
  explicit EngineLinks(Wakers& wakers) noexcept : wakers_(wakers) {}
  EngineLinks(const EngineLinks&) = delete;
  EngineLinks& operator=(const EngineLinks&) = delete;
  // All that were added are removed.
  ~EngineLinks();

  // Makes the engine's own, of which nothing is added yet. host outlives them. Errors: no_memory,
  // no_fds.
  Status make_own(link::tcp::MoverHost& host) noexcept;
  // What moves lanes with faults; null where the user has not asked for any.
  const std::shared_ptr<link::faulty::Mover>& faults() const noexcept { return faults_; }
  // What moves lanes over streams.
  const std::shared_ptr<link::tcp::Mover>& mover() const noexcept { return mover_; }

  // Not from a progress(). Errors of adding: no_memory, no_fds, io. One that is not there is
  // removed without harm.
  Status add(link::Progress& link) noexcept;
  void remove(link::Progress& link) noexcept;
  bool empty() const noexcept { return links_.empty(); }

  void progress() noexcept {
    for (link::Progress* link : links_) link->progress();
  }
  // hurry: link::Progress::flush().
  void flush(bool hurry) noexcept {
    for (link::Progress* link : links_) link->flush(hurry);
  }
  bool any_needs_polling() const noexcept;

 private:
  Wakers& wakers_;
  std::vector<link::Progress*> links_;
  std::shared_ptr<link::tcp::Mover> mover_;
  std::shared_ptr<link::faulty::Mover> faults_;
};

}  // namespace aperture::nic
