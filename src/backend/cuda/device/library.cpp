#include "backend/cuda/device/library.hpp"

#include <array>
#include <atomic>
#include <deque>
#include <dlfcn.h>
#include <link.h>
#include <mutex>

#include "base/fail.hpp"
#include "base/fork_mutex.hpp"

namespace scoremod::backend::cuda {
namespace {

/// The loader's text for the last failure.
std::string loader_text() {
  const char* text = dlerror();
  return text == nullptr ? "no reason given" : text;
}

constexpr std::array kRuntimeNames{"libcudart.so.13", "libcudart.so.12"};
constexpr std::array kNvrtcNames{"libnvrtc.so.13", "libnvrtc.so.12"};

/// Libraries of the toolkit may lie beside the runtime (in a Python package, say) where the loader does not look.
SharedLibrary open_beside_runtime(std::span<const char* const> names) {
  SharedLibrary found = open_library(names);
  if (found.handle != nullptr) return found;
  const std::string folder = folder_of(open_library(kRuntimeNames));
  if (folder.empty()) return found;
  for (const char* name : names) {
    const SharedLibrary beside = open_library(std::array{(folder + name).c_str()});
    if (beside.handle != nullptr) return beside;
    found.reason += "; " + beside.reason;
  }
  return found;
}

LibraryState load() {
  LibraryState state;
  state.driver = open_library(std::array{"libcuda.so.1"});
  if (state.driver.handle == nullptr) {
    state.reason = concat("no CUDA driver: ", state.driver.reason);
    return state;
  }
  state.runtime = open_library(kRuntimeNames);
  if (state.runtime.handle == nullptr) {
    state.reason = concat("no CUDA runtime: ", state.runtime.reason);
    return state;
  }
  state.available = true;
  return state;
}

/// How often a driver was put in place after the first look for one.
std::atomic<int>& driver_changes() {
  static std::atomic<int> changes = 0;
  return changes;
}

}  // namespace

SharedLibrary loaded_library(std::span<const char* const> names) {
  for (const char* name : names) {
    void* handle = dlopen(name, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
    if (handle != nullptr) return {handle, ""};
  }
  return {};
}

SharedLibrary open_library(std::span<const char* const> names) {
  SharedLibrary library = loaded_library(names);
  if (library.handle != nullptr) return library;
  for (const char* name : names) {
    library.handle = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    if (library.handle != nullptr) return {library.handle, ""};
    library.reason += concat(library.reason.empty() ? "" : "; ", loader_text());
  }
  return library;
}

std::string folder_of(const SharedLibrary& library) {
  link_map* map = nullptr;
  if (library.handle == nullptr || dlinfo(library.handle, RTLD_DI_LINKMAP, reinterpret_cast<void*>(&map)) != 0)
    return "";
  const std::string path = map->l_name;
  return path.substr(0, path.rfind('/') + 1);
}

void* symbol_of(const SharedLibrary& library, const char* name) {
  if (library.handle == nullptr) fail_environment("no ", name, ": ", library.reason);
  void* symbol = dlsym(library.handle, name);
  if (symbol == nullptr) fail_environment("a function of CUDA is missing: ", loader_text());
  return symbol;
}

const LibraryState& library() {
  static auto& mutex = *new ForkMutex;
  // States that callers hold references to are never freed; there are at most two.
  static auto& states = *new std::deque<LibraryState>;
  static int looks = 0;
  const std::scoped_lock lock(mutex);
  const bool again = !states.empty() && !states.back().available && looks != driver_changes();
  if (states.empty() || again) {
    looks = driver_changes();
    states.push_back(load());
  }
  return states.back();
}

void look_for_driver_again() { ++driver_changes(); }

const SharedLibrary& nvrtc_library() {
  static const SharedLibrary library = open_beside_runtime(kNvrtcNames);
  return library;
}

const SharedLibrary& cublas_library() {
  static const SharedLibrary library = open_beside_runtime(std::array{"libcublas.so.13", "libcublas.so.12"});
  return library;
}

void keep_loaded_nvrtc() {
  for (const char* name : kNvrtcNames) dlopen(name, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
}

void* cudart_symbol(const char* name) {
  if (!library().available) fail_environment(library().reason);
  return symbol_of(library().runtime, name);
}

}  // namespace scoremod::backend::cuda
