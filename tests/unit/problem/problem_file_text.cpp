#include "unit/problem/problem_file_text.hpp"

#include <gtest/gtest.h>

namespace scoremod {

std::string replaced(const std::string& from, const std::string& to) {
  std::string text = kFull;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

}  // namespace scoremod
