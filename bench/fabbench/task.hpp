// A measure over one libfabric endpoint.
#pragma once

#include "fabbench/session.hpp"
#include "stopwatch/task.hpp"

namespace aperture::bench {

class FabricTask : public Task {
 public:
  FabricTask(const Setup& setup, Side& side, Target target = Target::polling)
      : Task(side, target), session_(setup, side.channel) {}

  void progress(int calls) override { session_.progress(calls); }
  Session& session() noexcept { return session_; }

 protected:
  Session session_;
};

}  // namespace aperture::bench
