// Rows of tokens that no sequence has: in device memory, offsets may begin behind the first token and end before the
// last. Each output is NaN before a call.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "backend/kernels/hopper/family.hpp"
#include "backend/kernels/portable/family.hpp"
#include "backend/kernels/split_kv/family.hpp"
#include "compiler/pipeline.hpp"
#include "problem/implied_operands.hpp"
#include "support/emulated_attention.hpp"
#include "support/tiled_call.hpp"

namespace scoremod::backend::kernels {
namespace {

using Offsets = std::vector<std::int32_t>;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
constexpr std::int64_t kTokensQ = 70, kTokensKv = 75;
/// Offsets of three sequences, of which one is empty, with tokens on both sides.
const Offsets kQueries{7, 29, 29, 61}, kKeys{5, 40, 44, 72};
/// The kernel finds no tokens outside of sequences.
const test::EmulatedLaunches::Fault kClearsNothing{"  return {first, end, first + tensor.count - end};",
                                                   "  return {first, end, 0};"};

using Change = std::function<void(AttentionProblem&)>;

checking::CheckCase ragged_case(const Change& change = {}) {
  checking::CheckCase test;
  AttentionProblem& p = test.problem;
  p.batch = 3;
  p.heads_q = 4;
  p.heads_kv = 2;
  p.seq_q = p.seq_kv = 40;
  p.tokens_q = kTokensQ;
  p.tokens_kv = kTokensKv;
  p.q = p.o = p.k = p.v = {Layout::kTHD, {}};
  p.dtype = DType::kBF16;
  p.stats = p.max_logit = p.backward = true;
  p.program = Program::parse("value = score\nkeep = kv_idx <= q_idx + 8");
  if (change) change(p);
  p = problem::with_implied_operands(std::move(p));
  return test;
}

void set(ProblemInputs& inputs, const char* name, const Offsets& offsets) {
  const auto found = std::ranges::find(inputs.operands, name, &OwnedOperand::name);
  if (found != inputs.operands.end())
    std::memcpy(found->bytes.data(), offsets.data(), offsets.size() * sizeof(std::int32_t));
}
ProblemInputs inputs_of(const checking::CheckCase& test, const Offsets& queries, const Offsets& keys) {
  ProblemInputs inputs = random_inputs(test.problem);
  set(inputs, problem::kOffsetsOfQueries, queries);
  set(inputs, problem::kOffsetsOfKeys, keys);
  return inputs;
}

/// Numbers of an output, of which so many in a row belong to a token.
struct Output {
  const char* name;
  const std::vector<double>&cleared, &as_before;
  std::int64_t width, tokens;
  const Offsets& offsets;
  double outside;
};

void expect_cleared(const Output& of) {
  SCOPED_TRACE(of.name);
  ASSERT_EQ(of.cleared.size(), of.as_before.size());
  std::int64_t wrong = 0, untouched = 0;
  for (std::size_t i = 0; i < of.cleared.size(); ++i) {
    const std::int64_t token = static_cast<std::int64_t>(i) / of.width % of.tokens;
    const bool inside = token >= of.offsets.front() && token < of.offsets.back();
    wrong += of.cleared[i] != (inside ? of.as_before[i] : of.outside);
    untouched += !inside && std::isnan(of.as_before[i]);
  }
  EXPECT_EQ(wrong, 0) << "of " << of.cleared.size();
  const auto tokens_outside = of.tokens - (of.offsets.back() - of.offsets.front());
  EXPECT_EQ(untouched, tokens_outside * static_cast<std::int64_t>(of.cleared.size()) / of.tokens)
      << "without the kernel, these stay as they were";
}

/// Compares with what a call writes if the kernel finds no tokens outside.
void expect_cleared(const checking::CheckCase& test, const test::ShapeOf& shape_of, const Offsets& queries = kQueries,
                    const Offsets& keys = kKeys) {
  const AttentionProblem& p = test.problem;
  const ProblemInputs inputs = inputs_of(test, queries, keys);
  const test::EmulatedOutputs cleared = test::emulated_outputs(test, inputs, shape_of);
  test::EmulatedFaults faults{.backward = kClearsNothing};
  if (p.tokens_q) faults.forward = kClearsNothing;
  const test::EmulatedOutputs before = test::emulated_outputs(test, inputs, shape_of, faults);
  EXPECT_EQ(cleared.damage.value_or(""), "");
  if (p.tokens_q) {
    expect_cleared({"o", cleared.o, before.o, p.dim_v, *p.tokens_q, queries, 0});
    for (const auto& [name, values, others] :
         {std::tuple("lse", &cleared.lse, &before.lse), {"max_logit", &cleared.max_logit, &before.max_logit}})
      expect_cleared({name, *values, *others, p.heads_q, *p.tokens_q, queries, kMinusInfinity});
    expect_cleared({"dq", cleared.dq, before.dq, p.dim_qk, *p.tokens_q, queries, 0});
  }
  if (p.tokens_kv) {
    expect_cleared({"dk", cleared.dk, before.dk, p.dim_qk, *p.tokens_kv, keys, 0});
    expect_cleared({"dv", cleared.dv, before.dv, p.dim_v, *p.tokens_kv, keys, 0});
  }
}

HopperShape hopper_shape(const AttentionProblem& problem, Direction direction) {
  return hopper_shapes(problem, direction).front();
}
HopperShape fused_shape(const AttentionProblem& problem, Direction direction) {
  return direction == Direction::kForward ? persistent_hopper_shape(problem, 3) : hopper_fused_shape(problem);
}

void dense_queries(AttentionProblem& p) {
  p.tokens_q.reset();
  p.q = p.o = {};
}
void dense_keys(AttentionProblem& p) {
  p.tokens_kv.reset();
  p.k = p.v = {};
}
void pages(AttentionProblem& p) {
  dense_keys(p);
  p.lengths.kv = true;
  p.paged = PagedKeys{16, 11, 3};
  p.backward = false;
}

struct OutsideCase {
  const char* name;
  test::ShapeOf shape_of;
  Change change;
};

class OutsideRows : public ::testing::TestWithParam<OutsideCase> {};

TEST_P(OutsideRows, AreCleared) { expect_cleared(ragged_case(GetParam().change), GetParam().shape_of); }
INSTANTIATE_TEST_SUITE_P(Cases, OutsideRows,
                         ::testing::Values(OutsideCase{"portable", portable_shape, {}},
                                           OutsideCase{"portable f16, o in f32", portable_shape,
                                                       [](AttentionProblem& p) {
                                                         p.dtype = DType::kF16;
                                                         p.dtype_o = DType::kF32;
                                                       }},
                                           OutsideCase{"portable f32, o in bf16", portable_shape,
                                                       [](AttentionProblem& p) {
                                                         p.dtype = DType::kF32;
                                                         p.dtype_o = DType::kBF16;
                                                       }},
                                           OutsideCase{"portable, o in the other half", portable_shape,
                                                       [](AttentionProblem& p) { p.dtype_o = DType::kF16; }},
                                           OutsideCase{"portable, rows that are not aligned", portable_shape,
                                                       [](AttentionProblem& p) { p.dim_qk = 33, p.dim_v = 45; }},
                                           OutsideCase{"portable, index offsets", portable_shape,
                                                       [](AttentionProblem& p) { p.index_offsets = true; }},
                                           OutsideCase{"portable, o in parts", portable_shape,
                                                       [](AttentionProblem& p) {
                                                         p.dim_v = 512;
                                                         p.backward = false;
                                                       }},
                                           OutsideCase{"portable, dense keys", portable_shape, dense_keys},
                                           OutsideCase{"portable, dense queries", portable_shape, dense_queries},
                                           OutsideCase{"portable, pages", portable_shape, pages},
                                           OutsideCase{"hopper", hopper_shape, {}},
                                           OutsideCase{"hopper, persistent and fused", fused_shape, {}}),
                         [](const auto& named) {
                           std::string name = named.param.name;
                           std::ranges::replace_if(
                               name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
                           return name;
                         });

DeviceProperties device() {
  DeviceProperties device;
  device.compute_capability = 90;
  device.multiprocessors = 6;
  device.shared_memory_per_block = 232448;
  return device;
}

/// The first of each kind of decode kernels.
std::vector<SplitKvShape> decode_shapes(const AttentionProblem& problem) {
  std::vector<SplitKvShape> shapes{split_kv_shapes(problem, device()).front(),
                                   persistent_split_kv_shapes(problem, device()).front()};
  const std::vector<SplitKvShape> hopper = hopper_split_kv_shapes(problem, device().multiprocessors);
  if (!hopper.empty()) shapes.push_back(hopper.front());
  return shapes;
}

TEST(OutsideRowsOfDecode, AreCleared) {
  for (const Change& change : {Change(), Change(pages)}) {
    const checking::CheckCase test = ragged_case([&](AttentionProblem& p) {
      if (change) change(p);
      p.seq_q = 5;
      p.tokens_q = 15;
      p.backward = false;
    });
    const std::vector<SplitKvShape> shapes = decode_shapes(test.problem);
    EXPECT_EQ(shapes.size(), 3U);
    for (const SplitKvShape& shape : shapes) {
      SCOPED_TRACE(tiled_variant(shape)->label({compiler::compile(test.problem), Direction::kForward, {}}));
      expect_cleared(test, [&](const AttentionProblem&, Direction) { return shape; }, {2, 4, 4, 9});
    }
  }
}

TEST(OutsideRowsOfNoSequence, AreCleared) {
  const checking::CheckCase test = ragged_case();
  const auto empty_at = [](std::int32_t token) { return Offsets(4, token); };
  for (const test::ShapeOf& shape_of : {test::ShapeOf(portable_shape), test::ShapeOf(fused_shape)}) {
    expect_cleared(test, shape_of, empty_at(33), empty_at(0));
    expect_cleared(test, shape_of, empty_at(0), empty_at(kTokensKv));
    expect_cleared(test, shape_of, {0, 40, 40, kTokensQ}, {0, 1, 40, kTokensKv});
  }
}

/// A warp then has several.
TEST(OutsideRowsOfManyTokens, AreCleared) {
  const checking::CheckCase test = ragged_case([](AttentionProblem& p) {
    p.heads_q = p.heads_kv = 1;
    p.seq_q = 1000;
    p.tokens_q = 3000;
    p.dim_qk = p.dim_v = 16;
    p.backward = false;
  });
  expect_cleared(test, portable_shape, {1501, 1502, 1510, 1511});
}

/// Nobody validates offsets in device memory. What sequences write stays, and each row is written. Some sequences are
/// longer than the longest length.
TEST(OutsideRowsOfWrongOffsets, CostNoSequenceItsOwn) {
  const checking::CheckCase test = ragged_case();
  constexpr std::int32_t kFar = 1 << 30;
  for (const Offsets& offsets :
       {Offsets{50, 20, 30, 60}, {-kFar, 30, 12, kFar}, {kFar, 10, 20, -kFar}, {0, 5, 30, 20}, {0, 2, 63, 70}}) {
    SCOPED_TRACE(offsets[1]);
    const ProblemInputs inputs = inputs_of(test, offsets, offsets);
    const test::EmulatedOutputs cleared = test::emulated_outputs(test, inputs, portable_shape);
    const test::EmulatedOutputs before =
        test::emulated_outputs(test, inputs, portable_shape, {.forward = kClearsNothing, .backward = kClearsNothing});
    EXPECT_EQ(cleared.damage.value_or(""), "");
    for (const auto member : {&test::EmulatedOutputs::o, &test::EmulatedOutputs::lse, &test::EmulatedOutputs::dq,
                              &test::EmulatedOutputs::dk, &test::EmulatedOutputs::dv}) {
      const std::vector<double>&all = cleared.*member, &written = before.*member;
      for (std::size_t i = 0; i < all.size(); ++i)
        ASSERT_TRUE(std::isnan(written[i]) ? !std::isnan(all[i]) : all[i] == written[i]) << i;
    }
  }
}

TEST(OutsideRowsKernel, IsOfVarlenOutputsAlone) {
  const auto has_kernel = [](const Change& change, Direction direction) {
    const compiler::CompiledProblem compiled = compiler::compile(ragged_case(change).problem);
    const PortableShape shape = portable_shape(compiled.problem, direction);
    const std::string text = render_all(attention_source(compiled, direction, shape));
    const KernelCall call = test::attention_call(compiled, direction, shape);
    const bool in_text = text.find("attention_clear_outside") != std::string::npos;
    EXPECT_EQ(in_text, call.launches().front().kernel == "attention_clear_outside");
    return in_text;
  };
  const Change dense = [](AttentionProblem& p) {
    dense_queries(p);
    dense_keys(p);
  };
  EXPECT_FALSE(has_kernel(dense, Direction::kForward));
  EXPECT_FALSE(has_kernel(dense, Direction::kBackward));
  EXPECT_FALSE(has_kernel(dense_queries, Direction::kForward));
  EXPECT_TRUE(has_kernel(dense_queries, Direction::kBackward));
  EXPECT_TRUE(has_kernel({}, Direction::kForward));
}

}  // namespace
}  // namespace scoremod::backend::kernels
