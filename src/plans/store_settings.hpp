#pragma once

#include <cstdint>
#include <filesystem>

namespace scoremod::plans {

struct StoreSettings {
  std::filesystem::path directory;  ///< empty: the store is off
  std::uint64_t max_bytes = 0;
};

/// Reads the settings from the environment; docs/reference/cache.md lists the variables. A value that makes no sense
/// gives a warning.
StoreSettings store_settings_from_environment();

}  // namespace scoremod::plans
