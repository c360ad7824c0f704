#include "device_file.hpp"

#include "text_file.hpp"

namespace scoremod::cli {

std::string read_device(const std::string& path) {
  return input::read_text(path, "a device's properties, which `scoremod device` writes on a machine with the device");
}

}  // namespace scoremod::cli
