/* Preloaded by test_descriptors.py. Writes what becomes of cuDNN's descriptors to the file that
 * SCOREMOD_TEST_DESCRIPTORS names. Each line is a word and an address: created, destroyed, filled or unfilled. The last
 * two are for descriptors that a query of cuDNN's heuristics was given to fill. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Enumerators as integers, as in cudnn_graph.h; 0 is success. */
typedef int (*Create)(int type, void** descriptor);
typedef int (*Destroy)(void* descriptor);
typedef int (*Get)(void* descriptor, int attribute, int type, int64_t asked, int64_t* given, void* elements);
enum { kHeuristicsResults = 202 }; /* CUDNN_ATTR_ENGINEHEUR_RESULTS */

static Create create;
static Destroy destroy;
static Get get;

static void write_line(const char* format, ...) {
  static FILE* file;
  if (file == NULL) file = fopen(getenv("SCOREMOD_TEST_DESCRIPTORS"), "a");
  va_list arguments;
  va_start(arguments, format);
  vfprintf(file, format, arguments);
  va_end(arguments);
  fflush(file);
}

static int create_logged(int type, void** descriptor) {
  const int status = create(type, descriptor);
  if (status == 0) write_line("created %p\n", *descriptor);
  return status;
}

static int destroy_logged(void* descriptor) {
  /* Before it is destroyed: another thread may get the address. */
  write_line("destroyed %p\n", descriptor);
  return destroy(descriptor);
}

static int get_logged(void* descriptor, int attribute, int type, int64_t asked, int64_t* given, void* elements) {
  const int status = get(descriptor, attribute, type, asked, given, elements);
  if (attribute != kHeuristicsResults || elements == NULL) return status;
  for (int64_t i = 0; i < asked; ++i) {
    write_line("%s %p\n", status == 0 && i < *given ? "filled" : "unfilled", ((void**)elements)[i]);
  }
  return status;
}

/* In the place of a function of cuDNN that is looked up first; cuDNN looks up its own behind that one. */
#define LOGGED(function, found, logged)                   \
  do {                                                    \
    if ((function) == NULL) *(void**)&(function) = found; \
    if (*(void**)&(function) == (found)) return logged;   \
  } while (0)

/* cudnn-frontend finds cuDNN's functions by this. */
void* dlsym(void* handle, const char* name) {
  static void* (*next)(void*, const char*);
  /* The oldest version of glibc on x86-64, and on Arm. */
  if (next == NULL) next = (void* (*)(void*, const char*))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
  if (next == NULL) next = (void* (*)(void*, const char*))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17");
  void* found = next(handle, name);
  if (found == NULL) return NULL;
  if (strcmp(name, "cudnnBackendCreateDescriptor") == 0) LOGGED(create, found, create_logged);
  if (strcmp(name, "cudnnBackendDestroyDescriptor") == 0) LOGGED(destroy, found, destroy_logged);
  if (strcmp(name, "cudnnBackendGetAttribute") == 0) LOGGED(get, found, get_logged);
  return found;
}
