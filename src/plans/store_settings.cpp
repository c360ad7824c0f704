#include "plans/store_settings.hpp"

#include <charconv>
#include <string_view>

#include "base/environment.hpp"
#include "base/warning.hpp"
#include "plans/plan_store.hpp"

namespace scoremod::plans {
namespace {

bool is_off() {
  const std::string_view value = environment_variable("SCOREMOD_CACHE");
  if (value.empty() || value == "on") return false;
  if (value != "off") warn("SCOREMOD_CACHE: expected on or off, found '", value, "'; plans are not stored");
  return true;
}

std::filesystem::path directory() {
  if (const std::string_view named = environment_variable("SCOREMOD_CACHE_DIR"); !named.empty()) return named;
  // The XDG Base Directory Specification (0.8) lets a path that is not absolute count as none.
  if (const std::filesystem::path caches = environment_variable("XDG_CACHE_HOME"); caches.is_absolute())
    return caches / "scoremod";
  if (const std::filesystem::path home = environment_variable("HOME"); home.is_absolute())
    return home / ".cache" / "scoremod";
  warn("plans are not stored: none of SCOREMOD_CACHE_DIR, XDG_CACHE_HOME and HOME names a folder");
  return {};
}

std::uint64_t max_bytes() {
  const std::string_view value = environment_variable("SCOREMOD_CACHE_BYTES");
  if (value.empty()) return kDefaultStoreBytes;
  std::uint64_t bytes = 0;
  const char* end = value.data() + value.size();
  const auto [rest, error] = std::from_chars(value.data(), end, bytes);
  if (error == std::errc() && rest == end) return bytes;
  warn("SCOREMOD_CACHE_BYTES: expected a number of bytes, found '", value, "'; the limit is ", kDefaultStoreBytes);
  return kDefaultStoreBytes;
}

}  // namespace

StoreSettings store_settings_from_environment() {
  if (is_off()) return {{}, kDefaultStoreBytes};
  return {directory(), max_bytes()};
}

}  // namespace scoremod::plans
