#include "backend/cudnn/library.hpp"

#include <array>
#include <dlfcn.h>

#include "base/fail.hpp"

namespace scoremod::backend::cudnn {
namespace {

/// The loader's text for the last failure.
std::string loader_text() {
  const char* text = dlerror();
  return text == nullptr ? "no reason given" : text;
}

/// Opens the first library that loads. Libraries stay open for the life of the process: cuDNN's and CUDA's own threads
/// and exit handlers must never outlive their code.
template <std::size_t N>
void* open_first(const std::array<const char*, N>& names, std::string* reason) {
  for (const char* name : names) {
    if (void* handle = dlopen(name, RTLD_NOW | RTLD_GLOBAL)) return handle;
    *reason += concat(reason->empty() ? "" : "; ", loader_text());
  }
  return nullptr;
}

LibraryState load() {
  LibraryState state;
  std::string reason;
  if (open_first(std::array{"libcuda.so.1"}, &reason) == nullptr) {
    state.reason = concat("no CUDA driver: ", reason);
    return state;
  }
  state.cudart = open_first(std::array{"libcudart.so.13", "libcudart.so.12"}, &reason);
  if (state.cudart == nullptr) {
    state.reason = concat("no CUDA runtime: ", reason);
    return state;
  }
  state.cudnn = open_first(std::array{"libcudnn.so.9"}, &reason);
  if (state.cudnn == nullptr) {
    state.reason = concat("no cuDNN 9: ", reason);
    return state;
  }
  using VersionFunction = std::size_t (*)();
  const auto version = reinterpret_cast<VersionFunction>(dlsym(state.cudnn, "cudnnGetVersion"));
  if (version == nullptr) {
    state.reason = concat("libcudnn.so.9 has no cudnnGetVersion: ", loader_text());
    return state;
  }
  state.cudnn_version = version();
  state.available = true;
  return state;
}

}  // namespace

const LibraryState& library() {
  static const LibraryState state = load();
  return state;
}

void* cudart_symbol(const char* name) {
  if (!library().available) fail_environment(library().reason);
  void* symbol = dlsym(library().cudart, name);
  if (symbol == nullptr) fail_environment("the CUDA runtime has no ", name, ": ", loader_text());
  return symbol;
}

}  // namespace scoremod::backend::cudnn
