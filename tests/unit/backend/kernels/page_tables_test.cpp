// Page tables in device memory, which nobody checks before the kernels: keys of a block that the pool does not have are
// masked.

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "backend/kernels/hopper/family.hpp"
#include "backend/kernels/split_kv/family.hpp"
#include "base/concat.hpp"
#include "problem/implied_operands.hpp"
#include "support/attention_kernels_cases.hpp"
#include "support/emulated_attention.hpp"

namespace scoremod::backend::kernels {
namespace {

using Fault = test::EmulatedLaunches::Fault;

/// A mask that keeps a prefix of the keys: decode kernels look at the ends of tiles alone.
constexpr const char* kPrefix = "kv_idx <= q_idx + 300";

/// A case with pages, in the forward kernels or, with a number of rows, in the decode kernels.
struct PagedCase {
  const char* name;
  const char* value;
  const char* keep;
  int rows = 0;
  bool persistent = false;
  bool hopper = false;
};

checking::CheckCase case_of(const PagedCase& paged) {
  std::vector<checking::CheckCase> cases =
      paged.rows == 0 ? test::attention_kernels_cases(true) : test::split_kv_cases(true);
  checking::CheckCase test = std::move(cases.at(
      static_cast<std::size_t>(std::ranges::find(cases, paged.name, &checking::CheckCase::name) - cases.begin())));
  test.problem.program = Program::parse(concat("value = ", paged.value, "\nkeep = ", paged.keep));
  return test;
}

AnyShape shape_of(const PagedCase& paged, const AttentionProblem& problem) {
  if (paged.rows == 0 && paged.hopper) return hopper_shapes(problem, Direction::kForward).front();
  if (paged.rows == 0) return portable_shape(problem, Direction::kForward);
  if (paged.hopper)
    return paged.persistent ? persistent_hopper_split_kv_shape(problem, 6) : hopper_split_kv_shapes(problem, 6).front();
  DeviceProperties device;
  device.compute_capability = 80;
  device.multiprocessors = 6;
  device.shared_memory_per_block = 232448;
  for (const SplitKvShape& shape :
       paged.persistent ? persistent_split_kv_shapes(problem, device) : split_kv_shapes(problem, device))
    if (shape.queries == paged.rows) return shape;
  ADD_FAILURE() << "no shape of " << paged.rows << " rows";
  return {};
}

/// Gives the problem a program that asks of each key whether both tables name a block of the pool for it.
checking::CheckCase asking(const PagedCase& paged, checking::CheckCase test) {
  const auto& pages = *test.problem.paged;
  std::string program, keep = paged.keep;
  for (const char* const table : {problem::kPagesOfKeys, problem::kPagesOfValues}) {
    const std::string page = concat(table, "[b, kv_idx // ", pages.block_size, "]");
    program += concat("table ", table, ": i32 rank 2\n");
    keep += concat(" & ", page, " >= 0 & ", page, " < ", pages.blocks);
  }
  test.problem.program = Program::parse(concat(program, "value = ", paged.value, "\nkeep = ", keep));
  return test;
}

std::int32_t& entry(ProblemInputs& inputs, const std::string& operand, std::int64_t at) {
  const auto found = std::ranges::find(inputs.operands, operand, &OwnedOperand::name);
  return reinterpret_cast<std::int32_t*>(found->bytes.data())[at];
}

/// Inputs with whole sequences. If `is_wrong`, some pages are invalid. They are one page of the first sequence's keys
/// and another of its values, the last of the second's keys, and the first of the last's values.
ProblemInputs inputs_of(const AttentionProblem& problem, bool is_wrong) {
  ProblemInputs inputs = random_inputs(problem);
  const auto& [block_size, blocks, per_sequence] = *problem.paged;
  for (std::int64_t b = 0; b < problem.batch; ++b)
    entry(inputs, problem::kLengthsOfKeys, b) = static_cast<std::int32_t>(problem.seq_kv);
  if (!is_wrong) return inputs;
  const std::int64_t last = (problem.seq_kv - 1) / block_size;
  entry(inputs, problem::kPagesOfKeys, 1) = -1;
  entry(inputs, problem::kPagesOfValues, 2) = static_cast<std::int32_t>(blocks);
  entry(inputs, problem::kPagesOfKeys, per_sequence + last) = 1 << 30;
  entry(inputs, problem::kPagesOfValues, (problem.batch - 1) * per_sequence) = -(1 << 30);
  return inputs;
}

class PageTables : public ::testing::TestWithParam<PagedCase> {};

TEST_P(PageTables, ThatNameNoBlockMaskItsKeys) {
  const checking::CheckCase test = case_of(GetParam()), asked = asking(GetParam(), test);
  const AnyShape shape = shape_of(GetParam(), test.problem);
  const auto bits = [&](const checking::CheckCase& of, bool is_wrong, const Fault& fault = {}) {
    return test::emulated_forward_bits(of, {inputs_of(test.problem, is_wrong)}, shape, 1, 1, fault);
  };
  const auto expected = bits(asked, true);
  EXPECT_EQ(bits(test, true), expected);
  EXPECT_EQ(bits(test, false), bits(asked, false)) << "a table that is right masks nothing";
  EXPECT_NE(bits(test, false), expected);
  const Fault unasked{"return page >= 0 && page < pool.count;", "return true;"};
  EXPECT_NE(bits(test, true, unasked), expected) << "the comparison would see it";
  if (GetParam().rows == 0 || std::string_view(GetParam().keep) != kPrefix) return;
  const Fault unasked_of_tiles{"all &= has_page(call, b, page * kBlockRows)", "all = true"};
  EXPECT_NE(bits(test, true, unasked_of_tiles), expected);
}

INSTANTIATE_TEST_SUITE_P(Cases, PageTables,
                         ::testing::Values(PagedCase{"paged", "score", "kv_idx <= q_idx + 60"},
                                           PagedCase{"paged by heads", "score * 0.5", "kv_idx >= 0"},
                                           PagedCase{"paged f32", "score", "kv_idx <= q_idx + 60"},
                                           PagedCase{"decode, pages", "score * 0.5", "kv_idx >= 0", 16},
                                           PagedCase{"decode, pages by heads", "score", "kv_idx >= 0", 32},
                                           PagedCase{"decode, large pages", "score", "score < 5.0", 16},
                                           PagedCase{"decode, pages", "score * 0.5", "kv_idx >= 0", 16, true},
                                           PagedCase{"decode, large pages", "score", "score < 5.0", 32, true},
                                           PagedCase{"paged", "score", "kv_idx <= q_idx + 60", 0, false, true},
                                           PagedCase{"decode, pages", "score * 0.5", kPrefix, 16},
                                           PagedCase{"decode, pages", "score * 0.5", kPrefix, 32, true},
                                           PagedCase{"decode, pages", "score * 0.5", kPrefix, 64, false, true},
                                           PagedCase{"decode, pages", "score * 0.5", kPrefix, 64, true, true},
                                           PagedCase{"decode, large pages", "score", "score < 5.0", 64, true, true}));

}  // namespace
}  // namespace scoremod::backend::kernels
