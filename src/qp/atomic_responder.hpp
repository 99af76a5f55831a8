// Atomics of the peer, executed on our memory under the engine's lock: so they are atomic with one
// another, and with our own CPU atomics. man 3 fi_atomic.
//
// All ranges of one are looked at before anything changes, and the memory is touched first: the
// operation itself must not fault in its middle.
#pragma once

#include "qp/execution.hpp"

namespace aperture::qp {

class AtomicResponder {
 public:
  AtomicResponder(QpCore& core, Execution& execution) noexcept
      : core_(core), execution_(execution) {}

  // Another look at the ring begins: pages that were touched before may be gone.
  void begin_look() noexcept { touched_page_ = kNoPage; }
  // The request at the head of the ring. False: no room for its answer now, and nothing has
  // changed; or no sound peer asks for that.
  bool on_atomic(const wire::SoundHead& head) noexcept;
  bool on_atomic_bytes(const wire::SoundHead& head) noexcept;

 private:
  struct Request;
  // How far one has come.
  struct Operands {
    const std::byte* operand;
    const std::byte* compare;  // or null
    std::byte* result;         // or null
  };
  bool execute(const Request& request) noexcept;
  bool run(const Request& request, std::byte* result) noexcept;
  bool run_on_copy(const protect::Grant& grant, const Request& request,
                   const Operands& at) noexcept;
  bool is_any_refused(const Request& request) noexcept;
  protect::AccessAsk ask_of(const Request& request, size_t range_at) const noexcept;
  protect::Denial validate(const protect::Checked& checked, const Request& request) noexcept;

  static constexpr uintptr_t kNoPage = ~uintptr_t{0};

  QpCore& core_;
  Execution& execution_;
  uintptr_t touched_page_ = kNoPage;  // written to by an atomic in this look at the ring
};

}  // namespace aperture::qp
