// See fortified.h. Compiled with _FORTIFY_SOURCE and optimised, whatever the other tests are.
#define _GNU_SOURCE
#include "verbs/fortified.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#if !defined(__USE_FORTIFY_LEVEL) || __USE_FORTIFY_LEVEL < 2
#error "the C library has not taken _FORTIFY_SOURCE: nothing here would call what is meant"
#endif

static char found[kRoom];

// A size that the compiler does not know, or it would not have it checked at run time.
static size_t room(void) {
  static volatile size_t size = kRoom - 1;
  return size;
}

static const char* ended(ssize_t n) {
  if (n < 0) return NULL;
  found[n] = 0;
  return found;
}

static const char* read_all(int fd) {
  if (fd < 0) return NULL;
  const ssize_t n = read(fd, found, room());
  close(fd);
  return ended(n);
}

const char* fortified_realpath(const char* path) {
  return realpath(path, found);
}

const char* fortified_readlink(const char* path) {
  return ended(readlink(path, found, room()));
}

const char* fortified_readlinkat(int at, const char* path) {
  return ended(readlinkat(at, path, found, room()));
}

const char* fortified_getcwd(void) {
  return getcwd(found, room());
}

const char* fortified_open(const char* path, int flags) {
  return read_all(open(path, flags));
}

const char* fortified_openat(int at, const char* path, int flags) {
  return read_all(openat(at, path, flags));
}
