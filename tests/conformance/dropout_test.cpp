// Dropout, against the dense formula, which knows nothing of programs: the oracle to its own rounding, the other
// backends by check(). Faults planted in it must be found.

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/attention.hpp"
#include "scoremod/problem_buffers.hpp"

#include "base/element.hpp"
#include "check/check_subject.hpp"
#include "compiler/pipeline.hpp"
#include "conformance/dense_formula.hpp"
#include "conformance/host_calls.hpp"
#include "problem/dropout_mask.hpp"
#include "support/faulty_subject.hpp"

namespace scoremod {
namespace {

using Index = std::int64_t;
using test::DenseModifier;

CallOptions dropout_call() {
  CallOptions call;
  call.dropout_seed = 0x1234'5678'9abc'def0;
  call.dropout_offset = 77;
  return call;
}

AttentionProblem with_dropout(float probability) {
  AttentionProblem problem = test::formula_problem();
  problem.program = Program::parse("value = 2.0 * score\nkeep = kv_idx < q_idx + 3");
  problem.dropout = probability;
  return problem;
}

bool same_outputs(const ProblemBuffers& x, const ProblemBuffers& y) {
  return std::ranges::equal(x.outputs(), y.outputs(), {}, &OutputTensor::bytes, &OutputTensor::bytes);
}

/// The rows of 'dropout_keys' that are equivalent to a seed and an offset.
std::vector<double> keys_of(const AttentionProblem& problem, const CallOptions& call) {
  const problem::DropoutMask mask(problem.dropout, call.dropout_seed, call.dropout_offset);
  std::vector<double> keys;
  for (Index b = 0; b < problem.batch; ++b) {
    for (const std::uint32_t word : {mask.key()[0], mask.key()[1], static_cast<std::uint32_t>(b), 0U})
      keys.push_back(static_cast<std::int32_t>(word));
  }
  return keys;
}

TEST(Dropout, KeysInATensorDropWhatSeedsDo) {
  const AttentionProblem plain = with_dropout(0.3F);
  AttentionProblem keyed = plain;
  keyed.dropout_keys = true;
  const CallOptions call = dropout_call();
  for (const char* backend : {"cpu", "reference"}) {
    const ProblemBuffers expected = test::run_calls(plain, random_inputs(plain), backend, call);
    ProblemInputs inputs = random_inputs(keyed);
    std::vector<double> keys = keys_of(keyed, call);
    test::set_operand(keyed, inputs, "dropout_keys", keys);
    EXPECT_TRUE(same_outputs(test::run_calls(keyed, inputs, backend), expected)) << backend;
    // Each batch has its own row: the second as another one has other weights.
    keys[6] = 2;
    test::set_operand(keyed, inputs, "dropout_keys", keys);
    EXPECT_FALSE(same_outputs(test::run_calls(keyed, inputs, backend), expected)) << backend;
  }
  test::expect_backends_conform(keyed, random_inputs(keyed), call);
}

TEST(Dropout, LeavesWeightsOutAfterTheSoftmax) {
  for (const float probability : {0.1F, 0.5F, 0.9F}) {
    for (const Sink sink : {Sink::kNone, Sink::kLearned}) {
      AttentionProblem problem = with_dropout(probability);
      problem.sink = sink;
      const ProblemInputs inputs = random_inputs(problem);
      const CallOptions call = dropout_call();
      const problem::DropoutMask mask(probability, call.dropout_seed, call.dropout_offset);
      DenseModifier modifier;
      modifier.value = [](double s, Index, Index, Index, Index) { return 2 * s; };
      modifier.slope = [](double, Index, Index, Index, Index) { return 2.0; };
      modifier.keep = [](Index, Index, Index q, Index kv) { return kv < q + 3; };
      modifier.share = [&](Index b, Index h, Index q, Index kv) {
        return mask.keeps(b, h, q, kv) ? 1 / (1 - static_cast<double>(probability)) : 0;
      };
      if (sink == Sink::kLearned) {
        std::vector<double> sinks;
        for (const OwnedOperand& operand : inputs.operands) {
          for (Index h = 0; h < problem.heads_q; ++h)
            sinks.push_back(load_element<double>(operand.bytes.data(), DType::kF32, h));
        }
        modifier.sink = [=](Index h) { return sinks[static_cast<std::size_t>(h)]; };
      }
      test::expect_formula(test::run_calls(problem, inputs, "reference", call),
                           test::formula_result(problem, inputs, modifier));
      test::expect_backends_conform(problem, inputs, call);
    }
  }
}

/// Tiles and blocks of the backends cut the keys otherwise than the mask's groups of four do.
TEST(Dropout, IsTheSameAcrossTiles) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    AttentionProblem problem = with_dropout(0.25F);
    problem.dtype = dtype;
    problem.program = Program::parse("value = score\nkeep = kv_idx <= q_idx + 61");
    problem.seq_q = 130;
    problem.seq_kv = 333;
    problem.dim_qk = problem.dim_v = 24;
    problem.index_offsets = true;
    CallOptions call = dropout_call();
    call.offsets = {1, 2, 3, 5};
    test::expect_backends_conform(problem, random_inputs(problem), call);
  }
}

TEST(Dropout, OfAShardIsThatOfTheWhole) {
  AttentionProblem whole = with_dropout(0.3F);
  whole.backward = false;
  AttentionProblem shard = whole;
  shard.heads_q = 2;
  shard.heads_kv = 1;
  const ProblemInputs inputs = random_inputs(whole);
  ProblemInputs part = random_inputs(shard);
  // Heads 2 and 3 of the whole, which share KV head 1. The order is BHSD.
  const auto cut = [&](const std::vector<std::byte>& from, std::size_t heads, std::size_t first, std::size_t count,
                       std::vector<std::byte>& to) {
    const std::size_t head = from.size() / heads / 3;
    for (std::size_t b = 0; b < 3; ++b)
      std::copy_n(from.begin() + static_cast<std::ptrdiff_t>((b * heads + first) * head), count * head,
                  to.begin() + static_cast<std::ptrdiff_t>(b * count * head));
  };
  cut(inputs.q, 4, 2, 2, part.q);
  cut(inputs.k, 2, 1, 1, part.k);
  cut(inputs.v, 2, 1, 1, part.v);
  CallOptions call = dropout_call();
  CompileOptions options;
  options.backend = "cpu";
  ProblemBuffers of_whole(whole, buffers_of(inputs)), of_shard(shard, buffers_of(part));
  Attention::compile(whole, options).forward(of_whole.forward(call));
  shard.index_offsets = true;
  call.offsets.head = 2;
  Attention::compile(shard, options).forward(of_shard.forward(call));
  std::vector<std::byte> expected(of_shard.outputs()[0].bytes.size());
  cut(of_whole.outputs()[0].bytes, 4, 2, 2, expected);
  EXPECT_EQ(of_shard.outputs()[0].bytes, expected);
}

TEST(Dropout, DependsOnSeedAndOffset) {
  const AttentionProblem problem = with_dropout(0.5F);
  const ProblemInputs inputs = random_inputs(problem);
  CallOptions call = dropout_call();
  const std::vector<double> first = test::output_values(test::run_calls(problem, inputs, "cpu", call), "o");
  EXPECT_EQ(test::output_values(test::run_calls(problem, inputs, "cpu", call), "o"), first);
  call.dropout_seed += 1;
  EXPECT_NE(test::output_values(test::run_calls(problem, inputs, "cpu", call), "o"), first);
  call.dropout_seed -= 1;
  call.dropout_offset += std::uint64_t{1} << 32;
  EXPECT_NE(test::output_values(test::run_calls(problem, inputs, "cpu", call), "o"), first);
}

TEST(DropoutNegativeControl, FaultsAreFound) {
  const AttentionProblem problem = with_dropout(0.25F);
  const compiler::CompiledProblem right = compiler::compile(problem);
  const ProblemInputs inputs = random_inputs(problem);
  CheckOptions options;
  options.call = dropout_call();
  const auto passes = [&](const checking::Subject& subject) {
    return checking::check_subject(right, subject, inputs, options).passed();
  };
  const checking::Subject subject = test::reference_subject(right);
  EXPECT_TRUE(passes(subject));
  checking::Subject wrong_seed = subject;
  wrong_seed.forward = [&](ForwardArgs args, Buffer workspace) {
    args.options.dropout_seed += 1;
    subject.forward(args, workspace);
  };
  EXPECT_FALSE(passes(wrong_seed));
  // The backward of another call's mask.
  checking::Subject other_mask = subject;
  other_mask.backward = [&](BackwardArgs args, Buffer workspace) {
    args.options.dropout_offset += 1;
    subject.backward(args, workspace);
  };
  EXPECT_FALSE(passes(other_mask));
  const auto unscaled = [&](const ForwardArgs& args) {
    auto* o = static_cast<float*>(args.o.data);
    for (std::size_t i = 0; i < args.o.bytes / sizeof(float); ++i) o[i] *= 0.75F;
  };
  EXPECT_FALSE(passes(test::after_forward(subject, unscaled)));
  compiler::CompiledProblem without = right;
  without.problem.dropout = 0;
  EXPECT_FALSE(passes(test::reference_subject(without)));
}

}  // namespace
}  // namespace scoremod
