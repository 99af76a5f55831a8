/* The monitors of libfabric's own registration cache, as its providers start them: by hooks in the
 * code of functions for memory, or by a userfaultfd. What is called is internal to libfabric, so
 * the program is linked with its static library. Of a monitor the fields are declared that come
 * first, as libfabric 1.17 to 2.7 have them. */
#include "libfabric_monitor.h"

#include <stdlib.h>
#include <string.h>

struct ofi_mem_monitor {
  void* list[2];
  int iface, state; /* the second since 2.0: padding before */
  void (*init)(struct ofi_mem_monitor*);
  void (*cleanup)(struct ofi_mem_monitor*);
  int (*start)(struct ofi_mem_monitor*);
  void (*stop)(struct ofi_mem_monitor*);
  int (*subscribe)(struct ofi_mem_monitor*, const void* addr, size_t len, void* hmem);
  void (*unsubscribe)(struct ofi_mem_monitor*, const void* addr, size_t len, void* hmem);
};
extern struct ofi_mem_monitor* memhooks_monitor;
extern struct ofi_mem_monitor* uffd_monitor;
void fi_param_init(void);
void fi_log_init(void);
void ofi_mem_init(void);
void ofi_monitors_init(void);

int start_monitor_of_libfabric(const char* name) {
  struct ofi_mem_monitor* const monitor =
      strcmp(name, "memhooks") == 0 ? memhooks_monitor : uffd_monitor;
  /* of what a program's first call of libfabric sets up: all but its providers */
  fi_param_init();
  fi_log_init();
  ofi_mem_init();
  ofi_monitors_init();
  return monitor->start(monitor);
}

int watch_by_libfabrics_userfaultfd(const void* addr, size_t len) {
  return uffd_monitor->subscribe(uffd_monitor, addr, len, NULL);
}

__attribute__((constructor)) static void start(void) {
  const char* const name = getenv(kMonitorOfLibfabric);
  if (name == NULL) return;
  if (start_monitor_of_libfabric(name) != 0) _Exit(77);
  unsetenv(kMonitorOfLibfabric); /* not in what is started here */
}
