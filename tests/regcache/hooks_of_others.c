/* Sets the hooks for memory that UCX or Open MPI have, as their transports do, when it is loaded.
 * APERTURE_TEST_HOOKS_OF says whose; a process ends with 77 where they are not there or do not come
 * up. Their headers are not needed: what is called here is what their libraries export. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void (*Function)(void);

static void give_up(const char* what) {
  fprintf(stderr, "no library here: %s\n", what);
  _exit(77);
}

static void* load(const char* name) {
  void* const library = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
  if (library == NULL) give_up(name);
  return library;
}

static Function function(void* library, const char* name) {
  Function found = NULL;
  *(void**)&found = dlsym(library, name);
  if (found == NULL) give_up(name);
  return found;
}

static void on_event(int event, void* what, void* arg) {
  (void)event, (void)what, (void)arg;
}

static void hook_as_ucx(void) {
  load("libucs.so.0"); /* which reads its settings */
  void* const ucm = load("libucm.so.0");
  const int mapped = 1 << 16, unmapped = 1 << 17;
  int (*set)(int, int, void (*)(int, void*, void*), void*) =
      (int (*)(int, int, void (*)(int, void*, void*), void*))function(ucm, "ucm_set_event_handler");
  if (set(mapped | unmapped, 0, on_event, NULL) != 0) give_up("UCX's events");
}

static void on_release(void* at, size_t len, void* arg, int from_alloc) {
  (void)at, (void)len, (void)arg, (void)from_alloc;
}

static void hook_as_openmpi(void) {
  void* const opal = load("libopen-pal.so.40");
  int (*init)(int*, char***) = (int (*)(int*, char***))function(opal, "opal_init");
  int (*open)(void*, int) = (int (*)(void*, int))function(opal, "mca_base_framework_open");
  int (*hook)(void (*)(void*, size_t, void*, int), void*) = (int (*)(
      void (*)(void*, size_t, void*, int), void*))function(opal, "opal_mem_hooks_register_release");
  void* const memory = dlsym(opal, "opal_memory_base_framework");
  if (memory == NULL || init(NULL, NULL) != 0 || open(memory, 0) != 0 ||
      hook(on_release, NULL) != 0) {
    give_up("Open MPI's hooks");
  }
}

__attribute__((constructor)) static void set_hooks(void) {
  const char* const whose = getenv("APERTURE_TEST_HOOKS_OF");
  if (whose == NULL) return;
  const int is_ucx = strcmp(whose, "ucx") == 0;
  unsetenv("APERTURE_TEST_HOOKS_OF"); /* not in what they start */
  unsetenv("LD_PRELOAD");
  is_ucx ? hook_as_ucx() : hook_as_openmpi();
}
