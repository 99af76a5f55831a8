/* UCX's registration cache, by its ucs_rcache_* and with its own hooks, as its transports have it.
 * The headers are of the package for developers, or of an installed build (bench/runner/caches.py);
 * what they declare differs from version to version. */
#include "peer.h"

#include <string.h>
#include <ucm/api/ucm.h>
#include <ucp/api/ucp.h>
#include <ucs/memory/rcache.h>
#include <unistd.h>

enum { usual_priority = 1000 };

static ucs_rcache_t* cache;

static ucs_status_t add_region(void* context, ucs_rcache_t* of, void* arg,
                               ucs_rcache_region_t* region, uint16_t flags) {
  struct cache_peer_counts* const counts = context;
  (void)of, (void)arg, (void)region, (void)flags;
  ++counts->added;
  return UCS_OK;
}

static void remove_region(void* context, ucs_rcache_t* of, ucs_rcache_region_t* region) {
  struct cache_peer_counts* const counts = context;
  (void)of, (void)region;
  ++counts->removed;
}

static void describe_region(void* context, ucs_rcache_t* of, ucs_rcache_region_t* region,
                            char* text, size_t most) {
  (void)context, (void)of, (void)region;
  if (most != 0) text[0] = '\0';
}

#if UCP_API_VERSION >= UCP_VERSION(1, 18)
static void merge_regions(void* context, ucs_rcache_t* of, void* arg, ucs_rcache_region_t* region) {
  (void)context, (void)of, (void)arg, (void)region;
}
#endif

static const ucs_rcache_ops_t registrar = {
    .mem_reg = add_region,
    .mem_dereg = remove_region,
    .dump_region = describe_region,
#if UCP_API_VERSION >= UCP_VERSION(1, 18)
    .merge = merge_regions,
#endif
};

const char* cache_peer_version(void) {
  static char text[64] = "UCX ";
  if (text[4] == '\0') strncat(text, ucp_get_version_string(), sizeof text - 5);
  return text;
}

const char* cache_peer_open(const char* monitor, struct cache_peer_counts* counts) {
  ucs_rcache_params_t params;
  ucs_status_t status;
  unsigned major, minor, release;
  if (strcmp(monitor, "hooks") != 0) return "UCX has no such monitor";
  ucp_get_version(&major, &minor, &release);
  if (major != UCP_API_MAJOR || minor != UCP_API_MINOR) {
    return "its headers and its library are of different versions";
  }
  memset(&params, 0, sizeof params);
  params.region_struct_size = sizeof(ucs_rcache_region_t);
  params.ucm_events = UCM_EVENT_VM_UNMAPPED;
  params.ucm_event_priority = usual_priority;
  params.ops = &registrar;
  params.context = counts;
  params.max_regions = cache_peer_most;
  params.max_size = SIZE_MAX;
#if UCP_API_VERSION >= UCP_VERSION(1, 12)
  params.max_unreleased = SIZE_MAX;
#endif
#if UCP_API_VERSION < UCP_VERSION(1, 17)
  params.alignment = UCS_RCACHE_MIN_ALIGNMENT;
  params.max_alignment = (size_t)sysconf(_SC_PAGESIZE);
#endif
  status = ucs_rcache_create(&params, "cachebench", NULL, &cache);
  return status == UCS_OK ? NULL : ucs_status_string(status);
}

int cache_peer_use(void* addr, size_t len) {
  ucs_rcache_region_t* region;
  const int prot = PROT_READ | PROT_WRITE;
#if UCP_API_VERSION >= UCP_VERSION(1, 17)
  const ucs_status_t status =
      ucs_rcache_get(cache, addr, len, UCS_RCACHE_MIN_ALIGNMENT, prot, NULL, &region);
#else
  const ucs_status_t status = ucs_rcache_get(cache, addr, len, prot, NULL, &region);
#endif
  if (status == UCS_OK) ucs_rcache_region_put(cache, region);
  return status;
}

void cache_peer_close(void) {
  ucs_rcache_destroy(cache);
}
