#include "support/committed_file.hpp"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

namespace scoremod::test {

void expect_committed(const std::filesystem::path& path, const std::string& text) {
  const char* update = std::getenv("SCOREMOD_UPDATE_GOLDEN");
  if (update != nullptr && std::string(update) == "1") {
    std::ofstream(path) << text;
    return;
  }
  std::ostringstream found;
  found << std::ifstream(path).rdbuf();
  EXPECT_EQ(found.str(), text) << path << " holds something else: if the change is meant, run this test again with "
                               << "SCOREMOD_UPDATE_GOLDEN=1 and read the difference";
}

}  // namespace scoremod::test
