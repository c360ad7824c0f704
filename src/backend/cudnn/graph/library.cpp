#include "backend/cudnn/graph/library.hpp"

#include <array>
#include <dlfcn.h>

#include "backend/cuda/library.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::cudnn {
namespace {

LibraryState load() {
  LibraryState state;
  if (!cuda::library().available) {
    state.reason = cuda::library().reason;
    return state;
  }
  const cuda::SharedLibrary found = cuda::open_library(std::array{"libcudnn.so.9"});
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

std::string version_text(std::size_t version) {
  return concat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace scoremod::backend::cudnn
