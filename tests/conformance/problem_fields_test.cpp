// What a problem's fields ask for beside the program, against the dense formula, which knows nothing of programs: the
// oracle to its own rounding, the other backends by check(). Faults planted in each must be found.

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/attention.hpp"
#include "scoremod/problem_buffers.hpp"

#include "base/element.hpp"
#include "check/check_subject.hpp"
#include "compiler/pipeline.hpp"
#include "conformance/conformance.hpp"
#include "problem/dropout_mask.hpp"
#include "problem/strided_tensor.hpp"
#include "support/check_report.hpp"
#include "support/dense_attention.hpp"
#include "support/faulty_subject.hpp"
#include "support/problem_for.hpp"
#include "support/refusal.hpp"

namespace scoremod {
namespace {

using Index = std::int64_t;
using problem::TensorRole;
using test::DenseModifier;

/// Sizes that are all different, and dense in the order that the dense formula has.
AttentionProblem small_problem() {
  AttentionProblem problem = test::small_problem();
  problem.batch = 3;
  for (TensorLayout* tensor : {&problem.q, &problem.k, &problem.v, &problem.o}) tensor->layout = Layout::kBHSD;
  problem.backward = problem.stats = true;
  return problem;
}

/// Puts whole numbers or floats into an operand.
void set_operand(const AttentionProblem& problem, ProblemInputs& inputs, const std::string& name,
                 const std::vector<double>& values) {
  for (const TensorInfo& tensor : tensors_of(problem)) {
    if (tensor.name != name) continue;
    const auto operand = std::ranges::find(inputs.operands, name, &OwnedOperand::name);
    for (std::size_t i = 0; i < values.size(); ++i)
      store_element(operand->bytes.data(), tensor.dtype, static_cast<Index>(i), values[i]);
  }
}

std::vector<double> tensor_values(const ProblemBuffers& buffers, const std::string& name) {
  const auto found = std::ranges::find(buffers.outputs(), name, &OutputTensor::name);
  if (found == buffers.outputs().end()) return {};
  return test::to_dense(found->bytes, found->tensor.dtype, found->tensor.shape, found->tensor.strides);
}

/// Runs both directions on one backend.
ProblemBuffers run(const AttentionProblem& problem, const ProblemInputs& inputs, const std::string& backend,
                   const CallOptions& call = {}) {
  CompileOptions options;
  options.backend = backend;
  const Attention attention = Attention::compile(problem, options);
  ProblemBuffers buffers(problem, buffers_of(inputs));
  attention.forward(buffers.forward(call));
  attention.backward(buffers.backward(call));
  return buffers;
}

test::DenseResult dense(const AttentionProblem& problem, const ProblemInputs& inputs, const DenseModifier& modifier) {
  const auto read = [&](TensorRole role, const std::vector<std::byte>& bytes) {
    const problem::StridedTensor tensor = problem::tensor_of("", problem, role);
    return test::to_dense(bytes, problem.dtype, tensor.shape, tensor.strides);
  };
  return test::dense_attention(problem,
                               {read(TensorRole::kQ, inputs.q), read(TensorRole::kK, inputs.k),
                                read(TensorRole::kV, inputs.v), read(TensorRole::kO, inputs.d_o)},
                               modifier);
}

void expect_near(const char* name, const std::vector<double>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size()) << name;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (std::isinf(expected[i])) {
      ASSERT_EQ(found[i], expected[i]) << name << " " << i;
      continue;
    }
    // The one rounding of the store, and float64's own rounding in another order.
    ASSERT_NEAR(found[i], expected[i], 0x1p-24 * std::abs(expected[i]) + 1e-12) << name << " " << i;
  }
}

void expect_same(const ProblemBuffers& found, const test::DenseResult& expected) {
  expect_near("o", tensor_values(found, "o"), expected.o);
  expect_near("lse", tensor_values(found, "lse"), expected.lse);
  expect_near("dq", tensor_values(found, "dq"), expected.dq);
  expect_near("dk", tensor_values(found, "dk"), expected.dk);
  expect_near("dv", tensor_values(found, "dv"), expected.dv);
  expect_near("d_sink", tensor_values(found, "d_sink"), expected.d_sink);
  if (const std::vector<double> found_max = tensor_values(found, "max_logit"); !found_max.empty())
    expect_near("max_logit", found_max, expected.max_logit);
}

/// Holds every backend of the host to the oracle on these inputs.
void expect_backends_conform(const AttentionProblem& problem, const ProblemInputs& inputs,
                             const CallOptions& call = {}) {
  for (const std::string& backend : test::tested_backends()) {
    CheckOptions options;
    options.compile.backend = backend;
    options.inputs = inputs;
    options.call = call;
    const CheckReport report = check(problem, options);
    EXPECT_TRUE(report.passed()) << test::describe(report);
  }
}

const std::vector<double> kLengthsQ{5, 0, 3}, kLengthsKv{0, 7, 4};

AttentionProblem with_lengths(bool q, bool kv) {
  AttentionProblem problem = small_problem();
  problem.lengths = {q, kv};
  return problem;
}

ProblemInputs lengths_inputs(const AttentionProblem& problem, const std::vector<double>& q,
                             const std::vector<double>& kv) {
  ProblemInputs inputs = random_inputs(problem);
  if (problem.lengths.q) set_operand(problem, inputs, "lengths_q", q);
  if (problem.lengths.kv) set_operand(problem, inputs, "lengths_kv", kv);
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
      expect_same(run(problem, inputs, "reference"), dense(problem, inputs, modifier));
      expect_backends_conform(problem, inputs);
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
  expect_same(run(problem, inputs, "reference"), dense(problem, inputs, modifier));
  expect_backends_conform(problem, inputs);
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
    const std::vector<double> lse = tensor_values(buffers, "lse"), expected = dense(whole, inputs, modifier).lse;
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

/// A checker that misses what these plant would make the tests above worthless.
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

const std::vector<double> kSinks{0.5, -3, 6, 0};

TEST(Sink, IsInTheSumsOfItsHead) {
  for (const Sink sink : {Sink::kOffByOne, Sink::kLearned}) {
    AttentionProblem problem = small_problem();
    problem.sink = sink;
    problem.program = Program::parse("value = 2.0 * score\nkeep = kv_idx < q_idx");  // row 0 has no key
    ProblemInputs inputs = random_inputs(problem);
    DenseModifier modifier;
    modifier.value = [](double s, Index, Index, Index, Index) { return 2 * s; };
    modifier.slope = [](double, Index, Index, Index, Index) { return 2.0; };
    modifier.keep = [](Index, Index, Index q, Index kv) { return kv < q; };
    modifier.sink = [&](Index h) { return sink == Sink::kLearned ? kSinks[static_cast<std::size_t>(h)] : 0.0; };
    set_operand(problem, inputs, "sink", kSinks);
    test::DenseResult expected = dense(problem, inputs, modifier);
    if (sink == Sink::kOffByOne) expected.d_sink.clear();
    const ProblemBuffers found = run(problem, inputs, "reference");
    expect_same(found, expected);
    EXPECT_EQ(tensor_values(found, "lse")[0], sink == Sink::kLearned ? kSinks[0] : 0);
    EXPECT_EQ(tensor_values(found, "o")[0], 0);
    expect_backends_conform(problem, inputs);
  }
}

/// Far above and below the scores, -inf, which is none, and NaN and inf, which reach every row.
TEST(Sink, MayBeAnyNumber) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double value : {300.0, -300.0, 1e9, -kInfinity, kInfinity, std::nan("")}) {
    for (const char* program : {"value = score", "value = score - 500.0", "value = score\nkeep = kv_idx + 3 < q_idx"}) {
      AttentionProblem problem = small_problem();
      problem.sink = Sink::kLearned;
      problem.program = Program::parse(program);
      ProblemInputs inputs = random_inputs(problem);
      set_operand(problem, inputs, "sink", {value, 0.25, value, value});
      SCOPED_TRACE(concat(value, " ", program));
      expect_backends_conform(problem, inputs);
    }
  }
}

TEST(Sink, OfMinusInfinityIsNone) {
  AttentionProblem problem = small_problem();
  problem.program = Program::parse("value = score\nkeep = kv_idx < q_idx");
  const ProblemBuffers without = run(problem, random_inputs(problem), "cpu");
  problem.sink = Sink::kLearned;
  ProblemInputs inputs = random_inputs(problem);
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  set_operand(problem, inputs, "sink", {kNone, kNone, kNone, kNone});
  const ProblemBuffers with = run(problem, inputs, "cpu");
  for (const char* name : {"o", "lse", "dq", "dk", "dv"})
    EXPECT_EQ(tensor_values(with, name), tensor_values(without, name)) << name;
  EXPECT_EQ(tensor_values(with, "d_sink"), (std::vector<double>{0, 0, 0, 0}));
}

TEST(SinkNegativeControl, AnIgnoredSinkIsFound) {
  AttentionProblem problem = small_problem();
  problem.sink = Sink::kLearned;
  const compiler::CompiledProblem right = compiler::compile(problem);
  compiler::CompiledProblem faulty = right;
  faulty.problem.sink = Sink::kNone;
  ProblemInputs inputs = random_inputs(problem);
  const auto wrong = [&](const compiler::CompiledProblem& subject) {
    std::vector<std::string> names;
    for (const OutputCheck& output :
         checking::check_subject(right, test::reference_subject(subject), inputs, {}).outputs) {
      if (!output.passed()) names.push_back(output.name);
    }
    return names;
  };
  EXPECT_EQ(wrong(right), std::vector<std::string>{});
  EXPECT_EQ(wrong(faulty), (std::vector<std::string>{"o", "lse", "dq", "dk", "dv", "d_sink"}));
  // Off by one for a learned one.
  faulty.problem.sink = Sink::kOffByOne;
  EXPECT_EQ(wrong(faulty), (std::vector<std::string>{"o", "lse", "dq", "dk", "dv", "d_sink"}));
}

CallOptions dropout_call() {
  CallOptions call;
  call.dropout_seed = 0x1234'5678'9abc'def0;
  call.dropout_offset = 77;
  return call;
}

AttentionProblem with_dropout(float probability) {
  AttentionProblem problem = small_problem();
  problem.program = Program::parse("value = 2.0 * score\nkeep = kv_idx < q_idx + 3");
  problem.dropout = probability;
  return problem;
}

bool same_outputs(const ProblemBuffers& x, const ProblemBuffers& y) {
  return std::ranges::equal(x.outputs(), y.outputs(), {}, &OutputTensor::bytes, &OutputTensor::bytes);
}

TEST(Surrogate, IsTheValueForwardAndTheOtherBackward) {
  AttentionProblem problem = small_problem();
  problem.program = Program::parse(
      "operand x: f32 [h]\nvalue = surrogate(round(score * 2.0) * x, score * 3.0)\nkeep = kv_idx < q_idx + 3");
  problem.operands = {{"x", DType::kF32, {problem.heads_q}, {}}};
  const ProblemInputs inputs = random_inputs(problem);
  std::vector<double> x;
  for (Index h = 0; h < problem.heads_q; ++h)
    x.push_back(load_element<double>(inputs.operands[0].bytes.data(), DType::kF32, h));
  DenseModifier modifier;
  modifier.value = [&](double s, Index, Index h, Index, Index) {
    return std::nearbyint(2 * s) * x[static_cast<std::size_t>(h)];
  };
  modifier.slope = [](double, Index, Index, Index, Index) { return 3.0; };
  modifier.keep = [](Index, Index, Index q, Index kv) { return kv < q + 3; };
  const ProblemBuffers found = run(problem, inputs, "reference");
  expect_same(found, dense(problem, inputs, modifier));
  for (const double gradient : tensor_values(found, "d_x")) EXPECT_EQ(gradient, 0);
  expect_backends_conform(problem, inputs, {});
}

/// The rows of 'dropout_keys' that mean what a seed and an offset do.
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
    const ProblemBuffers expected = run(plain, random_inputs(plain), backend, call);
    ProblemInputs inputs = random_inputs(keyed);
    std::vector<double> keys = keys_of(keyed, call);
    set_operand(keyed, inputs, "dropout_keys", keys);
    EXPECT_TRUE(same_outputs(run(keyed, inputs, backend), expected)) << backend;
    // Each batch has its own row: the second as another one has other weights.
    keys[6] = 2;
    set_operand(keyed, inputs, "dropout_keys", keys);
    EXPECT_FALSE(same_outputs(run(keyed, inputs, backend), expected)) << backend;
  }
  expect_backends_conform(keyed, random_inputs(keyed), call);
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
      expect_same(run(problem, inputs, "reference", call), dense(problem, inputs, modifier));
      expect_backends_conform(problem, inputs, call);
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
    CallOptions call = dropout_call();
    call.offsets = {1, 2, 3, 5};
    expect_backends_conform(problem, random_inputs(problem), call);
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
  // Heads 2 and 3 of the whole, which share key head 1. The order is BHSD.
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
  const std::vector<double> first = tensor_values(run(problem, inputs, "cpu", call), "o");
  EXPECT_EQ(tensor_values(run(problem, inputs, "cpu", call), "o"), first);
  call.dropout_seed += 1;
  EXPECT_NE(tensor_values(run(problem, inputs, "cpu", call), "o"), first);
  call.dropout_seed -= 1;
  call.dropout_offset += std::uint64_t{1} << 32;
  EXPECT_NE(tensor_values(run(problem, inputs, "cpu", call), "o"), first);
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

TEST(MaxLogit, IsTheLargestKeptModifiedScore) {
  for (const Sink sink : {Sink::kNone, Sink::kOffByOne}) {
    AttentionProblem problem = small_problem();
    problem.program = Program::parse("value = score - 1.5\nkeep = kv_idx < q_idx");
    problem.sink = sink;
    problem.max_logit = true;
    const ProblemInputs inputs = random_inputs(problem);
    DenseModifier modifier;
    modifier.value = [](double s, Index, Index, Index, Index) { return s - 1.5; };
    modifier.keep = [](Index, Index, Index q, Index kv) { return kv < q; };
    if (sink == Sink::kOffByOne) modifier.sink = [](Index) { return 0.0; };
    test::DenseResult expected = dense(problem, inputs, modifier);
    expected.d_sink.clear();
    const ProblemBuffers found = run(problem, inputs, "reference");
    ASSERT_EQ(tensor_values(found, "max_logit").size(), expected.max_logit.size());
    expect_same(found, expected);
    EXPECT_TRUE(std::isinf(tensor_values(found, "max_logit")[0]));
    expect_backends_conform(problem, inputs);
  }
}

TEST(MaxLogit, MayBeInfinityOrNan) {
  for (const char* value :
       {"log(score)", "1.0 / f32(kv_idx - 2)", "score + 1.0 / f32(kv_idx - 2) + log(f32(3 - kv_idx))",
        "select(kv_idx == 2, 0.0 / 0.0, score)"}) {
    AttentionProblem problem = small_problem();
    problem.program = Program::parse(std::string("value = ") + value);
    problem.max_logit = true;
    problem.backward = false;
    SCOPED_TRACE(value);
    expect_backends_conform(problem, random_inputs(problem));
  }
}

TEST(MaxLogit, IsGivenWhereItIsAskedFor) {
  AttentionProblem problem = small_problem();
  const ProblemInputs inputs = random_inputs(problem);
  std::vector<float> rows(60);
  ProblemBuffers buffers(problem, buffers_of(inputs));
  ForwardArgs args = buffers.forward();
  args.max_logit = {rows.data(), rows.size() * sizeof(float)};
  test::expect_refusal("'max_logit' is given, which the problem does not ask for",
                       [&] { Attention::compile(problem).forward(args); });
  problem.max_logit = true;
  args.max_logit = {};
  test::expect_refusal("'max_logit' is missing", [&] { Attention::compile(problem).forward(args); });
  args.max_logit = {rows.data(), rows.size() * sizeof(float) - 1};
  test::expect_refusal("'max_logit' is too small", [&] { Attention::compile(problem).forward(args); });
}

TEST(MaxLogitNegativeControl, AnotherKeysIsFound) {
  AttentionProblem problem = small_problem();
  problem.max_logit = true;
  const compiler::CompiledProblem right = compiler::compile(problem);
  const ProblemInputs inputs = random_inputs(problem);
  const checking::Subject subject = test::reference_subject(right);
  EXPECT_TRUE(checking::check_subject(right, subject, inputs, {}).passed());
  const auto as_lse = [](const ForwardArgs& args) {
    std::copy_n(static_cast<const float*>(args.lse.data), 60, static_cast<float*>(args.max_logit.data));
  };
  const CheckReport report = checking::check_subject(right, test::after_forward(subject, as_lse), inputs, {});
  EXPECT_FALSE(test::output(report, "max_logit").passed());
}

}  // namespace
}  // namespace scoremod
