// What has to be known of a record to inject a fault between two of them: how many cells it has,
// and what it is the beginning of. Both languages, wire/request.hpp's and wire/rc.hpp's. No state.
#pragma once

#include <cstddef>
#include <cstdint>

namespace aperture::link::faulty {

enum class Language : uint8_t { request, rc };

// 0: no sound peer writes that.
uint32_t cells_of(Language language, const std::byte* body) noexcept;
// Of a request: the first record of an operation that the application has posted.
bool begins_operation(Language language, const std::byte* body) noexcept;
// The first record of a message that takes a receive.
bool begins_message(Language language, const std::byte* body) noexcept;

// That the request at `pos` finds no receive, in words of the language. False: it has none for it.
bool put_not_ready(Language language, std::byte* body, uint64_t pos, uint8_t timer) noexcept;

}  // namespace aperture::link::faulty
