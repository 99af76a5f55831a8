/* What cachebench asks of somebody else's registration cache: one module for each, loaded into a
 * process of its own, which it may hook as it likes.
 *
 * One cache at a time; one thread. Its registrar does nothing but count, as that of all caches
 * which are measured. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CACHE_PEER __attribute__((visibility("default")))

/* Resources that a cache keeps at most: the default of fi_mr(3). No measure has as many. */
enum { cache_peer_most = 1024 };

struct cache_peer_counts {
  uint64_t added;   /* resources made */
  uint64_t removed; /* and given back */
};

/* The library and its version, as "libfabric 2.7.0". Static storage. */
CACHE_PEER const char* cache_peer_version(void);
/* Null, or why not: static storage. The counts outlive it. */
CACHE_PEER const char* cache_peer_open(const char* monitor, struct cache_peer_counts* counts);
/* A resource for these whole pages, given back at once: the cache keeps it. 0, or an error. */
CACHE_PEER int cache_peer_use(void* addr, size_t len);
CACHE_PEER void cache_peer_close(void);

#ifdef __cplusplus
}
#endif
