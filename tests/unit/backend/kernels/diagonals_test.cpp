// Sums along diagonals of scores, on a host, thread by thread: a table's gradient from a walk over tiles of made-up
// gradients.

#include <algorithm>
#include <cstring>
#include <string_view>

#include <gtest/gtest.h>

#include "backend/kernels/hopper/family.hpp"
#include "backend/kernels/operand_gradients/operand_gradients.hpp"
#include "compiler/pipeline.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"
#include "support/emulated_device.hpp"
#include "support/tiled_call.hpp"

namespace scoremod::backend::kernels {
namespace {

/// Walks as the kernel of dq does, past some tiles; one row of tiles is beyond a sequence's end. Gains are small
/// integers, so that sums are exact.
constexpr const char* kWalk = R"(
SCOREMOD_KERNEL(128, 1) walk_over_gains(SCOREMOD_ARGUMENT p) {
  SCOREMOD_SHARED(shared);
  const AttentionArguments& call = p.call;
  const int query_tile = blockIdx.x % call.query_tiles, head = blockIdx.x / call.query_tiles;
  const int b = head / call.heads_q, h = head % call.heads_q, lane = threadIdx.x % 32;
  if (query_tile == 2) return write_no_gains(p, b, h, query_tile);
  DiagonalGains gains;
  gains.begin((float*)shared);
  for (int first_key = 0; first_key < call.seq_kv; first_key += kKeyStep) {
    if ((first_key / kKeyStep + query_tile) % 4 == 1) continue;
    team_barrier<4>(0);
    for (int n = 0; n < kKeyStep / 8; ++n)
      for (int e = 0; e < 4; ++e) {
        const int q = query_tile * kQueries + threadIdx.x / 32 * 16 + e / 2 * 8 + lane / 4;
        const int kv = first_key + n * 8 + lane % 4 * 2 + e % 2;
        const bool there = q < call.seq_q && kv < call.seq_kv;
        gains.add(there ? (float)((q * 7 + kv * 3 + b + 2 * h) % 11 - 5) : 0.0f, n, e);
      }
    team_barrier<4>(0);
    gains.add_step(own_diagonal_sums(p, b, h, query_tile), first_key);
  }
  gains.finish(own_diagonal_sums(p, b, h, query_tile), call);
}
)";

constexpr std::int64_t kBatch = 2, kHeads = 3, kQueries = 230, kKeys = 300;

struct Case {
  const char* name;
  const char* program;
  std::vector<std::int64_t> table;
  int key_step;
  /// The entry that a difference adds to, as the program says.
  std::int64_t (*entry)(std::int64_t b, std::int64_t h, std::int64_t difference);
};
void PrintTo(const Case& test, std::ostream* out) { *out << test.name; }

const Case kCases[] = {
    {"ByHead",
     "table x: f32 rank 2\nvalue = score + x[max(min(kv_idx - q_idx, 20), -20) + 20, h]",
     {41, kHeads},
     64,
     [](std::int64_t, std::int64_t h, std::int64_t d) {
       return (std::clamp<std::int64_t>(d, -20, 20) + 20) * kHeads + h;
     }},
    {"ByBatch",
     "table x: f32 rank 2\nvalue = score + x[b, (q_idx - kv_idx + 300) // 7]",
     {kBatch, 80},
     32,
     [](std::int64_t b, std::int64_t, std::int64_t d) { return b * 80 + (300 - d) / 7; }},
    {"OfAll",
     "table x: f32 rank 1\nvalue = score + x[kv_idx - q_idx + 229]",
     {kQueries + kKeys - 1},
     64,
     [](std::int64_t, std::int64_t, std::int64_t d) { return d + 229; }},
};

AttentionProblem problem_of(const Case& test) {
  AttentionProblem p;
  p.batch = kBatch;
  p.heads_q = p.heads_kv = kHeads;
  p.seq_q = kQueries;
  p.seq_kv = kKeys;
  p.dim_qk = p.dim_v = 16;
  p.dtype = DType::kBF16;
  p.backward = p.stats = true;
  p.program = Program::parse(test.program);
  p.operands.push_back(problem::default_spec(p, p.program.operands().front()));
  p.operands.front().shape = test.table;
  return p;
}

/// The gradient of the table, by the walk and the kernels that add its sums up.
std::vector<float> gradient_of(const Case& test, const test::EmulatedLaunches::Fault& fault = {}) {
  const compiler::CompiledProblem compiled = compiler::compile(problem_of(test));
  const std::vector<OperandTarget> targets =
      operand_targets(compiled, problem::operands_with_gradient(compiled.problem), Gains::kBeside);
  PortableShape shape;
  shape.key_step = test.key_step;
  const KernelCall kernels = test::attention_call(compiled, Direction::kBackward, shape, targets);
  std::vector<KernelLaunch> launches{
      {"walk_over_gains", kBatch * kHeads * ((kQueries + 63) / 64), 128,
       static_cast<std::size_t>(device::DiagonalStorage{shape.queries, shape.key_step}.bytes)}};
  for (const KernelLaunch& launch : kernels.launches())
    if (std::string_view(launch.kernel).starts_with("attention_operand_")) launches.push_back(launch);
  EXPECT_EQ(launches.size(), 4U);
  const test::EmulatedLaunches run(
      test::emulated_text(attention_source(compiled, Direction::kBackward, shape, targets)) + kWalk, launches, fault);
  std::vector<std::max_align_t> workspace(kernels.workspace_bytes() / sizeof(std::max_align_t) + 1);
  std::memset(workspace.data(), 0xff, workspace.size() * sizeof(std::max_align_t));  // NaN
  std::int64_t entries = 1;
  for (const std::int64_t extent : test.table) entries *= extent;
  std::vector<float> table(static_cast<std::size_t>(entries)), gradient(table.size(), 1e30F);
  const std::vector<const void*> operands{table.data()};
  const std::vector<void*> gradients{gradient.data()};
  BackwardTensors tensors;
  tensors.operands = operands;
  tensors.d_operands = gradients;
  run.run(kernels.arguments(tensors, {1.0F, {}, nullptr, 0, 0}, reinterpret_cast<std::byte*>(workspace.data())), 3);
  return gradient;
}

std::vector<float> expected_of(const Case& test) {
  std::int64_t entries = 1;
  for (const std::int64_t extent : test.table) entries *= extent;
  std::vector<float> gradient(static_cast<std::size_t>(entries));
  for (std::int64_t b = 0; b < kBatch; ++b)
    for (std::int64_t h = 0; h < kHeads; ++h)
      for (std::int64_t q = 0; q < kQueries; ++q)
        for (std::int64_t kv = 0; kv < kKeys; ++kv) {
          const std::int64_t tile = q / 64;
          if ((kv / test.key_step + tile) % 4 == 1 || tile == 2) continue;
          gradient[static_cast<std::size_t>(test.entry(b, h, kv - q))] +=
              static_cast<float>((q * 7 + kv * 3 + b + 2 * h) % 11 - 5);
        }
  return gradient;
}

class Diagonals : public ::testing::TestWithParam<Case> {};

TEST_P(Diagonals, AreSummedUp) { EXPECT_EQ(gradient_of(GetParam()), expected_of(GetParam())); }
INSTANTIATE_TEST_SUITE_P(Cases, Diagonals, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

/// The test above would see it.
TEST(Diagonals, FaultsAreSeen) {
  for (const test::EmulatedLaunches::Fault& fault :
       {test::EmulatedLaunches::Fault{"carried[i] = above[i];", "carried[i] = 0.0f;"},
        {"warp * 16 - column", "warp * 8 - column"},
        {"i < diagonal_pitch(call); i += kThreads) sums[i] = 0.0f;", "false;) {}"},
        {"if (!kByBatch && b + 1 < call.batch) continue;", "if (b + 1 < call.batch) continue;"}})
    EXPECT_NE(gradient_of(kCases[1], fault), expected_of(kCases[1])) << fault.first;
}

TEST(OperandTargets, AreDiagonalsOfOneTableAtDifferences) {
  const auto sums_of = [](const char* program) {
    AttentionProblem p = problem_of({"", program, {41}, 64, nullptr});
    const compiler::CompiledProblem compiled = compiler::compile(p);
    const auto targets = operand_targets(compiled, problem::operands_with_gradient(compiled.problem), Gains::kBeside);
    return targets.empty() ? std::optional<OperandSum>() : targets.front().sum;
  };
  EXPECT_EQ(sums_of("table x: f32 rank 1\nvalue = score * x[abs(kv_idx - q_idx) // 8]"), OperandSum::kDifference);
  EXPECT_EQ(sums_of("table x: f32 rank 1\nvalue = score + x[kv_idx]"), std::nullopt);
  EXPECT_EQ(sums_of("table x: f32 rank 1\nvalue = score + x[kv_idx - q_idx] * x[q_idx - kv_idx]"), std::nullopt)
      << "read twice";
}

}  // namespace
}  // namespace scoremod::backend::kernels
