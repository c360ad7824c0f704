#include "backend/cudnn/graph/library.hpp"

#include <algorithm>
#include <array>
#include <dlfcn.h>

#include "base/fail.hpp"

namespace scoremod::backend::cudnn {
namespace {

constexpr const char* kName = "libcudnn.so.9";

/// libcudnn.so.9 holds little more than the names of functions; these have the functions.
constexpr std::array kParts{"libcudnn_graph.so.9",
                            "libcudnn_ops.so.9",
                            "libcudnn_cnn.so.9",
                            "libcudnn_adv.so.9",
                            "libcudnn_engines_runtime_compiled.so.9",
                            "libcudnn_engines_precompiled.so.9",
                            "libcudnn_heuristic.so.9"};

LibraryState load() {
  LibraryState state;
  const cuda::SharedLibrary found = open_cudnn();
  state.cudnn = found.handle;
  if (state.cudnn == nullptr) {
    state.reason = concat("no cuDNN 9: ", found.reason);
    return state;
  }
  using VersionFunction = std::size_t (*)();
  const auto version = reinterpret_cast<VersionFunction>(dlsym(state.cudnn, "cudnnGetVersion"));
  if (version == nullptr) {
    state.reason = "libcudnn.so.9 has no cudnnGetVersion: it is not cuDNN 9";
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

cuda::SharedLibrary open_cudnn() {
  const std::array whole{kName};
  if (cuda::SharedLibrary loaded = cuda::loaded_library(whole); loaded.handle != nullptr) return loaded;
  const std::string folder = cuda::folder_of(cuda::loaded_library(kParts));
  if (!folder.empty()) {
    const std::string path = folder + kName;
    if (cuda::SharedLibrary beside = cuda::open_library(std::array{path.c_str()}); beside.handle != nullptr) {
      return beside;
    }
  }
  return cuda::open_library(whole);
}

std::vector<std::string> library_folders() {
  std::vector<std::string> folders;
  // It compiles by NVRTC.
  const std::array found{cuda::folder_of(open_cudnn()), cuda::folder_of(cuda::nvrtc_library()),
                         cuda::folder_of(cuda::library().runtime)};
  for (const std::string& folder : found) {
    if (!folder.empty() && std::ranges::find(folders, folder) == folders.end()) folders.push_back(folder);
  }
  return folders;
}

void require_library() {
  if (!library().available) fail_environment(library().reason);
  if (!cuda::library().available) fail_environment(cuda::library().reason);
}

std::string version_text(std::size_t version) {
  return concat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace scoremod::backend::cudnn
