// Where an application made a call of ours, for explanations. libfabric's calls are inline
// functions of its headers: built without optimisation they are frames of their own, which pass our
// answer on and return. Such a frame is stepped over where it can be seen to be one.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/guarded_copy.hpp"

namespace aperture::provider {

// From __builtin_return_address(0) and __builtin_frame_address(0) of the entry point. Any thread.
inline const void* caller_of(const void* returns_to, const void* frame) noexcept {
#if defined(__x86_64__)
  // after the call: add $n, %rsp, maybe; then leave; ret
  uint8_t code[6] = {};
  if (!guarded_copy(code, returns_to, sizeof code)) return returns_to;
  const bool adds = code[0] == 0x48 && code[1] == 0x83 && code[2] == 0xc4;
  const uint8_t* at = adds ? code + 4 : code;
  if (at[0] != 0xc9 || at[1] != 0xc3) return returns_to;
  // `leave` says that its frame pointer is in force: ours was saved in our frame
  const void* its_frame = nullptr;
  std::memcpy(&its_frame, frame, sizeof its_frame);
  const void* further = nullptr;
  const void* const* slot = static_cast<const void* const*>(its_frame) + 1;
  return guarded_copy(&further, slot, sizeof further) ? further : returns_to;
#else
  (void)frame;
  return returns_to;
#endif
}

}  // namespace aperture::provider
