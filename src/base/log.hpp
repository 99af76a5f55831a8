// One line per event on stderr, silent by default.
//
// APERTURE_LOG = off | warn | info | debug (default off); FI_LOG_LEVEL is honoured when
// APERTURE_LOG is unset, since that is what libfabric users reach for. Each line says what happened
// and what to do. Any thread; one write(2) a line, so lines do not mix. Never on the data path's
// good cases.
#pragma once

#include "base/errc.hpp"

namespace aperture {

enum class LogLevel : int { off = 0, warn = 1, info = 2, debug = 3 };

LogLevel log_level() noexcept;

// printf-style; "aperture: [pid] warn: <text>\n".
[[gnu::format(printf, 2, 3)]] void log_line(LogLevel level, const char* format, ...) noexcept;

// Warns, and hands back the error for the caller to return; an int is that of a door's own API.
[[gnu::format(printf, 2, 3), gnu::cold]] int refuse(int error, const char* format, ...) noexcept;
[[gnu::format(printf, 2, 3), gnu::cold]] Errc refuse(Errc error, const char* format, ...) noexcept;

}  // namespace aperture

#define APERTURE_LOG_AT(level, ...)                                           \
  do {                                                                        \
    if (static_cast<int>(::aperture::log_level()) >= static_cast<int>(level)) \
      ::aperture::log_line(level, __VA_ARGS__);                               \
  } while (0)
#define APERTURE_WARN(...) APERTURE_LOG_AT(::aperture::LogLevel::warn, __VA_ARGS__)
#define APERTURE_INFO(...) APERTURE_LOG_AT(::aperture::LogLevel::info, __VA_ARGS__)
#define APERTURE_DEBUG(...) APERTURE_LOG_AT(::aperture::LogLevel::debug, __VA_ARGS__)
