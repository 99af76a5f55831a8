// What a connection costs before its first message has been answered.
#pragma once

#include "verbbench/task.hpp"

namespace aperture::bench {

// A queue pair of each side is made, their numbers are exchanged over a socket, both go from RESET
// to RTS, and one message goes each way. Their end is not part of it, nor is the processes' first
// meeting: the first link of every measure has seen to that.
std::unique_ptr<VerbsTask> make_connecting(const Setup&, Side&, size_t size_bytes);

}  // namespace aperture::bench
