/* Preloaded by test_exit.py. Makes the end of the process as unlucky as it can be for a thread that frees plans. Where
 * that thread is about to unload NVRTC, it waits until exit() runs NVRTC's destructors. These then wait, at a call of
 * free(), until NVRTC is unloaded, and would return to its code. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void __libc_free(void* memory);

static atomic_bool is_last_close, has_exit_begun, is_unloaded;
static atomic_int handles;

static bool is_nvrtc(const char* name) { return name != NULL && strstr(name, "libnvrtc.so") != NULL; }
static bool is_main_thread(void) { return syscall(SYS_gettid) == getpid(); }

/* A second at most, since a process that does all in order gets here too. */
static void wait_for(const atomic_bool* flag) {
  for (int i = 0; i < 1000 && !*flag; ++i) usleep(1000);
}

void* dlopen(const char* name, int mode) {
  void* (*next)(const char*, int) = (void* (*)(const char*, int))dlsym(RTLD_NEXT, "dlopen");
  void* handle = next(name, mode);
  if (handle != NULL && is_nvrtc(name)) ++handles;
  return handle;
}

int dlclose(void* handle) {
  int (*next)(void*) = (int (*)(void*))dlsym(RTLD_NEXT, "dlclose");
  struct link_map* map = NULL;
  const bool is_last = dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && is_nvrtc(map->l_name) && --handles == 0;
  if (!is_last || is_main_thread()) return next(handle);
  is_last_close = true;
  wait_for(&has_exit_begun);
  const int result = next(handle);
  is_last_close = false;
  is_unloaded = true;
  return result;
}

void free(void* memory) {
  Dl_info caller;
  if (is_last_close && !has_exit_begun && is_main_thread() && dladdr(__builtin_return_address(0), &caller) != 0 &&
      is_nvrtc(caller.dli_fname)) {
    is_unloaded = false;
    has_exit_begun = true;
    wait_for(&is_unloaded);
  }
  __libc_free(memory);
}
