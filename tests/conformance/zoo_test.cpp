#include "scoremod/zoo.hpp"

#include <map>

#include <gtest/gtest.h>

#include "check/zoo_cases.hpp"
#include "conformance/conformance.hpp"

namespace scoremod {
namespace {

/// Shapes that have grouped heads, lengths off and across tile borders, one query, value dims unlike the key's, every
/// layout, and indices that start elsewhere.
struct Shape {
  const char* name;
  AttentionProblem problem;
  IndexOffsets offsets;
};

AttentionProblem sized(std::int64_t batch, std::int64_t heads_q, std::int64_t heads_kv, std::int64_t seq_q,
                       std::int64_t seq_kv, std::int64_t dim_qk, std::int64_t dim_v, Layout layout) {
  AttentionProblem problem;
  problem.batch = batch;
  problem.heads_q = heads_q;
  problem.heads_kv = heads_kv;
  problem.seq_q = seq_q;
  problem.seq_kv = seq_kv;
  problem.dim_qk = dim_qk;
  problem.dim_v = dim_v;
  problem.q.layout = problem.k.layout = problem.v.layout = problem.o.layout = layout;
  problem.backward = problem.stats = true;
  return problem;
}

std::vector<Shape> shapes() {
  return {{"self", sized(2, 2, 2, 65, 65, 16, 16, Layout::kBSHD), {}},
          {"grouped", sized(1, 4, 2, 70, 130, 8, 24, Layout::kBHSD), {}},
          {"decode", sized(2, 3, 1, 7, 127, 20, 8, Layout::kSBHD), {0, 0, 120, 0}},
          {"one_query", sized(2, 2, 1, 1, 200, 33, 16, Layout::kBSHD), {0, 0, 199, 0}},
          {"shard", sized(1, 2, 2, 40, 64, 16, 16, Layout::kBSHD), {1, 2, 64, 32}}};
}

class Zoo : public ::testing::TestWithParam<std::tuple<std::string, DType>> {};

TEST_P(Zoo, ConformsToTheOracle) {
  const auto& [name, dtype] = GetParam();
  for (const Shape& shape : shapes()) {
    checking::CheckCase test_case = checking::zoo_case({name}, shape.problem, dtype);
    test_case.name = name + "/" + shape.name;
    test_case.call.offsets = shape.offsets;
    test_case.problem.index_offsets = shape.offsets != IndexOffsets{};
    for (const std::string& backend : test::tested_backends()) test::expect_conforms(backend, test_case);
  }
}

std::vector<std::string> entry_names() {
  std::vector<std::string> names;
  for (const zoo::Entry& entry : zoo::entries()) names.push_back(entry.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Entries, Zoo,
                         ::testing::Combine(::testing::ValuesIn(entry_names()),
                                            ::testing::Values(DType::kF32, DType::kF16, DType::kBF16)),
                         [](const auto& test) {
                           return std::get<0>(test.param) + "_" + to_string(std::get<1>(test.param));
                         });

TEST(ZooCombinations, ConformToTheOracle) {
  const std::vector<std::vector<std::string>> combinations{{"soft_cap", "causal"},
                                                           {"alibi", "sliding_window"},
                                                           {"t5_bias", "padding"},
                                                           {"head_temperature", "soft_cap", "documents"},
                                                           {"full_bias", "causal_bottom_right", "padding"},
                                                           {"relative_table", "prefix_lm", "documents"},
                                                           {"relative_bias", "soft_cap", "neighborhood_2d"}};
  for (const auto& names : combinations) {
    for (const Shape& shape : shapes()) {
      checking::CheckCase test_case = checking::zoo_case(names, shape.problem, DType::kF32);
      for (const std::string& name : names) test_case.name += name + "+";
      test_case.name += shape.name;
      for (const std::string& backend : test::tested_backends()) test::expect_conforms(backend, test_case);
    }
  }
}

}  // namespace
}  // namespace scoremod
