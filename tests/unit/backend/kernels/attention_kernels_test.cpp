// The attention kernels on a host, thread by thread, against the float64 oracle.

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <sys/mman.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/element.hpp"
#include "compiler/pipeline.hpp"
#include "problem/implied_operands.hpp"
#include "problem/strided_tensor.hpp"
#include "problem/tensor_view.hpp"
#include "support/attention_kernels_cases.hpp"
#include "support/check_report.hpp"
#include "support/emulated_attention.hpp"
#include "support/emulated_device.hpp"
#include "support/tiled_call.hpp"

namespace scoremod::backend::kernels {
namespace {

using Fault = test::EmulatedLaunches::Fault;

/// Without gradients of operands: these are other kernels'.
checking::CheckCase case_of(const std::string& name) {
  std::vector<checking::CheckCase> cases = test::attention_kernels_cases(true);
  checking::CheckCase test = std::move(
      cases.at(static_cast<std::size_t>(std::ranges::find(cases, name, &checking::CheckCase::name) - cases.begin())));
  for (OperandSpec& operand : test.problem.operands) operand.gradient = false;
  return test;
}

CheckReport check_of(const checking::CheckCase& test, const ProblemInputs& inputs, const Fault& forward_fault = {},
                     const Fault& backward_fault = {}) {
  return test::check_emulated(test, inputs, portable_shape, {forward_fault, backward_fault});
}

class AttentionKernels : public ::testing::TestWithParam<const char*> {};

TEST_P(AttentionKernels, AreRight) {
  const checking::CheckCase test = case_of(GetParam());
  SCOPED_TRACE(test.name);
  test::expect_right(check_of(test, random_inputs(test.problem)));
}

TEST_P(AttentionKernels, AreRightWithInfinitiesAndNan) {
  const checking::CheckCase test = case_of(GetParam());
  SCOPED_TRACE(test.name);
  test::expect_right(check_of(test, test::poisoned_inputs(test.problem, 0)));
}
INSTANTIATE_TEST_SUITE_P(Cases, AttentionKernels,
                         ::testing::Values("causal", "causal with offsets", "one query", "documents",
                                           "mask by the score", "infinite values", "wide heads", "unaligned rows",
                                           "dropout with one query", "dropout by keys", "differences by head",
                                           "differences of every kind", "differences, ragged", "causal f32",
                                           "documents f32", "one query f32", "mask by the score f32", "wide heads f32",
                                           "odd dims f32", "unaligned rows f32"));

/// A learned sink, dropout and the largest score; and those with odd offsets.
TEST(AttentionKernelFields, AreRight) {
  for (const char* const name :
       {"a learned sink, dropout and the largest score", "a sink of 0, dropout with odd offsets, scores as they are"}) {
    const checking::CheckCase test = case_of(name);
    SCOPED_TRACE(test.name);
    test::expect_right(check_of(test, random_inputs(test.problem)));
  }
}

/// The rows of its head have no key that counts, NaN included.
TEST(AttentionKernelFields, TakeASinkOfInfinity) {
  const checking::CheckCase test = case_of("a learned sink, dropout and the largest score");
  ProblemInputs inputs = random_inputs(test.problem);
  const auto sink = std::ranges::find(inputs.operands, "sink", &OwnedOperand::name);
  ASSERT_NE(sink, inputs.operands.end());
  store_element(sink->bytes.data(), DType::kF32, 0, std::numeric_limits<double>::infinity());
  test::expect_right(check_of(test, inputs));
  const problem::StridedTensor q = problem::tensor_of("q", test.problem, problem::TensorRole::kQ);
  q.for_each_offset([&](std::int64_t number, std::int64_t offset) {
    if (number / (test.problem.seq_q * test.problem.dim_qk) % test.problem.heads_q == 0)
      store_element(inputs.q.data(), q.dtype, offset, std::nan(""));
  });
  test::expect_right(check_of(test, inputs));
}

/// Tensors that are varlen or paged, and o and gradients with layouts of their own.
class AttentionKernelPlaces : public ::testing::TestWithParam<const char*> {};

TEST_P(AttentionKernelPlaces, AreRight) {
  const checking::CheckCase test = case_of(GetParam());
  test::expect_right(check_of(test, random_inputs(test.problem)));
}
TEST_P(AttentionKernelPlaces, AreRightWithInfinitiesAndNan) {
  const checking::CheckCase test = case_of(GetParam());
  test::expect_right(check_of(test, test::poisoned_inputs(test.problem, 0)));
}
INSTANTIATE_TEST_SUITE_P(Cases, AttentionKernelPlaces,
                         ::testing::Values("ragged", "ragged, many sequences", "ragged queries",
                                           "ragged keys with dropout", "ragged with a mask by the score", "paged",
                                           "paged by heads", "lengths", "o in f32", "o in f32, beside f16",
                                           "o in the other half", "gradients elsewhere",
                                           "a learned sink, dropout and the largest score f32", "ragged f32",
                                           "paged f32", "o in a half"));

/// f16 cannot hold these d_o, or only with few digits.
TEST(AttentionKernelOutputs, TakeGradientsThatHalvesDoNotHold) {
  const checking::CheckCase test = case_of("o in f32, beside f16");
  for (const double largest : {1e5, 1e-6}) {
    SCOPED_TRACE(largest);
    RandomInputOptions options;
    options.overrides = {{"d_o", {FillKind::kUniform, -largest, largest}}};
    test::expect_right(check_of(test, random_inputs(test.problem, options)));
  }
}

/// Bytes with memory before or behind them that may not be touched.
class GuardedBytes {
 public:
  GuardedBytes(std::size_t bytes, bool at_end) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t room = (bytes + page - 1) / page * page;
    size_ = room + 2 * page;
    first_ = static_cast<std::byte*>(mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(first_ + page, room, PROT_READ | PROT_WRITE);
    data_ = first_ + page + (at_end ? room - bytes : 0);
  }
  ~GuardedBytes() { munmap(first_, size_); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;
  template <class T = void>
  T* data() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte *first_ = nullptr, *data_ = nullptr;
  std::size_t size_ = 0;
};

/// An operand's number at an entry.
using Number = std::function<std::int32_t(const std::string& operand, std::size_t entry)>;

/// The number, and at every second entry another one of the other sign.
Number here_and_there(std::int32_t number) {
  return [=](const std::string&, std::size_t entry) { return entry % 2 == 0 ? -number / 3 : number; };
}

/// Whole sequences. Only every second page is a valid one.
Number half_of_the_blocks(const AttentionProblem& problem, std::int32_t number) {
  return [=, keys = static_cast<std::int32_t>(problem.seq_kv)](const std::string& operand, std::size_t entry) {
    return operand == problem::kLengthsOfKeys ? keys : entry % 2 == 0 ? 0 : number;
  };
}

/// Runs both directions of a problem whose operands all hold such numbers, as on a device, whose operands nobody
/// validates before the kernels.
void run_with(const AttentionProblem& problem, const Number& number, bool at_end, const Fault& fault = {}) {
  const compiler::CompiledProblem compiled = compiler::compile(problem);
  const AttentionProblem& p = compiled.problem;
  using problem::TensorRole;
  const auto tensor = [&](TensorRole role) {
    return std::make_unique<GuardedBytes>(problem::bytes_of(p, role), at_end);
  };
  const auto q = tensor(TensorRole::kQ), k = tensor(TensorRole::kK), v = tensor(TensorRole::kV),
             o = tensor(TensorRole::kO), lse = tensor(TensorRole::kLse), dq = tensor(TensorRole::kQ),
             dk = tensor(TensorRole::kK), dv = tensor(TensorRole::kV);
  std::vector<std::vector<std::int32_t>> numbers;
  std::vector<const void*> operands;
  for (std::uint32_t i = 0; i < p.program.operands().size(); ++i) {
    numbers.emplace_back(problem::bytes_of(problem::spec_of(p, i)) / sizeof(std::int32_t));
    for (std::size_t n = 0; n < numbers.back().size(); ++n) numbers.back()[n] = number(p.program.operands()[i].name, n);
  }
  for (const auto& each : numbers) operands.push_back(each.data());
  const auto run = [&](const test::EmulatedKernels& kernels, const auto& tensors) {
    const GuardedBytes workspace((kernels.kernels().workspace_bytes() + 15) / 16 * 16, at_end);
    kernels.run(
        kernels.kernels().arguments(tensors, {p.effective_scale(), {}, nullptr, 0, 0}, workspace.data<std::byte>()), 1);
  };
  run({compiled, Direction::kForward, portable_shape(p, Direction::kForward), fault},
      ForwardTensors{q->data(), k->data(), v->data(), operands, o->data(), lse->data<float>(), nullptr});
  if (!p.backward) return;
  run({compiled, Direction::kBackward, portable_shape(p, Direction::kBackward), fault},
      BackwardTensors{q->data(),
                      k->data(),
                      v->data(),
                      o->data(),
                      lse->data<float>(),
                      o->data(),
                      operands,
                      dq->data(),
                      dk->data(),
                      dv->data(),
                      {}});
}

TEST(AttentionKernelBounds, StayInsideTheirTensorsForAllRuntimeArguments) {
  for (const char* const name : {"ragged", "paged", "lengths"}) {
    SCOPED_TRACE(name);
    const AttentionProblem problem = case_of(name).problem;
    for (const std::int32_t number : {1'000'000, -2'000'000'000}) {
      for (const bool at_end : {false, true}) {
        run_with(problem, here_and_there(number), at_end);
        if (problem.paged) run_with(problem, half_of_the_blocks(problem, number), at_end);
      }
    }
  }
}

TEST(AttentionKernelBoundsDeathTest, ABoundThatIsMissingIsSeen) {
  const Fault none{"return x < least ? least : x > most ? most : x;", "return x;"};
  EXPECT_DEATH(run_with(case_of("ragged").problem, here_and_there(1'000'000), true, none), "");
  const AttentionProblem paged = case_of("paged").problem;
  EXPECT_DEATH(run_with(paged, half_of_the_blocks(paged, -2'000'000'000), true, none), "");
}

/// If no runtime argument decides the mask, the block mask is computed once.
TEST(AttentionKernelStates, AreFoundOnceWhereTheyAreTheSameInEveryCall) {
  checking::CheckCase test = case_of("mask by head");
  const auto kernels = [&] {
    const compiler::CompiledProblem compiled = compiler::compile(test.problem);
    return test::attention_call(compiled, Direction::kForward, portable_shape(test.problem, Direction::kForward));
  };
  EXPECT_TRUE(kernels().launches_once().empty()) << "a call's offsets move the mask";
  test.problem.index_offsets = false;
  ASSERT_FALSE(kernels().launches_once().empty()) << test.name;
  EXPECT_EQ(kernels().launches().size(), 1U);
  EXPECT_EQ(kernels().workspace_bytes(), 0U);
  const ProblemInputs inputs = random_inputs(test.problem);
  test::expect_right(check_of(test, inputs));
  const Fault empty{"!some ? kEmptyTile", "!all ? kEmptyTile"};
  EXPECT_FALSE(check_of(test, inputs, empty).passed()) << "tiles that are called empty wrongly";
  test = case_of("documents");
  test.problem.index_offsets = false;
  EXPECT_TRUE(kernels().launches_once().empty()) << "operands decide";
}

/// Nothing of a difference is evaluated beside the tiles: a table that is shifted is seen.
TEST(AttentionKernelDifferences, AreReadFromTheirTable) {
  const checking::CheckCase test = case_of("differences by head");
  const ProblemInputs inputs = random_inputs(test.problem);
  const Fault shifted{"[kv - q + difference_origin(p.call)]", "[kv - q + 1 + difference_origin(p.call)]"};
  EXPECT_FALSE(check_of(test, inputs, shifted).passed());
  EXPECT_FALSE(check_of(test, inputs, {}, shifted).passed());
}

double error_of(const CheckReport& report, const std::string& name) {
  return std::ranges::find(report.outputs, name, &OutputCheck::name)->l2.error;
}

/// With a single key nothing depends on the query. A row's sum of o d_o is another sum than that of its products.
TEST(AttentionKernelDeltas, LeaveNothingWhereOneKeyIsSummedOver) {
  AttentionProblem p;
  p.seq_q = 40;
  p.seq_kv = 1;
  p.dim_qk = p.dim_v = 64;
  p.dtype = DType::kBF16;
  p.backward = p.stats = true;
  p.program = Program::parse("value = score - 200.0");
  checking::CheckCase test;
  test.problem = p;
  const ProblemInputs inputs = random_inputs(p);
  EXPECT_EQ(error_of(check_of(test, inputs), "dq"), 0);
  const Fault rounded{"kRecomputedDelta = true", "kRecomputedDelta = false"};
  EXPECT_GT(error_of(check_of(test, inputs, {}, rounded), "dq"), 0);
}

/// The checks above would see it: each of these faults makes them fail.
TEST(AttentionKernelFaults, AreSeen) {
  const checking::CheckCase documents = case_of("documents");
  const ProblemInputs inputs = random_inputs(documents.problem);
  const Fault full{"all ? kFullTile : kPartialTile", "all ? kFullTile : kFullTile"};
  EXPECT_FALSE(check_of(documents, inputs, full).passed()) << "tiles that are called full wrongly";
  EXPECT_FALSE(check_of(documents, inputs, {}, full).passed());
  const Fault empty{"!some ? kEmptyTile", "!all ? kEmptyTile"};
  EXPECT_FALSE(check_of(documents, inputs, empty).passed()) << "tiles that are called empty wrongly";
}

struct FieldFault {
  const char* name;
  Fault forward, backward;
  const char* of = "a learned sink, dropout and the largest score";
};
class AttentionKernelFieldFaults : public ::testing::TestWithParam<FieldFault> {};

TEST_P(AttentionKernelFieldFaults, AreSeen) {
  const checking::CheckCase test = case_of(GetParam().of);
  EXPECT_FALSE(check_of(test, random_inputs(test.problem), GetParam().forward, GetParam().backward).passed());
}
constexpr const char* kTheTokenBefore = "clamped(tokens_of(tensor, b).first - 1, 0, tensor.count) * tensor.row";
const FieldFault kFieldFaults[] = {
    {"NoSink", {"kSink = true", "kSink = false"}, {}},
    {"NoDropoutInBackward", {}, {"kDropout = true", "kDropout = false"}},
    {"AnotherSeed", {"key0 = call.key[0]", "key0 = call.key[0] + 1"}, {}},
    {"NoRescaling", {"stays ? x * call.dropout.factor", "stays ? x"}, {}},
    {"MaskedLargest", {"rows.largest[m][half] = fmaxf(rows.largest[m][half], x)", "rows.largest[m][half] = 9.0f"}, {}},
    {"OffsetsOfTheNextBatch", {"tensor.places[b * ", "tensor.places[(b + 1) * "}, {}, "ragged"},
    {"OffsetsShiftedByOne", {"tokens_of(tensor, b).first * tensor.row", kTheTokenBefore}, {}, "ragged"},
    {"OffsetsShiftedByOneInBackward", {}, {"tokens_of(tensor, b).first * tensor.row", kTheTokenBefore}, "ragged"},
    {"LseByHeads", {"+ q) * call.heads_q + h", "+ q) + h * call.seq_q"}, {}, "ragged"},
    {"PagesSwapped",
     {"pages[position / kBlockRows * page_step]", "pages[(position / kBlockRows ^ 1) * page_step]"},
     {},
     "paged"},
    {"PagesOfTheFirstBatch", {"tensor.places + b * tensor.place_batch;", "tensor.places;"}, {}, "paged by heads"},
    {"LengthsOffByOne", {"return ((const int*)data)[i];", "return ((const int*)data)[i] + 1;"}, {}, "lengths"},
    {"GradientsAsIfTheyWereQ",
     {},
     {"rows_of(call.dq, b, h), first_query", "rows_of(call.q, b, h), first_query"},
     "gradients elsewhere"},
    {"FloatsOfUpperDigits", {"multiply_add_upper(product, a.large, b.small[0], b.small[1]);", ""}, {}, "causal f32"},
    {"FloatsOfUpperDigitsInBackward",
     {},
     {"multiply_add_upper(product, a.small, b.large[0], b.large[1]);", ""},
     "causal f32"},
    {"OutputsInPairs", {"= {low, high}; }", "= {high, low}; }"}, {}, "o in f32"},
};
INSTANTIATE_TEST_SUITE_P(Faults, AttentionKernelFieldFaults, ::testing::ValuesIn(kFieldFaults),
                         [](const auto& fault) { return std::string(fault.param.name); });

}  // namespace
}  // namespace scoremod::backend::kernels
