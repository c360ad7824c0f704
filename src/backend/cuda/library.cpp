#include "backend/cuda/library.hpp"

#include <array>
#include <dlfcn.h>

#include "base/fail.hpp"

namespace scoremod::backend::cuda {
namespace {

/// The loader's text for the last failure.
std::string loader_text() {
  const char* text = dlerror();
  return text == nullptr ? "no reason given" : text;
}

LibraryState load() {
  LibraryState state;
  state.driver = open_library(std::array{"libcuda.so.1"});
  if (state.driver.handle == nullptr) {
    state.reason = concat("no CUDA driver: ", state.driver.reason);
    return state;
  }
  state.runtime = open_library(std::array{"libcudart.so.13", "libcudart.so.12"});
  if (state.runtime.handle == nullptr) {
    state.reason = concat("no CUDA runtime: ", state.runtime.reason);
    return state;
  }
  state.available = true;
  return state;
}

}  // namespace

SharedLibrary open_library(std::span<const char* const> names) {
  SharedLibrary library;
  for (const char* name : names) {
    library.handle = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    if (library.handle != nullptr) return {library.handle, ""};
    library.reason += concat(library.reason.empty() ? "" : "; ", loader_text());
  }
  return library;
}

void* symbol_of(const SharedLibrary& library, const char* name) {
  if (library.handle == nullptr) fail_environment("no ", name, ": ", library.reason);
  void* symbol = dlsym(library.handle, name);
  if (symbol == nullptr) fail_environment("a function of CUDA is missing: ", loader_text());
  return symbol;
}

const LibraryState& library() {
  static const LibraryState state = load();
  return state;
}

void* cudart_symbol(const char* name) {
  if (!library().available) fail_environment(library().reason);
  return symbol_of(library().runtime, name);
}

}  // namespace scoremod::backend::cuda
