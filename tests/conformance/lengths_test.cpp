// Lengths of sequences, against the dense formula, which knows nothing of programs: the oracle to its own rounding, the
// other backends by check(). Faults planted in it must be found.

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/attention.hpp"
#include "scoremod/problem_buffers.hpp"

#include "base/element.hpp"
#include "check/check_subject.hpp"
#include "compiler/pipeline.hpp"
#include "conformance/dense_formula.hpp"
#include "conformance/host_calls.hpp"
#include "problem/strided_tensor.hpp"
#include "support/faulty_subject.hpp"
#include "support/refusal.hpp"

namespace scoremod {
namespace {

using Index = std::int64_t;
using problem::TensorRole;
using test::DenseModifier;

const std::vector<double> kLengthsQ{5, 0, 3}, kLengthsKv{0, 7, 4};

AttentionProblem with_lengths(bool q, bool kv) {
  AttentionProblem problem = test::formula_problem();
  problem.lengths = {q, kv};
  return problem;
}

ProblemInputs lengths_inputs(const AttentionProblem& problem, const std::vector<double>& q,
                             const std::vector<double>& kv) {
  ProblemInputs inputs = random_inputs(problem);
  if (problem.lengths.q) test::set_operand(problem, inputs, "lengths_q", q);
  if (problem.lengths.kv) test::set_operand(problem, inputs, "lengths_kv", kv);
  return inputs;
}

TEST(Lengths, BoundQueriesAndKeysOfEachBatch) {
  for (const auto& [of_q, of_kv] : std::vector<std::pair<bool, bool>>{{true, false}, {false, true}, {true, true}}) {
    for (const char* program : {"value = score", "value = tanh(score)\nkeep = kv_idx <= q_idx + 2"}) {
      AttentionProblem problem = with_lengths(of_q, of_kv);
      problem.program = Program::parse(program);
      const bool capped = std::string(program).find("tanh") != std::string::npos;
      const ProblemInputs inputs = lengths_inputs(problem, kLengthsQ, kLengthsKv);
      DenseModifier modifier;
      modifier.keep = [&](Index b, Index, Index q, Index kv) {
        const auto at = static_cast<std::size_t>(b);
        return (!of_q || q < static_cast<Index>(kLengthsQ[at])) &&
               (!of_kv || kv < static_cast<Index>(kLengthsKv[at])) && (!capped || kv <= q + 2);
      };
      if (capped) {
        modifier.value = [](double s, Index, Index, Index, Index) { return std::tanh(s); };
        modifier.slope = [](double s, Index, Index, Index, Index) { return 1 - std::tanh(s) * std::tanh(s); };
      }
      test::expect_formula(test::run_calls(problem, inputs, "reference"),
                           test::formula_result(problem, inputs, modifier));
      test::expect_backends_conform(problem, inputs);
    }
  }
}

TEST(Lengths, AlignTheBottomRightMaskWithEachBatchsEnd) {
  const AttentionProblem problem = parse_problem(R"({
    "batch": 3, "heads_q": 4, "heads_kv": 2, "seq_q": 5, "seq_kv": 7, "dim_qk": 8, "dim_v": 6, "layout": "BHSD",
    "lengths": {"q": true, "kv": true}, "program": {"mask_mod": ["causal_bottom_right"]},
    "backward": true, "stats": true})");
  const ProblemInputs inputs = lengths_inputs(problem, {5, 2, 3}, {6, 7, 4});
  DenseModifier modifier;
  modifier.keep = [](Index b, Index, Index q, Index kv) {
    constexpr Index kQ[] = {5, 2, 3}, kKv[] = {6, 7, 4};
    return q < kQ[b] && kv < kKv[b] && kv <= q + kKv[b] - kQ[b];
  };
  test::expect_formula(test::run_calls(problem, inputs, "reference"), test::formula_result(problem, inputs, modifier));
  test::expect_backends_conform(problem, inputs);
}

/// A shard compares global indices with the whole sequence's lengths, and so do its neighbours.
TEST(Lengths, OfShardsAreTheWholeSequences) {
  AttentionProblem whole = with_lengths(false, true);
  whole.backward = false;
  const ProblemInputs inputs = lengths_inputs(whole, {}, {2, 6, 7});
  AttentionProblem shard = whole;
  shard.seq_kv = 3;
  shard.index_offsets = true;
  ProblemInputs part = lengths_inputs(shard, {}, {2, 6, 7});
  // Keys 4, 5 and 6 of the whole.
  const problem::StridedTensor of_whole = problem::tensor_of("k", whole, TensorRole::kK);
  const problem::StridedTensor of_part = problem::tensor_of("k", shard, TensorRole::kK);
  const std::vector<double> keys = test::to_dense(inputs.k, whole.dtype, of_whole.shape, of_whole.strides);
  of_part.for_each_offset([&](Index number, Index offset) {
    const Index row = number / whole.dim_qk, head = row / 3, j = row % 3 + 4;
    const auto at = static_cast<std::size_t>((head * 7 + j) * whole.dim_qk + number % whole.dim_qk);
    store_element(part.k.data(), shard.dtype, offset, keys[at]);
  });
  part.q = inputs.q;
  DenseModifier modifier;
  modifier.keep = [](Index b, Index, Index, Index kv) {
    constexpr Index kKv[] = {2, 6, 7};
    return kv >= 4 && kv < kKv[b];
  };
  CompileOptions options;
  CallOptions call;
  call.offsets.key = 4;
  for (const char* backend : {"reference", "cpu"}) {
    options.backend = backend;
    ProblemBuffers buffers(shard, buffers_of(part));
    Attention::compile(shard, options).forward(buffers.forward(call));
    const std::vector<double> lse = test::output_values(buffers, "lse"),
                              expected = test::formula_result(whole, inputs, modifier).lse;
    for (std::size_t i = 0; i < lse.size(); ++i) {
      if (std::isinf(expected[i])) {
        EXPECT_EQ(lse[i], expected[i]) << backend << i;
      } else {
        EXPECT_NEAR(lse[i], expected[i], 1e-5 * (1 + std::abs(expected[i]))) << backend << i;
      }
    }
  }
}

TEST(Lengths, ThatTheHostCanReadMustBeWithinTheSequence) {
  const AttentionProblem problem = with_lengths(true, true);
  for (const auto& [q, kv, message] : std::vector<std::tuple<double, double, const char*>>{
           {6, 7, "'lengths_q': expected lengths from 0 to 5, the size of the sequence, found 6 of batch 2"},
           {5, 8, "'lengths_kv': expected lengths from 0 to 7, the size of the sequence, found 8 of batch 2"},
           {-1, 7, "'lengths_q': expected lengths from 0 to 5, the size of the sequence, found -1 of batch 2"}}) {
    const ProblemInputs inputs = lengths_inputs(problem, {0, 5, q}, {0, 7, kv});
    ProblemBuffers buffers(problem, buffers_of(inputs));
    const Attention attention = Attention::compile(problem);
    test::expect_refusal(message, [&] { attention.forward(buffers.forward()); });
    // Nothing was written before.
    for (const OutputTensor& output : buffers.outputs()) {
      EXPECT_TRUE(std::ranges::all_of(output.bytes, [](std::byte byte) { return byte == std::byte{0xff}; }));
    }
  }
}

TEST(Lengths, MustBeGiven) {
  const AttentionProblem problem = with_lengths(false, true);
  ProblemInputs inputs = random_inputs(problem);
  inputs.operands.clear();
  ProblemBuffers buffers(problem, buffers_of(inputs));
  const Attention attention = Attention::compile(problem);
  test::expect_refusal("operand 'lengths_kv' is missing", [&] { attention.forward(buffers.forward()); });
}

/// A checker that misses these faults would make the tests above worthless.
TEST(LengthsNegativeControl, LengthsOffByOneAreFound) {
  const AttentionProblem problem = with_lengths(true, true);
  const compiler::CompiledProblem right = compiler::compile(problem);
  compiler::CompiledProblem faulty = right;
  faulty.problem.program = Program::parse(
      "operand lengths_q: i32 [b]\noperand lengths_kv: i32 [b]\nvalue = score\n"
      "keep = q_idx < lengths_q & kv_idx <= lengths_kv");
  const ProblemInputs inputs = lengths_inputs(problem, {5, 4, 3}, {3, 6, 4});
  EXPECT_TRUE(checking::check_subject(right, test::reference_subject(right), inputs, {}).passed());
  EXPECT_FALSE(checking::check_subject(right, test::reference_subject(faulty), inputs, {}).passed());
}

}  // namespace
}  // namespace scoremod
