// Completion queues and counters: see completion.hpp.
#include "qp/completion.hpp"

#include <bit>
#include <new>

namespace aperture::qp {

namespace {

// Stands for an error that there was no memory to describe.
CompletionError untold{{}, Errc::no_memory, 0, 0, {}};

}  // namespace

Cq::Cq(size_t capacity) : slots_(std::bit_ceil(capacity < 2 ? size_t{2} : capacity)) {
  mask_ = slots_.size() - 1;
}

Cq::~Cq() {
  for (; !empty(); pop()) {
    if (slots_[head_ & mask_].error != &untold) delete slots_[head_ & mask_].error;
  }
}

void Cq::push_error(CompletionError e) noexcept {
  // places that are promised to others stay theirs
  if (!has_room()) grow();
  if (!has_room()) return;  // out of memory: nothing more can be told
  assert(size() + reserved_ < capacity());
  auto* error = new (std::nothrow) CompletionError(std::move(e));
  slots_[tail_ & mask_] = {error != nullptr ? error->entry : Completion{},
                           error != nullptr ? error : &untold};
  ++tail_;
  ++errors_;
  wake_fd.on_arrival();
}

bool Cq::make_room(size_t n) noexcept {
  for (;;) {
    if (size() + reserved_ + n <= capacity()) return true;
    const size_t before = capacity();
    grow();
    if (capacity() == before) return false;
  }
}

CompletionError Cq::pop_error() noexcept {
  CompletionError* error = slots_[head_ & mask_].error;
  assert(error_first() && error != nullptr && errors_ != 0);
  --errors_;
  slots_[head_ & mask_].error = nullptr;
  ++head_;
  if (error == &untold) return untold;
  CompletionError out = std::move(*error);
  delete error;
  return out;
}

void Cq::grow() noexcept {
  try {
    UntouchedArray<Slot> larger(slots_.size() * 2);
    const uint64_t larger_mask = larger.size() - 1;
    for (uint64_t i = head_; i != tail_; ++i) larger[i & larger_mask] = slots_[i & mask_];
    slots_.swap(larger);
    mask_ = larger_mask;
    assert(capacity() == slots_.size() && size() <= capacity() / 2);
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace aperture::qp
