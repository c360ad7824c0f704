// Ragged tensors: the oracle against the dense formula, which knows of no place but its own dense one, the other
// backends by check(). Faults planted in it must be found.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/attention.hpp"
#include "scoremod/problem_buffers.hpp"

#include "compiler/pipeline.hpp"
#include "conformance/host_calls.hpp"
#include "conformance/operand_faults.hpp"
#include "conformance/ragged_cases.hpp"
#include "problem/dropout_mask.hpp"
#include "support/check_report.hpp"
#include "support/faulty_subject.hpp"
#include "support/problem_for.hpp"
#include "support/refusal.hpp"

namespace scoremod {
namespace {

using Index = std::int64_t;
using test::DenseModifier;

TEST(Ragged, SequencesAttendToThemselvesAlone) {
  for (const auto& [of_q, of_kv] : std::vector<std::pair<bool, bool>>{{true, false}, {false, true}, {true, true}}) {
    for (const char* program : {"value = score", "value = tanh(score)\nkeep = kv_idx <= q_idx + 2"}) {
      AttentionProblem problem = test::ragged_problem(of_q, of_kv);
      problem.program = Program::parse(program);
      const bool capped = std::string(program).find("tanh") != std::string::npos;
      const ProblemInputs inputs = test::ragged_inputs(problem);
      DenseModifier modifier;
      if (capped) {
        modifier.keep = [](Index, Index, Index q, Index kv) { return kv <= q + 2; };
        modifier.value = [](double s, Index, Index, Index, Index) { return std::tanh(s); };
        modifier.slope = [](double s, Index, Index, Index, Index) { return 1 - std::tanh(s) * std::tanh(s); };
      }
      test::expect_ragged(problem, test::run_calls(problem, inputs, "reference"),
                          test::ragged_result(problem, inputs, test::within_sequences(problem, modifier)));
      test::expect_backends_conform(problem, inputs);
    }
  }
}

TEST(Ragged, TheBottomRightMaskIsAlignedWithEachSequencesEnd) {
  AttentionProblem problem = parse_problem(R"({
    "batch": 3, "heads_q": 4, "heads_kv": 2, "seq_q": 5, "seq_kv": 7, "dim_qk": 8, "dim_v": 6,
    "tokens_q": 9, "tokens_kv": 10, "program": {"mask_mod": ["causal_bottom_right"]},
    "backward": true, "stats": true, "max_logit": true})");
  const ProblemInputs inputs = test::ragged_inputs(problem);
  DenseModifier modifier;
  modifier.keep = [](Index b, Index, Index q, Index kv) {
    constexpr Index kQ[] = {4, 0, 5}, kKv[] = {3, 0, 7};
    return kv <= q + kKv[b] - kQ[b];
  };
  test::expect_ragged(problem, test::run_calls(problem, inputs, "reference"),
                      test::ragged_result(problem, inputs, test::within_sequences(problem, modifier)));
  test::expect_backends_conform(problem, inputs);
}

/// Lengths beside offsets leave gaps between the sequences: their rows are written, as rows without a key.
TEST(Ragged, LengthsLeaveGapsBetweenSequences) {
  AttentionProblem problem = test::ragged_problem(true, true);
  problem.lengths = {true, true};
  ProblemInputs inputs = test::ragged_inputs(problem);
  test::set_operand(problem, inputs, "lengths_q", {2, 0, 5});
  test::set_operand(problem, inputs, "lengths_kv", {3, 0, 4});
  DenseModifier modifier;
  modifier.keep = [](Index b, Index, Index q, Index kv) {
    constexpr Index kQ[] = {2, 0, 5}, kKv[] = {3, 0, 4};
    return q < kQ[b] && kv < kKv[b];
  };
  test::expect_ragged(problem, test::run_calls(problem, inputs, "reference"),
                      test::ragged_result(problem, inputs, test::within_sequences(problem, modifier)));
  test::expect_backends_conform(problem, inputs);
}

/// Several tiles of keys, blocks of queries and threads; operands by query and by key with gradients, which are summed
/// over sequences of unequal lengths.
TEST(Ragged, OfManyTilesConformsWithGradientsOfOperands) {
  AttentionProblem problem = test::problem_for(
      Program::parse("operand by_q: f32 [q_idx]\noperand by_k: f32 [b, kv_idx]\noperand sinks: f32 [h]\n"
                     "value = score * by_q + by_k * sinks"),
      [] {
        AttentionProblem sizes;
        sizes.batch = 4;
        sizes.heads_q = 4;
        sizes.heads_kv = 2;
        sizes.seq_q = 150;
        sizes.seq_kv = 600;
        sizes.dim_qk = sizes.dim_v = 64;
        return sizes;
      }());
  problem.tokens_q = 301;
  problem.tokens_kv = 1107;
  problem.q.layout = problem.o.layout = problem.k.layout = problem.v.layout = Layout::kTHD;
  problem.sink = Sink::kLearned;
  problem.backward = problem.stats = true;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    problem.dtype = dtype;
    CheckOptions options;
    options.compile.backend = "cpu";
    options.compile.threads = 3;
    const CheckReport report = check(problem, options);
    EXPECT_TRUE(report.passed()) << test::describe(report);
  }
}

/// A shard has whole sequences. It may have some of their heads, and a part of each axis that is not varlen. The
/// program and dropout see the global indices of these.
TEST(Ragged, HeadsAndWhatIsNotRaggedMayBeAPart) {
  for (const auto& [of_q, of_kv] : std::vector<std::pair<bool, bool>>{{true, false}, {false, true}, {true, true}}) {
    for (const float probability : {0.0F, 0.3F}) {
      for (const char* program :
           {"value = score", "value = (0.5 + 0.25 * f32(h)) * score\nkeep = kv_idx <= q_idx + 2"}) {
        AttentionProblem problem = test::ragged_problem(of_q, of_kv);
        problem.program = Program::parse(program);
        problem.index_offsets = true;
        problem.dropout = probability;
        CallOptions call;
        call.offsets = {0, 2, of_q ? 0 : 3, of_kv ? 0 : 1};
        call.dropout_seed = 11;
        const IndexOffsets at = call.offsets;
        DenseModifier modifier;
        if (std::string(program).find("keep") != std::string::npos) {
          const auto factor = [at](Index h) { return 0.5 + 0.25 * static_cast<double>(h + at.head); };
          modifier.value = [factor](double s, Index, Index h, Index, Index) { return factor(h) * s; };
          modifier.slope = [factor](double, Index, Index h, Index, Index) { return factor(h); };
          modifier.keep = [at](Index, Index, Index q, Index kv) { return kv + at.key <= q + at.query + 2; };
        }
        const problem::DropoutMask mask(probability, call.dropout_seed, call.dropout_offset);
        if (probability > 0) {
          modifier.share = [&mask, at](Index b, Index h, Index q, Index kv) {
            return mask.keeps(b, h + at.head, q + at.query, kv + at.key) ? mask.factor() : 0;
          };
        }
        const ProblemInputs inputs = test::ragged_inputs(problem);
        test::expect_ragged(problem, test::run_calls(problem, inputs, "reference", call),
                            test::ragged_result(problem, inputs, test::within_sequences(problem, modifier)));
        test::expect_backends_conform(problem, inputs, call);
        // Negative control: without its head's offset the shard is another one, where something asks for the head.
        if (problem.program.nodes().size() == 1 && probability == 0) continue;
        const ProblemBuffers right = test::run_calls(problem, inputs, "cpu", call);
        call.offsets.head = 0;
        const ProblemBuffers wrong = test::run_calls(problem, inputs, "cpu", call);
        for (const char* name : {"o", "dq", "dk"}) {
          const auto bytes = [&](const ProblemBuffers& x) {
            return std::ranges::find(x.outputs(), name, &OutputTensor::name)->bytes;
          };
          EXPECT_NE(bytes(right), bytes(wrong)) << name;
        }
      }
    }
  }
}

TEST(Ragged, OffsetsThatTheHostCanReadMustBeOffsets) {
  const AttentionProblem problem = test::ragged_problem(true, true);
  const Attention attention = Attention::compile(problem);
  const auto refuses = [&](const char* name, const std::vector<double>& offsets, const char* message) {
    ProblemInputs inputs = test::ragged_inputs(problem);
    test::set_operand(problem, inputs, name, offsets);
    ProblemBuffers buffers(problem, buffers_of(inputs));
    test::expect_refusal(message, [&] { attention.forward(buffers.forward()); });
    for (const OutputTensor& output : buffers.outputs()) {
      EXPECT_TRUE(std::ranges::all_of(output.bytes, [](std::byte byte) { return byte == std::byte{0xff}; }));
    }
  };
  refuses("offsets_q", {1, 4, 4, 9}, "'offsets_q': expected offsets that begin at 0, found 1");
  refuses("offsets_q", {0, 5, 4, 9},
          "'offsets_q': expected offsets that do not descend, found 4 after 5 at the end of sequence 1");
  refuses("offsets_q", {0, 4, 4, 8}, "'offsets_q': expected a last offset of 9, the number of tokens, found 8");
  refuses("offsets_q", {0, 3, 3, 9},
          "'offsets_q': expected sequences of at most seq_q (5) tokens, found 6 in sequence 2");
  refuses("offsets_kv", {0, 8, 8, 10},
          "'offsets_kv': expected sequences of at most seq_kv (7) tokens, found 8 in sequence 0");
  CallOptions call;
  call.offsets.query = 3;
  const ProblemInputs inputs = test::ragged_inputs(problem);
  ProblemBuffers buffers(problem, buffers_of(inputs));
  test::expect_refusal("offsets.query: expected 0 in a problem with tokens_q, found 3",
                       [&] { attention.forward(buffers.forward(call)); });
}

TEST(RaggedNegativeControl, OffsetsThatAreOffByOneAreFound) {
  const AttentionProblem problem = test::ragged_problem(true, true);
  const compiler::CompiledProblem right = compiler::compile(problem);
  const ProblemInputs inputs = test::ragged_inputs(problem);
  const checking::Subject subject = test::reference_subject(right);
  EXPECT_TRUE(test::passes(right, subject, inputs));
  const std::vector<std::int32_t> queries{0, 5, 5, 9}, keys{0, 4, 4, 10};
  EXPECT_FALSE(test::passes(right, test::with_operand(subject, "offsets_q", queries), inputs));
  EXPECT_FALSE(test::passes(right, test::with_operand(subject, "offsets_kv", keys), inputs));
}

}  // namespace
}  // namespace scoremod
