// The sentence of an operation that has failed: what it was, where it went, why it ended so and
// what would make it legal. Only failures pay for it. Guarded by the engine's lock.
#pragma once

#include "qp/core.hpp"

namespace aperture::qp {

// Fills in e.sentence, and logs it; leaves it empty if memory has run out.
void explain(const QpCore& core, const Wqe& wqe, CompletionError& e) noexcept;

}  // namespace aperture::qp
