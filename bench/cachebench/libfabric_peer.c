/* libfabric's own registration cache, as its providers have it: a cache of no domain's with one of
 * libfabric's monitors for host memory. What is called is internal to libfabric, so this is built
 * with the headers of its source tree and from the objects there (bench/runner/caches.py). */
#include "peer.h"

#include <ofi.h>
#include <ofi_mem.h>
#include <ofi_mr.h>
#include <string.h>

static struct ofi_mr_cache cache;
static struct cache_peer_counts* counts;

static int add_region(struct ofi_mr_cache* of, struct ofi_mr_entry* entry) {
  (void)of, (void)entry;
  ++counts->added;
  return 0;
}

static void delete_region(struct ofi_mr_cache* of, struct ofi_mr_entry* entry) {
  (void)of, (void)entry;
  ++counts->removed;
}

const char* cache_peer_version(void) {
  return "libfabric " PACKAGE_VERSION;
}

/* As FI_MR_CACHE_MONITOR names them. */
static struct ofi_mem_monitor* monitor_of(const char* name) {
#if HAVE_UFFD_MONITOR
  if (strcmp(name, "userfaultfd") == 0) return uffd_monitor;
#endif
#if HAVE_MEMHOOKS_MONITOR
  if (strcmp(name, "memhooks") == 0) return memhooks_monitor;
#endif
  return NULL;
}

const char* cache_peer_open(const char* monitor, struct cache_peer_counts* into) {
  struct ofi_mem_monitor* monitors[OFI_HMEM_MAX] = {NULL};
  int error;
  counts = into;
  /* of what a program's first call of libfabric sets up: all but its providers */
  fi_param_init();
  fi_log_init();
  ofi_mem_init();
  ofi_monitors_init();
  monitors[FI_HMEM_SYSTEM] = monitor_of(monitor);
  if (monitors[FI_HMEM_SYSTEM] == NULL) return "this build of libfabric has no such monitor";
  cache_params.max_cnt = cache_peer_most;
  cache_params.max_size = SIZE_MAX;
  cache.add_region = add_region;
  cache.delete_region = delete_region;
  error = ofi_mr_cache_init(NULL, monitors, &cache);
  return error == 0 ? NULL : fi_strerror(-error);
}

int cache_peer_use(void* addr, size_t len) {
  struct ofi_mr_info info = {0};
  struct ofi_mr_entry* entry;
  int error;
  info.iov.iov_base = addr;
  info.iov.iov_len = len;
  info.iface = FI_HMEM_SYSTEM;
  error = ofi_mr_cache_search(&cache, &info, &entry);
  if (error == 0) ofi_mr_cache_delete(&cache, entry);
  return error;
}

void cache_peer_close(void) {
  ofi_mr_cache_cleanup(&cache);
  ofi_monitors_cleanup();
}
