#include "store_folder.hpp"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "scoremod/error.hpp"

namespace scoremod::measure {

StoreFolder::StoreFolder() : path_((std::filesystem::temp_directory_path() / "scoremod_bench_XXXXXX").string()) {
  if (mkdtemp(path_.data()) == nullptr) {
    throw Error(ErrorCode::kEnvironment, path_ + ": this folder cannot be made: " + std::strerror(errno));
  }
}

StoreFolder::~StoreFolder() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

}  // namespace scoremod::measure
