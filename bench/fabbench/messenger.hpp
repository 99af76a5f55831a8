// Posting of plain or tagged messages with contexts, so that measures need not care which.
//
// A slot is one outstanding operation: its fi_context2 (some providers demand one) and its number.
#pragma once

#include <vector>

#include "fabbench/messages.hpp"
#include "fabbench/session.hpp"

namespace aperture::bench {

struct alignas(64) Slot {
  fi_context2 context;  // first, so that a completion's op_context is the slot
};

// The slots of a window: those that are taken belong to operations under way.
class Slots {
 public:
  Slots(Session& session, size_t count) : session_(session), slots_(count) {
    for (size_t i = 0; i < count; i++) free_.push_back(i);
  }

  size_t size() const noexcept { return slots_.size(); }
  void* context(size_t slot) noexcept { return &slots_[slot].context; }

  // Completed operations give their slots back.
  void reap() {
    session_.poll_tx([this](const void* context) {
      free_.push_back(static_cast<size_t>(static_cast<const Slot*>(context) - slots_.data()));
    });
  }

  size_t take(const char* awaited) {
    await_free(1, awaited);
    const size_t slot = free_.back();
    free_.pop_back();
    return slot;
  }

  void settle(const char* awaited) { await_free(slots_.size(), awaited); }

 private:
  void await_free(size_t count, const char* awaited) {
    Patience patience(awaited);
    while (free_.size() < count) {
      reap();
      session_.linger(patience);
    }
  }

  Session& session_;
  std::vector<Slot> slots_;
  std::vector<size_t> free_;
};

class Messenger {
 public:
  Messenger(Session& session, Matching matching, size_t slots)
      : session_(session), tagged_(matching == Matching::tagged), slots_(slots) {}

  size_t slot_of(const void* context) const noexcept {
    return static_cast<size_t>(static_cast<const Slot*>(context) - slots_.data());
  }

  ssize_t try_inject(const void* data, size_t len_bytes) noexcept {
    return tagged_ ? fi_tinject(session_.ep(), data, len_bytes, session_.peer(), kTag)
                   : fi_inject(session_.ep(), data, len_bytes, session_.peer());
  }
  ssize_t try_send(const void* data, size_t len_bytes, void* desc, size_t slot) noexcept {
    void* context = &slots_[slot].context;
    return tagged_ ? fi_tsend(session_.ep(), data, len_bytes, desc, session_.peer(), kTag, context)
                   : fi_send(session_.ep(), data, len_bytes, desc, session_.peer(), context);
  }
  ssize_t try_receive(void* data, size_t len_bytes, void* desc, size_t slot) noexcept {
    void* context = &slots_[slot].context;
    return tagged_
               ? fi_trecv(session_.ep(), data, len_bytes, desc, session_.peer(), kTag, 0, context)
               : fi_recv(session_.ep(), data, len_bytes, desc, session_.peer(), context);
  }

  void receive(void* data, size_t len_bytes, void* desc, size_t slot) {
    session_.post("room to post a receive",
                  [&] { return try_receive(data, len_bytes, desc, slot); });
  }

 private:
  static constexpr uint64_t kTag = 0x4150;

  Session& session_;
  const bool tagged_;
  std::vector<Slot> slots_;
};

}  // namespace aperture::bench
