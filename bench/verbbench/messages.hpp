// Two-sided measures: sends, and writes with immediate data, which take a receive as sends do.
#pragma once

#include <memory>

#include "verbbench/task.hpp"

namespace aperture::bench {

enum class Message { send, write_with_imm };
// Whether each work request asks for a completion, as perftest's do, or one in 64.
enum class Signals { few, all };

// One message each way in turn; the next receive is posted while the message travels.
std::unique_ptr<VerbsTask> make_ping_pong(const Setup&, Side&, Message, Signals, size_t size_bytes);

// A stream from rank 0 with at most `window` not yet acknowledged; receives are posted in time.
// Small messages (up to 64 B) have a buffer each and are summed; larger ones reuse one buffer.
std::unique_ptr<VerbsTask> make_stream(const Setup&, Side&, size_t size_bytes, size_t window);

// A stream of 8-byte messages by so many threads of each side, which share a completion queue.
std::unique_ptr<VerbsTask> make_shared_stream(const Setup&, Side&, unsigned threads);

// Requests of many clients to one server, each over a connection with a completion channel of its
// own; both sides sleep in epoll.
std::unique_ptr<VerbsTask> make_clients(const Setup&, Side&, size_t size_bytes);

// A ping-pong inside rank 0, in which every message has arrived before its receiver looks.
std::unique_ptr<Task> make_steps(const Setup&, Side&, Message, size_t size_bytes);

}  // namespace aperture::bench
