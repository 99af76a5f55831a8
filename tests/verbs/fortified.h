// Calls of libc as a program makes them that was compiled with _FORTIFY_SOURCE: fortified.c. There
// the compiler knows how much room a buffer has and calls __realpath_chk() for realpath(), and so
// on. What they find lies in `found`, of kRoom bytes, until the next call.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

enum { kRoom = 4096 };

// Null as the calls give null or -1: errno says why.
const char* fortified_realpath(const char* path);
const char* fortified_readlink(const char* path);
const char* fortified_readlinkat(int at, const char* path);
const char* fortified_getcwd(void);
// The content of a small file.
const char* fortified_open(const char* path, int flags);
const char* fortified_openat(int at, const char* path, int flags);

#ifdef __cplusplus
}
#endif
