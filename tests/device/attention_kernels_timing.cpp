// Times of the attention kernels at the size that others' are known at, for the shapes that a tile may have. Runs where
// SCOREMOD_DEVICE_TIMES is set.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>

#include "scoremod/inputs.hpp"

#include "backend/cuda/kept_kernels.hpp"
#include "backend/kernels/attention_plans.hpp"
#include "backend/kernels/attention_source.hpp"
#include "base/fail.hpp"
#include "compiler/pipeline.hpp"
#include "device/device_fixture.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::kernels {
namespace {

using problem::TensorRole;

constexpr int kRounds = 11;

struct Timed {
  const char* name;
  const char* program;
};

constexpr const char* kDocuments =
    "operand q_id: i32 [b, q_idx]\noperand kv_id: i32 [b, kv_idx]\nvalue = score\nkeep = q_id == kv_id";
constexpr Timed kTimed[] = {
    {"full", "value = score"},
    {"causal", "value = score\nkeep = kv_idx <= q_idx"},
    {"documents", kDocuments},
    {"soft cap", "value = tanh(score * 0.02) * 50.0"},
    {"2-d neighbourhood",
     "value = score\nkeep = abs(q_idx // 64 - kv_idx // 64) <= 4 & abs(q_idx % 64 - kv_idx % 64) <= 4"},
};

AttentionProblem problem_of(const Timed& timed) {
  AttentionProblem p;
  p.batch = 4;
  p.heads_q = p.heads_kv = 16;
  p.seq_q = p.seq_kv = 4096;
  p.dim_qk = p.dim_v = 128;
  p.dtype = DType::kBF16;
  p.backward = p.stats = true;
  p.program = Program::parse(timed.program);
  for (const OperandDecl& decl : p.program.operands()) p.operands.push_back(problem::default_spec(p, decl));
  return p;
}

/// Random tensors of one call on the device.
class Call {
 public:
  /// `inputs` of any of the timed problems: their operands are made here.
  Call(const AttentionProblem& problem, const ProblemInputs& inputs) {
    const auto upload = [&](const std::vector<std::byte>& bytes) {
      memory_.emplace_back(bytes.size());
      memory_.back().upload(bytes.data(), bytes.size());
      return memory_.back().data();
    };
    const auto room = [&](TensorRole role) {
      memory_.emplace_back(problem::bytes_of(problem, role));
      return memory_.back().data();
    };
    forward.q = backward.q = upload(inputs.q);
    forward.k = backward.k = upload(inputs.k);
    forward.v = backward.v = upload(inputs.v);
    backward.d_o = upload(inputs.d_o);
    backward.o = forward.o = room(TensorRole::kO);
    memory_.emplace_back(static_cast<std::size_t>(problem.batch * problem.heads_q * problem.seq_q) * sizeof(float));
    backward.lse = forward.lse = static_cast<float*>(memory_.back().data());
    backward.dq = room(TensorRole::kQ);
    backward.dk = room(TensorRole::kK);
    backward.dv = room(TensorRole::kV);
    // Eight documents of one length.
    for (const OperandSpec& operand : problem.operands) {
      std::vector<std::byte> bytes(problem::bytes_of(operand));
      std::vector<std::int32_t> ids(bytes.size() / sizeof(std::int32_t));
      for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i % 4096 / 512);
      std::memcpy(bytes.data(), ids.data(), bytes.size());
      operands_.push_back(upload(bytes));
    }
    gradients_.resize(operands_.size());
    forward.operands = backward.operands = operands_;
    backward.d_operands = gradients_;
    parameters.scale = problem.effective_scale();
  }

  ForwardTensors forward;
  BackwardTensors backward;
  CallParameters parameters;

 private:
  std::vector<cuda::DeviceMemory> memory_;
  std::vector<const void*> operands_;
  std::vector<void*> gradients_;
};

template <class Plan, class Tensors>
double median_ms(const Plan& plan, const Tensors& tensors, const CallParameters& parameters) {
  const cuda::DeviceMemory memory(plan.workspace_bytes());
  const std::span<std::byte> workspace(static_cast<std::byte*>(memory.data()), memory.bytes());
  for (int i = 0; i < 2; ++i) plan.execute(tensors, parameters, workspace);
  cuda::synchronize();
  std::vector<double> times;
  for (int i = 0; i < kRounds; ++i) {
    cuda::DeviceTimer timer;
    timer.start();
    plan.execute(tensors, parameters, workspace);
    times.push_back(timer.stop());
  }
  std::ranges::nth_element(times, times.begin() + kRounds / 2);
  return times[kRounds / 2];
}

std::string describe(const TileShape& shape) {
  return concat(shape.queries, "x", shape.keys, " warps ", shape.warps, " row tiles ", shape.row_tiles, " step ",
                shape.step, " part ", shape.part, " key step ", shape.key_step, " blocks ", shape.blocks);
}

void record_time(const Timed& timed, const char* direction, const TileShape& shape, double ms) {
  const std::string line = concat(R"({"kind": "time", "case": ")", timed.name, R"(", "direction": ")", direction,
                                  R"(", "shape": ")", describe(shape), R"(", "ms": )", ms, "}");
  std::printf("%s\n", line.c_str());
  test::record_line(line);
}

std::string image_of(const compiler::CompiledProblem& compiled, Direction direction, const TileShape& shape) {
  return cuda::kept_kernels(attention_source(compiled, direction, shape));
}

struct TimedShape {
  const Timed* timed;
  Direction direction;
  TileShape shape;
};

std::vector<TimedShape> timed_shapes() {
  const std::vector<TileShape> forward_shapes{
      {.warps = 4, .row_tiles = 2, .queries = 128, .keys = 64, .blocks = 2},
      {.warps = 4, .row_tiles = 1, .queries = 64, .keys = 64, .blocks = 2},
      {.warps = 4, .row_tiles = 2, .queries = 128, .keys = 32, .blocks = 2},
      {.warps = 4, .row_tiles = 1, .queries = 64, .keys = 64, .blocks = 3},
  };
  const std::vector<TileShape> backward_shapes{
      {.warps = 4, .row_tiles = 2, .queries = 128, .keys = 64, .step = 64, .part = 32, .key_step = 32, .blocks = 2},
      {.warps = 4, .row_tiles = 2, .queries = 128, .keys = 64, .step = 64, .part = 64, .key_step = 32, .blocks = 2},
      {.warps = 4, .row_tiles = 2, .queries = 128, .keys = 64, .step = 32, .part = 32, .key_step = 32, .blocks = 2},
      {.warps = 4, .row_tiles = 1, .queries = 64, .keys = 64, .step = 64, .part = 32, .key_step = 64, .blocks = 2},
  };
  std::vector<TimedShape> all;
  for (const Timed& timed : kTimed) {
    // Every shape where nothing else takes time, the likely ones elsewhere.
    const bool plain = &timed < kTimed + 2;
    for (std::size_t i = 0; i < (plain ? forward_shapes.size() : 2); ++i)
      all.push_back({&timed, Direction::kForward, forward_shapes[i]});
    for (std::size_t i = 0; i < (plain ? backward_shapes.size() : 1); ++i)
      all.push_back({&timed, Direction::kBackward, backward_shapes[i]});
  }
  return all;
}

/// Its tensors are made once for each problem, and those of one at a time.
const Call& call_of(const Timed& timed, const AttentionProblem& problem) {
  static const ProblemInputs inputs = random_inputs(problem_of(kTimed[0]));
  static const Timed* made = nullptr;
  static std::optional<Call> call;
  if (made != &timed) {
    call.reset();
    call.emplace(problem, inputs);
    made = &timed;
  }
  return *call;
}

class AttentionKernelTimes : public test::OnDevice, public ::testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (!IsSkipped() && std::getenv("SCOREMOD_DEVICE_TIMES") == nullptr) GTEST_SKIP() << "no times are asked for";
  }
};

/// With SCOREMOD_DEVICE_TIMES=build the plans are only built, into the store, which several processes may do at once.
TEST_P(AttentionKernelTimes, OfAShape) {
  const TimedShape test = timed_shapes()[static_cast<std::size_t>(GetParam())];
  const AttentionProblem problem = problem_of(*test.timed);
  const compiler::CompiledProblem compiled = compiler::compile(problem);
  const bool build_only = std::string(std::getenv("SCOREMOD_DEVICE_TIMES")) == "build";
  if (test.direction == Direction::kForward) {
    const auto plan = forward_plan(compiled, test.shape, image_of(compiled, test.direction, test.shape));
    if (build_only) return;
    const Call& call = call_of(*test.timed, problem);
    record_time(*test.timed, "forward", test.shape, median_ms(*plan, call.forward, call.parameters));
  } else {
    const auto plan = backward_plan(compiled, test.shape, image_of(compiled, test.direction, test.shape));
    if (build_only) return;
    const Call& call = call_of(*test.timed, problem);
    // It reads what the forward wrote.
    const TileShape shape = tile_shape(problem, Direction::kForward);
    const auto forward = forward_plan(compiled, shape, image_of(compiled, Direction::kForward, shape));
    const cuda::DeviceMemory memory(forward->workspace_bytes());
    forward->execute(call.forward, call.parameters, {static_cast<std::byte*>(memory.data()), memory.bytes()});
    record_time(*test.timed, "backward", test.shape, median_ms(*plan, call.backward, call.parameters));
  }
}
INSTANTIATE_TEST_SUITE_P(Shapes, AttentionKernelTimes, ::testing::Range(0, static_cast<int>(timed_shapes().size())));

}  // namespace
}  // namespace scoremod::backend::kernels
