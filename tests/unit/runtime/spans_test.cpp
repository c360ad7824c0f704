#include "scoremod/spans.hpp"

#include <array>
#include <cstdint>
#include <list>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace scoremod {
namespace {

TEST(Spans, AreAllBytesOfTheirElements) {
  std::vector<float> values(3);
  const std::array<std::int32_t, 4> ids{};
  EXPECT_EQ(buffer_of(values).data, values.data());
  EXPECT_EQ(buffer_of(values).bytes, 12u);
  EXPECT_EQ(const_buffer_of(ids).data, ids.data());
  EXPECT_EQ(const_buffer_of(ids).bytes, 16u);
  const std::span<float> last = std::span(values).last(2);
  EXPECT_EQ(buffer_of(last).data, &values[1]);
  EXPECT_EQ(const_buffer_of(last).bytes, 8u);
  EXPECT_EQ(const_buffer_of(std::span<const float>()).bytes, 0u);
}

// A range that cannot be a call's memory doesn't compile.
static_assert(WritableElements<std::vector<float>&> && WritableElements<std::span<float>>);
static_assert(Elements<const std::vector<float>&> && !WritableElements<const std::vector<float>&>);
static_assert(Elements<std::span<const float>> && !WritableElements<std::span<const float>>);
static_assert(!Elements<std::vector<float>>, "a temporary's memory is gone when the call runs");
static_assert(!Elements<std::list<float>&> && !Elements<std::vector<std::string>&>);

}  // namespace
}  // namespace scoremod
