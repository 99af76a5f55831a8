// The log line writer: see log.hpp.
#include "base/log.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/per_process.hpp"
#include "base/settings.hpp"

namespace aperture {

namespace {

// A word of APERTURE_LOG that is none is taken as warn; settings.cpp says so.
LogLevel read_level() noexcept {
  const char* ours = setting_text("APERTURE_LOG");
  const char* v = ours != nullptr ? ours : std::getenv("FI_LOG_LEVEL");
  if (v == nullptr) return LogLevel::off;
  if (std::strcmp(v, "warn") == 0) return LogLevel::warn;
  if (std::strcmp(v, "info") == 0 || std::strcmp(v, "trace") == 0) return LogLevel::info;
  if (std::strcmp(v, "debug") == 0) return LogLevel::debug;
  return ours != nullptr && std::strcmp(v, "off") != 0 ? LogLevel::warn : LogLevel::off;
}

const char* name_of(LogLevel level) noexcept {
  switch (level) {
    case LogLevel::warn: return "warn";
    case LogLevel::info: return "info";
    case LogLevel::debug: return "debug";
    case LogLevel::off: break;
  }
  return "off";
}

void write_line(LogLevel level, const char* format, std::va_list args) noexcept {
  const int saved = errno;
  char line[1024];
  const int head =
      std::snprintf(line, sizeof line, "aperture: [%d] %s: ", ::getpid(), name_of(level));
  const size_t room = sizeof line - static_cast<size_t>(head) - 1;
  const int body = std::vsnprintf(line + head, room, format, args);
  size_t len =
      static_cast<size_t>(head) + std::min(static_cast<size_t>(std::max(body, 0)), room - 1);
  line[len++] = '\n';
  (void)!::syscall(SYS_write, STDERR_FILENO, line, len);  // no cancellation point: event_fd.hpp
  errno = saved;
}

}  // namespace

LogLevel log_level() noexcept {
  static constinit FoundOnce<LogLevel> level;
  return level.get(read_level);
}

void log_line(LogLevel level, const char* format, ...) noexcept {
  std::va_list args;
  va_start(args, format);
  write_line(level, format, args);
  va_end(args);
}

int refuse(int error, const char* format, ...) noexcept {
  std::va_list args;
  va_start(args, format);
  if (log_level() >= LogLevel::warn) write_line(LogLevel::warn, format, args);
  va_end(args);
  return error;
}

Errc refuse(Errc error, const char* format, ...) noexcept {
  std::va_list args;
  va_start(args, format);
  if (log_level() >= LogLevel::warn) write_line(LogLevel::warn, format, args);
  va_end(args);
  return error;
}

}  // namespace aperture
