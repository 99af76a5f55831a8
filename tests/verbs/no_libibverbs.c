/* Preloaded, a host without libibverbs: nothing of that name can be loaded. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

void* dlopen(const char* name, int flags) {
  if (name != NULL && strstr(name, "ibverbs") != NULL) return NULL;
  void* (*next)(const char*, int);
  *(void**)&next = dlsym(RTLD_NEXT, "dlopen");
  return next(name, flags);
}
