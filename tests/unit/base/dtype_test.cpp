#include "scoremod/dtype.hpp"

#include <gtest/gtest.h>

#include "scoremod/error.hpp"

namespace scoremod {
namespace {

struct Row {
  DType dtype;
  const char* name;
  std::size_t bytes;
  bool floating;
};

TEST(DType, SizesAndNames) {
  for (const Row& row :
       {Row{DType::kF32, "f32", 4, true}, Row{DType::kF16, "f16", 2, true}, Row{DType::kBF16, "bf16", 2, true},
        Row{DType::kI32, "i32", 4, false}, Row{DType::kBool, "bool", 1, false}, Row{DType::kE4M3, "e4m3", 1, true},
        Row{DType::kE5M2, "e5m2", 1, true}}) {
    EXPECT_EQ(size_of(row.dtype), row.bytes) << row.name;
    EXPECT_STREQ(to_string(row.dtype), row.name);
    EXPECT_EQ(parse_dtype(row.name), row.dtype);
    EXPECT_EQ(is_floating(row.dtype), row.floating) << row.name;
    EXPECT_EQ(is_float8(row.dtype), row.floating && row.bytes == 1) << row.name;
  }
  EXPECT_EQ(parse_dtype("float"), std::nullopt);
  EXPECT_EQ(parse_dtype(""), std::nullopt);
  EXPECT_THROW(size_of(static_cast<DType>(17)), Error);
}

}  // namespace
}  // namespace scoremod
