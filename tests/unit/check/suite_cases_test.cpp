#include "check/suite_cases.hpp"

#include <set>

#include <gtest/gtest.h>

#include "scoremod/error.hpp"
#include "scoremod/zoo.hpp"

#include "problem/tensor_view.hpp"

namespace scoremod::checking {
namespace {

using problem::TensorRole;

CheckSuiteOptions with_random(int count, std::uint64_t seed = 0, const std::string& filter = "") {
  CheckSuiteOptions options;
  options.random_problems = count;
  options.seed = seed;
  options.filter = filter;
  return options;
}

TEST(SuiteCases, HoldEveryEntryOfTheZooInEveryDtype) {
  std::set<std::string> names;
  for (const CheckCase& one : suite_cases(with_random(0))) EXPECT_TRUE(names.insert(one.name).second) << one.name;
  std::vector<std::string> modifiers{"plain"};
  for (const zoo::Entry& entry : zoo::entries()) modifiers.push_back(entry.name);
  for (const std::string& modifier : modifiers) {
    for (const char* shape : {"self", "grouped", "one_query", "padded_rows", "shard"}) {
      for (const char* dtype : {"f16", "bf16"}) {
        EXPECT_TRUE(names.contains("zoo/" + modifier + "/" + shape + "/" + dtype)) << modifier << shape << dtype;
      }
    }
  }
}

TEST(SuiteCases, AreValidAndWhatGpuBackendsAllow) {
  for (const CheckCase& one : suite_cases(with_random(200))) {
    SCOPED_TRACE(one.name);
    const AttentionProblem& problem = one.problem;
    ASSERT_NO_THROW(validate(problem));
    EXPECT_TRUE(problem.backward);
    EXPECT_TRUE(problem.dtype == DType::kF16 || problem.dtype == DType::kBF16);
    EXPECT_LE(problem.dim_qk, 256);
    for (const TensorRole role : {TensorRole::kQ, TensorRole::kK, TensorRole::kV, TensorRole::kO}) {
      const Strides strides = problem::strides_of(problem, role);
      EXPECT_EQ(strides.dim, 1);
      EXPECT_EQ(problem::shape_of(problem, role).dim % 8, 0);
      for (const std::int64_t stride : {strides.batch, strides.head, strides.sequence}) EXPECT_EQ(stride % 8, 0);
    }
  }
}

TEST(SuiteCases, CoverWhatGoesWrongOnDevices) {
  bool one_query = false, odd = false, half_tile = false, grouped = false, one_head = false, value_dim = false;
  bool negative_scale = false, offsets = false, table = false, scalar = false, low = false;
  std::set<DType> operand_dtypes;
  std::set<Layout> layouts;
  for (const CheckCase& one : suite_cases(with_random(200, 0, "random/"))) {
    const AttentionProblem& p = one.problem;
    one_query |= p.seq_q == 1;
    odd |= p.seq_kv % 2 == 1;
    half_tile |= p.seq_kv % 128 == 64;
    grouped |= p.heads_kv > 1 && p.heads_q > p.heads_kv;
    one_head |= p.heads_kv == 1 && p.heads_q > 1;
    value_dim |= p.dim_v != p.dim_qk;
    negative_scale |= p.scale.value_or(1) < 0;
    offsets |= one.call.offsets != IndexOffsets{};
    low |= p.program.to_string().find(" + -2") != std::string::npos;
    layouts.insert(p.q.layout);
    for (const OperandDecl& decl : p.program.operands()) {
      table |= decl.is_table();
      scalar |= decl.rank() == 0;
    }
    for (const OperandSpec& spec : p.operands) operand_dtypes.insert(spec.dtype);
  }
  EXPECT_TRUE(one_query && odd && half_tile && grouped && one_head && value_dim);
  EXPECT_TRUE(negative_scale && offsets && table && scalar && low);
  EXPECT_EQ(operand_dtypes.size(), 5U);
  EXPECT_EQ(layouts.size(), 3U);
}

TEST(SuiteCases, DependOnTheSeedAlone) {
  const auto of = [](std::uint64_t seed, const std::string& filter, int count) {
    return suite_cases(with_random(count, seed, filter));
  };
  const CheckCase seventh = of(5, "", 8).back();
  for (const CheckCase& again : {of(5, "random/7", 8).at(0), of(7, "random/5", 6).at(0)}) {
    EXPECT_EQ(again.problem, seventh.problem);
    EXPECT_EQ(again.seed, seventh.seed);
  }
  EXPECT_NE(of(6, "random/7", 8).at(0).problem, seventh.problem);
}

TEST(SuiteCases, RefuseWhatMakesNoSense) {
  CheckSuiteOptions negative, threads, integers, nothing;
  negative.random_problems = -1;
  threads.threads = -1;
  integers.dtypes.push_back(DType::kI32);
  nothing.filter = "no such problem";
  for (const CheckSuiteOptions& options : {negative, threads, integers, nothing}) {
    EXPECT_THROW(suite_cases(options), Error);
  }
  CheckSuiteOptions unknown;
  unknown.backend = "abacus";
  EXPECT_THROW(check_suite(unknown), Error);
}

}  // namespace
}  // namespace scoremod::checking
