#include "backend/cudnn/patterns/nearest_version.hpp"

#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace scoremod::backend::cudnn {
namespace {

using namespace std::string_view_literals;

TEST(NearestVersion, IsTheLikeliestToAnswerTheSame) {
  const std::vector explored{"9.19.2"sv, "9.27.0"sv, "9.19.0"sv, "9.30.4"sv, "9.30.2"sv};
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"9.27.0", "9.27.0"},   // itself
      {"9.27.3", "9.27.0"},   // same minor: the newest that is not newer
      {"9.19.1", "9.19.0"},   //
      {"9.19.9", "9.19.2"},   //
      {"9.30.1", "9.30.2"},   // same minor, though newer, rather than an older minor
      {"9.28.0", "9.27.0"},   // otherwise the newest that is not newer
      {"9.20.0", "9.19.2"},   //
      {"9.100.0", "9.30.4"},  // numbers, not text
      {"9.5.1", "9.19.0"},    // or else the oldest
  };
  for (const auto& [version, nearest] : cases) EXPECT_EQ(nearest_version(version, explored), nearest) << version;
}

TEST(NearestVersion, DoesNotCrossMajorVersions) {
  const std::vector explored{"9.19.0"sv};
  for (const std::string_view version : {"8.9.7", "10.0.0", "", "9", "9.19", "9.19.0.1", "9.x.0", "9.19.0 "}) {
    EXPECT_EQ(nearest_version(version, explored), std::nullopt) << version;
  }
  EXPECT_EQ(nearest_version("9.19.0", {}), std::nullopt);
}

}  // namespace
}  // namespace scoremod::backend::cudnn
