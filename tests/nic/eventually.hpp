// Waiting for what another thread or process does soon.
#pragma once

#include <chrono>
#include <thread>

namespace aperture::nic::test {

// Whether condition() becomes true within that time.
template <typename Condition>
bool eventually(Condition condition, int timeout_ms = 3000) {
  for (int i = 0; i < timeout_ms; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return condition();
}

}  // namespace aperture::nic::test
