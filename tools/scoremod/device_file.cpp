#include "device_file.hpp"

#include <fstream>
#include <iterator>

#include "fail.hpp"

namespace scoremod::cli {

std::string read_device(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) {
    fail(ErrorCode::kInvalidArgument, path,
         ": expected a device's properties, found no file that can be read; `scoremod device` writes them on a machine "
         "with the device");
  }
  return text;
}

}  // namespace scoremod::cli
