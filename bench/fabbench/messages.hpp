// Two-sided measures: ping-pong latency, message rate and bandwidth, plain or tagged.
#pragma once

#include <memory>

#include "fabbench/task.hpp"

namespace aperture::bench {

enum class Matching { plain, tagged };

// One message each way in turn; the next receive is posted while the message travels.
std::unique_ptr<FabricTask> make_ping_pong(const Setup&, Side&, Matching, size_t size_bytes);

// A stream from rank 0 in windows, two of them in flight, each acknowledged by 8 bytes.
// Receives are always posted in time. Small messages (up to 64 B) have a buffer each and their
// contents are summed; larger ones reuse one buffer at both ends, as the OSU benchmarks do.
std::unique_ptr<FabricTask> make_stream(const Setup&, Side&, Matching, size_t size_bytes,
                                        size_t window);

// A stream of 8-byte messages by so many threads of each side, which share an endpoint.
std::unique_ptr<FabricTask> make_shared_stream(const Setup&, Side&, unsigned threads);

// Requests of many clients, an endpoint each, to one server's endpoint; both sides sleep in epoll
// on their one queue.
std::unique_ptr<FabricTask> make_clients(const Setup&, Side&, size_t size_bytes);

// A ping-pong in which every message has arrived before its receiver looks: see steps.cpp.
std::unique_ptr<FabricTask> make_steps(const Setup&, Side&, Matching, size_t size_bytes);

}  // namespace aperture::bench
