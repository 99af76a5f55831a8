// Texts of errors, as fi_cq_strerror, fi_eq_strerror and err_data hand them out. man 3 fi_cq.
// Any thread; no state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/errc.hpp"

namespace aperture::provider {

// Copies at most size - 1 bytes and a terminating zero; returns the bytes written. 0: there is no
// text, no room, or no memory there (an entry that the application left as it found it).
size_t copy_text(const std::string& text, void* to, size_t size) noexcept;

// The provider error code of an entry: the protect::Denial if there is one, else which Errc it was.
int provider_code(uint32_t denial, Errc err) noexcept;

// The sentence in err_data if there is one, else the words for prov_errno. Also into buf when it is
// given. Static storage or err_data itself.
const char* error_text(int prov_errno, const void* err_data, char* buf, size_t len) noexcept;

}  // namespace aperture::provider
