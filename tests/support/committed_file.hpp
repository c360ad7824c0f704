#pragma once

#include <filesystem>
#include <string>

namespace scoremod::test {

/// Fails unless the file at `path` holds `text`. With SCOREMOD_UPDATE_GOLDEN=1 in the environment it is written
/// instead.
void expect_committed(const std::filesystem::path& path, const std::string& text);

}  // namespace scoremod::test
