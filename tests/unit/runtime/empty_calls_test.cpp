#include "runtime/empty_calls.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/attention_cache.hpp"
#include "scoremod/inputs.hpp"
#include "scoremod/open_attention.hpp"
#include "scoremod/problem_buffers.hpp"

#include "backend/backend.hpp"
#include "problem/implied_operands.hpp"
#include "support/problem_for.hpp"
#include "support/refusal.hpp"

namespace scoremod {
namespace {

/// Host memory that says it is a device's.
class PretendedDevice final : public backend::MemorySpace {
 public:
  MemoryKind kind() const override { return MemoryKind::kCuda; }
  std::size_t alignment() const override { return 4; }
  void* allocate(std::size_t bytes, void* stream) const override {
    return backend::host_memory().allocate(bytes, stream);
  }
  void release(void* data, void* stream) const noexcept override { backend::host_memory().release(data, stream); }
  void copy_in(void*, const void*, std::size_t) const override {}
  void copy_out(void*, const void*, std::size_t) const override {}
  void wait(void*) const override {}
  int current_device() const override { return 0; }
  backend::DeviceProperties describe() const override { return {}; }
  void make_current(int) const override {}
  std::string objection(const void*, int) const override { return ""; }
};

AttentionProblem masked_problem() {
  AttentionProblem problem =
      test::problem_for(Program::parse("operand slopes: f32 [h]\nvalue = score * slopes\n"
                                       "keep = kv_idx < 0"));
  problem.dtype = DType::kBF16;
  problem.stats = problem.max_logit = problem.backward = true;
  problem.sink = Sink::kLearned;
  // Rows with gaps.
  problem.o.strides = Strides{1000, 100, 10, 1};
  return problem;
}

AttentionProblem without_keys(AttentionProblem problem) {
  problem.seq_kv = 0;
  return problem;
}

/// The outputs of a forward and a backward of one backend, without dk and dv. The inputs are those of `masked`.
std::vector<std::vector<std::byte>> results_of(const AttentionProblem& problem, const AttentionProblem& masked,
                                               const std::string& backend) {
  CompileOptions options;
  options.backend = backend;
  const Attention attention = Attention::compile(problem, options);
  const ProblemInputs inputs = random_inputs(masked);
  ProblemBuffers buffers(masked, buffers_of(inputs));
  attention.forward(buffers.forward());
  attention.backward(buffers.backward());
  std::vector<std::vector<std::byte>> results;
  for (const OutputTensor& output : buffers.outputs())
    if (output.name != "dk" && output.name != "dv") results.push_back(output.bytes);
  return results;
}

TEST(EmptyCalls, WithoutKeysAreTheLimitOfThoseWhoseKeysAreMasked) {
  for (const char* backend : {"cpu", "reference"}) {
    for (const Sink sink : {Sink::kNone, Sink::kOffByOne, Sink::kLearned}) {
      AttentionProblem masked = masked_problem();
      masked.sink = sink;
      EXPECT_EQ(results_of(without_keys(masked), masked, backend), results_of(masked, masked, backend)) << backend;
    }
  }
}

TEST(EmptyCalls, TakeNoMemoryWhereTheyWriteNothing) {
  for (std::int64_t AttentionProblem::*size : {&AttentionProblem::batch, &AttentionProblem::seq_q}) {
    AttentionProblem problem = test::small_problem();
    problem.*size = 0;
    const Attention attention = Attention::compile(problem);
    EXPECT_EQ(attention.problem().*size, 0);
    EXPECT_EQ(attention.forward_workspace_bytes(), 0U);
    const std::vector<float> kv(2 * 2 * 7 * 8);
    ForwardArgs args;
    if (problem.batch > 0) args.k = args.v = {kv.data(), kv.size() * sizeof(float)};
    EXPECT_NO_THROW(attention.forward(args));
  }
  AttentionProblem problem = test::small_problem();
  problem.heads_q = problem.heads_kv = 0;
  EXPECT_NO_THROW(Attention::compile(problem).forward({}));
}

TEST(EmptyCalls, AreRefusedWhereADeviceWouldWrite) {
  const PretendedDevice device;
  AttentionProblem problem = test::small_problem();
  problem.seq_kv = 0;
  const std::vector<float> q(2 * 5 * 4 * 8);
  std::vector<float> o(2 * 5 * 4 * 6, 7);
  ForwardArgs args;
  args.q = {q.data(), q.size() * sizeof(float)};
  args.o = {o.data(), o.size() * sizeof(float)};
  test::expect_refusal(
      "'o': expected an output without elements", [&] { runtime::run_empty(problem, args, {}, device); },
      ErrorCode::kUnsupported);
  EXPECT_EQ(o, std::vector<float>(o.size(), 7));
  problem.batch = 0;
  EXPECT_NO_THROW(runtime::run_empty(problem, args, {}, device));
}

TEST(EmptyCalls, OfAnOThatCoversMoreKeysHaveNoGradientOfTheSink) {
  AttentionProblem masked = masked_problem();
  masked.given_deltas = true;
  test::expect_refusal(
      "the gradient of operand 'sink': expected none", [&] { results_of(without_keys(masked), masked, "cpu"); },
      ErrorCode::kUnsupported);
  AttentionProblem problem = without_keys(masked);
  problem.batch = 0;
  EXPECT_NO_THROW(results_of(problem, masked, "cpu"));
}

TEST(EmptyCalls, OfOpenSizesSayThatTheirZerosAreSizes) {
  AttentionProblem problem = test::problem_for(Program::parse("table bias: f32 rank 1\nvalue = score + bias[kv_idx]"));
  problem.batch = problem.seq_q = problem.seq_kv = problem.operands.front().shape.front() = kOpenSize;
  const OpenAttention open = OpenAttention::compile(problem);
  Sizes sizes;
  sizes.batch = 2;
  sizes.seq_q = 3;
  sizes.operands = {{"bias", {0}, {}}};
  test::expect_refusal("sizes.seq_kv: expected a size of at least 1", [&] { open.at(sizes); });
  sizes.takes_zeros = true;
  const auto attention = open.at(sizes);
  EXPECT_EQ(attention->problem().seq_kv, 0);
  EXPECT_EQ(attention->problem().operands.front().shape.front(), 0);
  EXPECT_EQ(problem_at(problem, sizes).seq_kv, 0);
  const std::vector<float> q(2 * 3 * 4 * 8);
  std::vector<float> o(2 * 3 * 4 * 6, 7);
  ForwardArgs args;
  args.q = {q.data(), q.size() * sizeof(float)};
  args.o = {o.data(), o.size() * sizeof(float)};
  args.operands = {{"bias", {}}};
  attention->forward(args);
  EXPECT_EQ(o, std::vector<float>(o.size(), 0));
  sizes.seq_kv = 4;
  test::expect_refusal("operands[0].shape[0]: expected a size from 1", [&] { open.at(sizes); });
  sizes.seq_kv = -1;
  test::expect_refusal("sizes.seq_kv: expected a size from 1 to 1073741824, found -1", [&] { open.at(sizes); });
}

TEST(EmptyCalls, AreKeptApartFromThoseOfTheirTwins) {
  AttentionProblem problem = test::small_problem();
  problem.seq_kv = 1;
  const auto one = cached_attention(problem);
  problem.seq_kv = 0;
  const auto none = cached_attention(problem);
  EXPECT_NE(one, none);
  EXPECT_EQ(none, cached_attention(problem));
  EXPECT_EQ(none->problem().seq_kv, 0);
}

TEST(EmptyCalls, RefuseWhatIsWrongBesideTheZero) {
  AttentionProblem problem = test::small_problem();
  problem.batch = 0;
  problem.dim_qk = 0;
  test::expect_refusal("dim_qk: expected a size from 1", [&] { Attention::compile(problem); });
  problem = test::small_problem();
  problem.heads_kv = 0;
  test::expect_refusal("heads_kv: expected a size from 1", [&] { Attention::compile(problem); });
  problem = test::small_problem();
  problem.seq_q = 0;
  problem.tokens_q = 0;
  test::expect_refusal("seq_q: expected a size from 1", [&] { Attention::compile(problem); });
}

}  // namespace
}  // namespace scoremod
