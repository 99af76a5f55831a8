// An engine ends while the control thread is making progress for it: nothing of it is left behind
// there. What would be is seen by AddressSanitizer.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "nic/control_thread.hpp"
#include "nic/engine.hpp"

namespace aperture::nic {
namespace {

void pause_ms(int ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

TEST(EngineEnd, a_tick_that_the_control_thread_has_begun_does_not_outlive_its_engine) {
  auto thread = ControlThread::instance();
  ASSERT_TRUE(thread.ok());
  for (int i = 0; i < 3; ++i) {
    auto made = Engine::create({.auto_progress = true});
    ASSERT_TRUE(made.ok());
    std::unique_ptr<Engine> engine = *std::move(made);
    Engine& seen = *engine;
    pause_ms(120);  // it sleeps by now, and has stopped ticking
    std::atomic<bool> begun{false};
    (*thread)->post([&] {
      begun = true;
      pause_ms(50);  // ~Engine has asked to be forgotten, and waits for its turn
      const EngineGuard guard(seen);
      seen.poll();  // wakes it
    });
    while (!begun) pause_ms(1);
    engine.reset();
    pause_ms(5);
    (*thread)->run([] {});
  }
}

}  // namespace
}  // namespace aperture::nic
