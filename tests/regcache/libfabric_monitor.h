/* libfabric_monitor.c, for tests in C++. Any thread, one at a time. */
#pragma once

#include <stddef.h>

/* memhooks or userfaultfd: it is started before main(), or the process ends with 77. */
#define kMonitorOfLibfabric "APERTURE_TEST_MONITOR_OF_LIBFABRIC"

#ifdef __cplusplus
extern "C" {
#endif

/* 0, or libfabric's error. Once. */
int start_monitor_of_libfabric(const char* name);
/* 0, or libfabric's error. Of one that was started. */
int watch_by_libfabrics_userfaultfd(const void* addr, size_t len);

#ifdef __cplusplus
}
#endif
