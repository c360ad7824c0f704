// Ragged and paged tensors, gradients that lie otherwise than their tensors, and an output of another dtype: the oracle
// against the dense formula, which knows of no place but its own dense one, the other backends by check(). Faults
// planted in each must be found.

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
using test::DenseModifier;

/// Whole numbers into an operand.
void set_operand(ProblemInputs& inputs, const std::string& name, const std::vector<double>& values) {
  const auto operand = std::ranges::find(inputs.operands, name, &OwnedOperand::name);
  ASSERT_NE(operand, inputs.operands.end()) << name;
  for (std::size_t i = 0; i < values.size(); ++i)
    store_element(operand->bytes.data(), DType::kI32, static_cast<Index>(i), values[i]);
}

/// Three sequences of at most 5 queries and 7 keys, the second of each kind empty.
const std::vector<double> kOffsetsQ{0, 4, 4, 9}, kOffsetsKv{0, 3, 3, 10};

AttentionProblem ragged_problem(bool q, bool kv) {
  AttentionProblem problem = test::small_problem();
  problem.batch = 3;
  for (TensorLayout* tensor : {&problem.q, &problem.k, &problem.v, &problem.o}) tensor->layout = Layout::kBHSD;
  if (q) problem.tokens_q = 9;
  if (kv) problem.tokens_kv = 10;
  if (q) problem.q.layout = problem.o.layout = Layout::kTHD;
  if (kv) problem.k.layout = problem.v.layout = Layout::kTHD;
  problem.backward = problem.stats = problem.max_logit = true;
  return problem;
}

ProblemInputs ragged_inputs(const AttentionProblem& problem) {
  ProblemInputs inputs = random_inputs(problem);
  if (problem.tokens_q) set_operand(inputs, "offsets_q", kOffsetsQ);
  if (problem.tokens_kv) set_operand(inputs, "offsets_kv", kOffsetsKv);
  return inputs;
}

/// A tensor's place, said once more: rows of [tokens, heads, dim] by the offsets, or dense [batch, heads, sequence,
/// dim].
struct Place {
  std::vector<double> offsets;  ///< empty: dense
  Index batch, heads, sequence, dim;

  /// -1 where there is no row.
  Index row(Index b, Index h, Index i) const {
    if (offsets.empty()) return ((b * heads + h) * sequence + i) * dim;
    const auto first = static_cast<Index>(offsets[static_cast<std::size_t>(b)]);
    const auto end = static_cast<Index>(offsets[static_cast<std::size_t>(b) + 1]);
    return first + i < end ? ((first + i) * heads + h) * dim : -1;
  }

  std::vector<double> dense(const std::vector<std::byte>& bytes, DType dtype) const {
    std::vector<double> values;
    for (Index n = 0; n < batch * heads * sequence; ++n) {
      const Index at = row(n / sequence / heads, n / sequence % heads, n % sequence);
      for (Index d = 0; d < dim; ++d) values.push_back(at < 0 ? 0 : load_element<double>(bytes.data(), dtype, at + d));
    }
    return values;
  }
};

Place query_place(const AttentionProblem& p, Index dim) {
  return {p.tokens_q ? kOffsetsQ : std::vector<double>(), p.batch, p.heads_q, p.seq_q, dim};
}
Place key_place(const AttentionProblem& p, Index dim) {
  return {p.tokens_kv ? kOffsetsKv : std::vector<double>(), p.batch, p.heads_kv, p.seq_kv, dim};
}

test::DenseResult dense(const AttentionProblem& p, const ProblemInputs& inputs, const DenseModifier& modifier) {
  return test::dense_attention(
      p,
      {query_place(p, p.dim_qk).dense(inputs.q, p.dtype), key_place(p, p.dim_qk).dense(inputs.k, p.dtype),
       key_place(p, p.dim_v).dense(inputs.v, p.dtype), query_place(p, p.dim_v).dense(inputs.d_o, p.dtype)},
      modifier);
}

DenseModifier within_sequences(const AttentionProblem& problem, DenseModifier modifier = {}) {
  const auto length = [](const std::vector<double>& offsets, Index b) {
    const auto at = static_cast<std::size_t>(b);
    return static_cast<Index>(offsets[at + 1] - offsets[at]);
  };
  const auto keep = modifier.keep;
  modifier.keep = [=, ragged_q = problem.tokens_q.has_value(), ragged_kv = problem.tokens_kv.has_value()](
                      Index b, Index h, Index q, Index kv) {
    return (!ragged_q || q < length(kOffsetsQ, b)) && (!ragged_kv || kv < length(kOffsetsKv, b)) && keep(b, h, q, kv);
  };
  return modifier;
}

ProblemBuffers run(const AttentionProblem& problem, const ProblemInputs& inputs, const std::string& backend,
                   const CallOptions& call = {}) {
  CompileOptions options;
  options.backend = backend;
  const Attention attention = Attention::compile(problem, options);
  ProblemBuffers buffers(problem, buffers_of(inputs));
  attention.forward(buffers.forward(call));
  if (problem.backward) attention.backward(buffers.backward(call));
  return buffers;
}

/// Of rows that are there: the one rounding of the store, and float64's own in another order.
void expect_rows(const ProblemBuffers& found, const char* name, const Place& place,
                 const std::vector<double>& expected) {
  const auto output = std::ranges::find(found.outputs(), name, &OutputTensor::name);
  ASSERT_NE(output, found.outputs().end()) << name;
  const std::vector<double> values = place.dense(output->bytes, DType::kF32);
  ASSERT_EQ(values.size(), expected.size()) << name;
  for (Index n = 0; n < place.batch * place.heads * place.sequence; ++n) {
    if (place.row(n / place.sequence / place.heads, n / place.sequence % place.heads, n % place.sequence) < 0) continue;
    for (Index d = 0; d < place.dim; ++d) {
      const auto at = static_cast<std::size_t>(n * place.dim + d);
      if (std::isinf(expected[at])) {
        ASSERT_EQ(values[at], expected[at]) << name << " " << at;
      } else {
        ASSERT_NEAR(values[at], expected[at], 0x1p-24 * std::abs(expected[at]) + 1e-12) << name << " " << at;
      }
    }
  }
}

void expect_same(const AttentionProblem& p, const ProblemBuffers& found, const test::DenseResult& expected) {
  expect_rows(found, "o", query_place(p, p.dim_v), expected.o);
  expect_rows(found, "lse", query_place(p, 1), expected.lse);
  expect_rows(found, "max_logit", query_place(p, 1), expected.max_logit);
  expect_rows(found, "dq", query_place(p, p.dim_qk), expected.dq);
  expect_rows(found, "dk", key_place(p, p.dim_qk), expected.dk);
  expect_rows(found, "dv", key_place(p, p.dim_v), expected.dv);
}

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

TEST(Ragged, SequencesAttendToThemselvesAlone) {
  for (const auto& [of_q, of_kv] : std::vector<std::pair<bool, bool>>{{true, false}, {false, true}, {true, true}}) {
    for (const char* program : {"value = score", "value = tanh(score)\nkeep = kv_idx <= q_idx + 2"}) {
      AttentionProblem problem = ragged_problem(of_q, of_kv);
      problem.program = Program::parse(program);
      const bool capped = std::string(program).find("tanh") != std::string::npos;
      const ProblemInputs inputs = ragged_inputs(problem);
      DenseModifier modifier;
      if (capped) {
        modifier.keep = [](Index, Index, Index q, Index kv) { return kv <= q + 2; };
        modifier.value = [](double s, Index, Index, Index, Index) { return std::tanh(s); };
        modifier.slope = [](double s, Index, Index, Index, Index) { return 1 - std::tanh(s) * std::tanh(s); };
      }
      expect_same(problem, run(problem, inputs, "reference"),
                  dense(problem, inputs, within_sequences(problem, modifier)));
      expect_backends_conform(problem, inputs);
    }
  }
}

TEST(Ragged, TheBottomRightMaskIsAlignedWithEachSequencesEnd) {
  AttentionProblem problem = parse_problem(R"({
    "batch": 3, "heads_q": 4, "heads_kv": 2, "seq_q": 5, "seq_kv": 7, "dim_qk": 8, "dim_v": 6,
    "tokens_q": 9, "tokens_kv": 10, "program": {"mask_mod": ["causal_bottom_right"]},
    "backward": true, "stats": true, "max_logit": true})");
  const ProblemInputs inputs = ragged_inputs(problem);
  DenseModifier modifier;
  modifier.keep = [](Index b, Index, Index q, Index kv) {
    constexpr Index kQ[] = {4, 0, 5}, kKv[] = {3, 0, 7};
    return kv <= q + kKv[b] - kQ[b];
  };
  expect_same(problem, run(problem, inputs, "reference"), dense(problem, inputs, within_sequences(problem, modifier)));
  expect_backends_conform(problem, inputs);
}

/// Lengths beside offsets leave gaps between the sequences: their rows are written, as rows without a key.
TEST(Ragged, LengthsLeaveGapsBetweenSequences) {
  AttentionProblem problem = ragged_problem(true, true);
  problem.lengths = {true, true};
  ProblemInputs inputs = ragged_inputs(problem);
  set_operand(inputs, "lengths_q", {2, 0, 5});
  set_operand(inputs, "lengths_kv", {3, 0, 4});
  DenseModifier modifier;
  modifier.keep = [](Index b, Index, Index q, Index kv) {
    constexpr Index kQ[] = {2, 0, 5}, kKv[] = {3, 0, 4};
    return q < kQ[b] && kv < kKv[b];
  };
  expect_same(problem, run(problem, inputs, "reference"), dense(problem, inputs, within_sequences(problem, modifier)));
  expect_backends_conform(problem, inputs);
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

/// A shard has whole sequences, of which it may have some heads, and along what is no sequence of tokens a part: the
/// program and dropout see these indices from their offsets on.
TEST(Ragged, HeadsAndWhatIsNotRaggedMayBeAPart) {
  for (const auto& [of_q, of_kv] : std::vector<std::pair<bool, bool>>{{true, false}, {false, true}, {true, true}}) {
    for (const float probability : {0.0F, 0.3F}) {
      for (const char* program :
           {"value = score", "value = (0.5 + 0.25 * f32(h)) * score\nkeep = kv_idx <= q_idx + 2"}) {
        AttentionProblem problem = ragged_problem(of_q, of_kv);
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
        const ProblemInputs inputs = ragged_inputs(problem);
        expect_same(problem, run(problem, inputs, "reference", call),
                    dense(problem, inputs, within_sequences(problem, modifier)));
        expect_backends_conform(problem, inputs, call);
        // Negative control: without its head's offset the shard is another one, where something asks for the head.
        if (problem.program.nodes().size() == 1 && probability == 0) continue;
        const ProblemBuffers right = run(problem, inputs, "cpu", call);
        call.offsets.head = 0;
        const ProblemBuffers wrong = run(problem, inputs, "cpu", call);
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
  const AttentionProblem problem = ragged_problem(true, true);
  const Attention attention = Attention::compile(problem);
  const auto refuses = [&](const char* name, const std::vector<double>& offsets, const char* message) {
    ProblemInputs inputs = ragged_inputs(problem);
    set_operand(inputs, name, offsets);
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
  const ProblemInputs inputs = ragged_inputs(problem);
  ProblemBuffers buffers(problem, buffers_of(inputs));
  test::expect_refusal("offsets.query: expected 0 in a problem with tokens_q, found 3",
                       [&] { attention.forward(buffers.forward(call)); });
}

bool passes(const compiler::CompiledProblem& right, const checking::Subject& subject, const ProblemInputs& inputs) {
  CheckOptions options;
  options.inputs = inputs;
  return checking::check_subject(right, subject, inputs, options).passed();
}

/// A subject that is given other data for one operand.
checking::Subject with_operand(const checking::Subject& subject, const std::string& name,
                               const std::vector<std::int32_t>& data) {
  checking::Subject faulty = subject;
  const auto replace = [name, &data](std::vector<OperandBuffer>& operands) {
    const auto operand = std::ranges::find(operands, name, &OperandBuffer::name);
    operand->buffer = {data.data(), data.size() * sizeof(std::int32_t)};
  };
  faulty.forward = [=](ForwardArgs args, Buffer workspace) {
    replace(args.operands);
    subject.forward(args, workspace);
  };
  faulty.backward = [=](BackwardArgs args, Buffer workspace) {
    replace(args.operands);
    subject.backward(args, workspace);
  };
  return faulty;
}

TEST(RaggedNegativeControl, OffsetsThatAreOffByOneAreFound) {
  const AttentionProblem problem = ragged_problem(true, true);
  const compiler::CompiledProblem right = compiler::compile(problem);
  const ProblemInputs inputs = ragged_inputs(problem);
  const checking::Subject subject = test::reference_subject(right);
  EXPECT_TRUE(passes(right, subject, inputs));
  const std::vector<std::int32_t> queries{0, 5, 5, 9}, keys{0, 4, 4, 10};
  EXPECT_FALSE(passes(right, with_operand(subject, "offsets_q", queries), inputs));
  EXPECT_FALSE(passes(right, with_operand(subject, "offsets_kv", keys), inputs));
}

/// Three sequences of up to 7 keys in blocks of 3; a pool of 11.
AttentionProblem paged_problem(Layout layout) {
  AttentionProblem problem = test::small_problem();
  problem.batch = 3;
  problem.q.layout = problem.o.layout = Layout::kBHSD;
  problem.k.layout = problem.v.layout = layout;
  problem.lengths.kv = problem.stats = problem.max_logit = true;
  problem.paged = PagedKeys{3, 11, 4};
  return problem;
}

const std::vector<double> kCached{7, 0, 4};
/// Blocks that no length reaches hold what no pool has.
const std::vector<double> kPagesK{9, 2, 5, -1, 77, -7, 0, 0, 10, 3, 99, -1},
    kPagesV{1, 8, 4, 50, 0, 0, 0, 0, 6, 7, -3, 11};

ProblemInputs paged_inputs(const AttentionProblem& problem) {
  ProblemInputs inputs = random_inputs(problem);
  set_operand(inputs, "lengths_kv", kCached);
  set_operand(inputs, "page_table_k", kPagesK);
  set_operand(inputs, "page_table_v", kPagesV);
  return inputs;
}

/// Keys or values as the dense formula has them: the pool is [blocks, 3, heads, dim] or [blocks, heads, 3, dim].
std::vector<double> gathered(const AttentionProblem& p, const std::vector<std::byte>& pool,
                             const std::vector<double>& pages, Index dim) {
  std::vector<double> values;
  for (Index b = 0; b < p.batch; ++b) {
    for (Index h = 0; h < p.heads_kv; ++h) {
      for (Index j = 0; j < p.seq_kv; ++j) {
        const bool there = j < static_cast<Index>(kCached[static_cast<std::size_t>(b)]);
        const Index block = there ? static_cast<Index>(pages[static_cast<std::size_t>(b * 4 + j / 3)]) : 0;
        const Index row =
            p.k.layout == Layout::kBSHD ? (block * 3 + j % 3) * p.heads_kv + h : (block * p.heads_kv + h) * 3 + j % 3;
        for (Index d = 0; d < dim; ++d)
          values.push_back(there ? load_element<double>(pool.data(), p.dtype, row * dim + d) : 0);
      }
    }
  }
  return values;
}

TEST(Paged, KeysAndValuesAreReadThroughTheirTables) {
  for (const Layout layout : {Layout::kBSHD, Layout::kBHSD}) {
    AttentionProblem problem = paged_problem(layout);
    problem.program = Program::parse("value = score\nkeep = kv_idx <= q_idx + 3");
    const ProblemInputs inputs = paged_inputs(problem);
    DenseModifier modifier;
    modifier.keep = [](Index b, Index, Index q, Index kv) {
      return kv <= q + 3 && kv < static_cast<Index>(kCached[static_cast<std::size_t>(b)]);
    };
    const Place q = query_place(problem, problem.dim_qk), o = query_place(problem, problem.dim_v);
    AttentionProblem dense_problem = problem;
    dense_problem.paged.reset();
    const test::DenseResult expected =
        test::dense_attention(dense_problem,
                              {q.dense(inputs.q, problem.dtype), gathered(problem, inputs.k, kPagesK, problem.dim_qk),
                               gathered(problem, inputs.v, kPagesV, problem.dim_v), o.dense(inputs.d_o, problem.dtype)},
                              modifier);
    const ProblemBuffers found = run(problem, inputs, "reference");
    expect_rows(found, "o", o, expected.o);
    expect_rows(found, "lse", query_place(problem, 1), expected.lse);
    expect_rows(found, "max_logit", query_place(problem, 1), expected.max_logit);
    expect_backends_conform(problem, inputs);
  }
}

/// As a server has them: queries of several requests one after the other, keys in blocks.
TEST(Paged, StandsBesideRaggedQueries) {
  AttentionProblem problem = paged_problem(Layout::kBSHD);
  problem.tokens_q = 9;
  problem.q.layout = problem.o.layout = Layout::kTHD;
  problem.program = Program::parse("value = score * 0.5");
  ProblemInputs inputs = paged_inputs(problem);
  set_operand(inputs, "offsets_q", kOffsetsQ);
  expect_backends_conform(problem, inputs);
}

TEST(Paged, TablesThatTheHostCanReadNameBlocksOfThePool) {
  const AttentionProblem problem = paged_problem(Layout::kBSHD);
  const Attention attention = Attention::compile(problem);
  for (const auto& [block, text] : {std::pair{11.0, "11"}, std::pair{-1.0, "-1"}}) {
    ProblemInputs inputs = paged_inputs(problem);
    std::vector<double> pages = kPagesV;
    pages[9] = block;
    set_operand(inputs, "page_table_v", pages);
    ProblemBuffers buffers(problem, buffers_of(inputs));
    test::expect_refusal(std::string("'page_table_v': expected blocks from 0 to 10, found ") + text +
                             " at [2, 1], which holds keys below the sequence's length of 4",
                         [&] { attention.forward(buffers.forward()); });
  }
}

TEST(PagedNegativeControl, SwappedPagesAndLengthsThatAreOffByOneAreFound) {
  const AttentionProblem problem = paged_problem(Layout::kBSHD);
  const compiler::CompiledProblem right = compiler::compile(problem);
  const ProblemInputs inputs = paged_inputs(problem);
  const checking::Subject subject = test::reference_subject(right);
  EXPECT_TRUE(passes(right, subject, inputs));
  std::vector<std::int32_t> pages(kPagesK.begin(), kPagesK.end());
  std::swap(pages[0], pages[1]);
  EXPECT_FALSE(passes(right, with_operand(subject, "page_table_k", pages), inputs));
  const std::vector<std::int32_t> shorter{6, 0, 4};
  EXPECT_FALSE(passes(right, with_operand(subject, "lengths_kv", shorter), inputs));
}

AttentionProblem with_gradient_layouts() {
  AttentionProblem problem = test::small_problem();
  problem.backward = problem.stats = true;
  problem.d_o = TensorLayout{Layout::kBHSD, Strides{0, 0, 6, 1}};  // one for all batches and heads
  problem.dq = TensorLayout{Layout::kBHSD, {}};
  problem.dk = TensorLayout{Layout::kSBHD, {}};
  problem.dv = TensorLayout{Layout::kBSHD, Strides{1000, 20, 100, 2}};
  return problem;
}

TEST(GradientLayouts, HoldTheSameGradients) {
  const AttentionProblem problem = with_gradient_layouts();
  const ProblemInputs inputs = random_inputs(problem);
  AttentionProblem plain = problem;
  plain.d_o.reset();
  plain.dq.reset();
  plain.dk.reset();
  plain.dv.reset();
  // The same upstream gradient, written out.
  ProblemInputs written = random_inputs(plain);
  written.q = inputs.q;
  written.k = inputs.k;
  written.v = inputs.v;
  problem::tensor_of("d_o", plain, problem::TensorRole::kDO).for_each_offset([&](Index number, Index offset) {
    const Index d = number % 6, i = number / 6 % 5;
    store_element(written.d_o.data(), DType::kF32, offset,
                  load_element<double>(inputs.d_o.data(), DType::kF32, i * 6 + d));
  });
  for (const std::string backend : {"reference", "cpu"}) {
    const ProblemBuffers found = run(problem, inputs, backend), expected = run(plain, written, backend);
    for (const OutputTensor& output : found.outputs()) {
      const auto other = std::ranges::find(expected.outputs(), output.name, &OutputTensor::name);
      if (!output.name.starts_with("d")) continue;
      using problem::TensorRole;
      const TensorRole role = output.name == "dq"   ? TensorRole::kDQ
                              : output.name == "dk" ? TensorRole::kDK
                                                    : TensorRole::kDV;
      const problem::StridedTensor here = problem::tensor_of("", problem, role),
                                   there = problem::tensor_of("", plain, role);
      EXPECT_EQ(test::to_dense(output.bytes, DType::kF32, here.shape, here.strides),
                test::to_dense(other->bytes, DType::kF32, there.shape, there.strides))
          << backend << output.name;
    }
  }
  expect_backends_conform(problem, inputs);
}

TEST(GradientLayoutsNegativeControl, AGradientInItsTensorsLayoutIsFound) {
  AttentionProblem problem = test::small_problem();
  problem.backward = problem.stats = true;
  const compiler::CompiledProblem as_tensors = compiler::compile(problem);
  problem.dq = TensorLayout{Layout::kBHSD, {}};
  const compiler::CompiledProblem right = compiler::compile(problem);
  const ProblemInputs inputs = random_inputs(problem);
  EXPECT_TRUE(passes(right, test::reference_subject(right), inputs));
  EXPECT_FALSE(passes(right, test::reference_subject(as_tensors), inputs));
}

TEST(OutputDtype, IsThatOfTheOutputAndItsGradient) {
  for (const auto& [dtype, dtype_o] : {std::pair{DType::kBF16, DType::kF32}, std::pair{DType::kF32, DType::kF16},
                                       std::pair{DType::kF16, DType::kBF16}}) {
    AttentionProblem problem = test::small_problem();
    problem.backward = problem.stats = true;
    problem.dtype = dtype;
    problem.dtype_o = dtype_o;
    expect_backends_conform(problem, random_inputs(problem));
  }
  // An output that is not rounded to 16 bits is nearer to the oracle than one that is.
  AttentionProblem problem = test::small_problem();
  problem.dtype = DType::kBF16;
  const auto error = [&] {
    CheckOptions options;
    options.compile.backend = "cpu";
    return check(problem, options).outputs.front().max.error;
  };
  const double rounded = error();
  problem.dtype_o = DType::kF32;
  EXPECT_LT(error(), rounded / 16);
}

}  // namespace
}  // namespace scoremod
