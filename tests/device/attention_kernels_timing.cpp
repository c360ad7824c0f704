// Times of the attention kernels at the size that others' are known at, for the shapes that a tile may have. Runs where
// SCOREMOD_DEVICE_TIMES is set.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "scoremod/inputs.hpp"

#include "backend/cuda/device.hpp"
#include "backend/cuda/kernel_cache.hpp"
#include "backend/kernels/attention_plans.hpp"
#include "backend/kernels/attention_source.hpp"
#include "backend/kernels/few_queries_shape.hpp"
#include "backend/kernels/hopper_shape.hpp"
#include "backend/kernels/operand_source.hpp"
#include "base/element.hpp"
#include "base/fail.hpp"
#include "compiler/pipeline.hpp"
#include "device/device_fixture.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::kernels {
namespace {

using problem::TensorRole;

constexpr int kRounds = 11;
constexpr int kHopper = 90;  ///< the compute capability that Hopper kernels run on

struct Sizes {
  std::int64_t batch = 4, heads_q = 16, heads_kv = 16, seq_q = 4096, seq_kv = 4096, dim = 128;
};

struct Timed {
  const char* name;
  const char* program;
  Sizes sizes = {};
  DType dtype = DType::kBF16;
  bool learned = false;  ///< with the gradients of its operands, which Hopper kernels alone sum beside the others
};

constexpr const char* kPlain = "value = score";
constexpr const char* kCausal = "value = score\nkeep = kv_idx <= q_idx";
constexpr const char* kDocuments =
    "operand q_id: i32 [b, q_idx]\noperand kv_id: i32 [b, kv_idx]\nvalue = score\nkeep = q_id == kv_id";
constexpr const char* kRelativeTable =
    "table x: f32 rank 1\nvalue = score + x[max(min(kv_idx - q_idx, 128), -128) + 128]";
/// As the zoo's t5_bias has them, of one head.
constexpr const char* kBuckets =
    "table x: f32 rank 1\nvalue = score + x[select(abs(kv_idx - q_idx) < 8, abs(kv_idx - q_idx), min(15, 8 + "
    "i32(log(f32(max(abs(kv_idx - q_idx), 1)) / 8.0) / 2.7725887 * 8.0))) + select(kv_idx > q_idx, 16, 0)]";
constexpr const char* kSlopes = "operand x: f32 [h]\nvalue = score + x * f32(kv_idx - q_idx)\nkeep = kv_idx <= q_idx";
constexpr Timed kTimed[] = {
    {"full", kPlain},
    {"causal", kCausal},
    {"documents", kDocuments},
    {"documents causal",
     "operand q_id: i32 [b, q_idx]\noperand kv_id: i32 [b, kv_idx]\nvalue = score\nkeep = q_id == kv_id & kv_idx <= "
     "q_idx"},
    // One of 2048 and four of 512.
    {"unequal documents",
     "operand q_id: i32 [b, q_idx]\noperand kv_id: i32 [b, kv_idx]\nvalue = score\nkeep = max(q_id, 3) == max(kv_id, "
     "3)"},
    {"soft cap", "value = tanh(score * 0.02) * 50.0"},
    {"2-d neighbourhood",
     "value = score\nkeep = abs(q_idx // 64 - kv_idx // 64) <= 4 & abs(q_idx % 64 - kv_idx % 64) <= 4"},
    {"window 512", "value = score\nkeep = kv_idx <= q_idx & q_idx - kv_idx < 512"},
    {"prefix 1024", "value = score\nkeep = kv_idx < 1024 | kv_idx <= q_idx"},
    {"dilated 2", "value = score\nkeep = (q_idx - kv_idx) % 2 == 0"},
    {"global 64 and window 512", "value = score\nkeep = kv_idx < 64 | q_idx < 64 | abs(q_idx - kv_idx) < 512"},
    {"documents of heads",
     "operand q_id: i32 [b, h, q_idx]\noperand kv_id: i32 [b, h, kv_idx]\nvalue = score\nkeep = q_id == kv_id"},
    // What nodes cost: each has one kind more than another.
    {"ten sums and products",
     "value = ((((score * 1.1 + 0.1) * score + 0.2) * score + 0.3) * score + 0.4) * score + 0.5"},
    {"alibi", "operand x: f32 [h]\nvalue = score + x * f32(kv_idx - q_idx)"},
    {"read by query", "operand x: f32 [q_idx]\nvalue = score * x"},
    {"read by key", "operand x: f32 [kv_idx]\nvalue = score * x"},
    {"bias", "operand x: f32 [h, q_idx, kv_idx]\nvalue = score + x"},
    {"relative table", kRelativeTable},
    {"t5 buckets", kBuckets},
    {"quotient", "value = score / (1.0 + abs(score))"},
    {"floor division", "value = score + f32((q_idx + kv_idx) // 7)"},
    {"exponential", "value = score * exp(score)"},
    {"logarithm", "value = log(1.5 + abs(score))"},
    {"sigmoid", "value = sigmoid(score)"},
    {"sine", "value = sin(score)"},
    {"power", "value = pow(1.5 + abs(score), 1.3)"},
    {"gelu", "value = gelu(score)"},
    // What gradients of operands cost.
    {"learned relative table", kRelativeTable, {}, DType::kBF16, true},
    {"learned t5 buckets", kBuckets, {}, DType::kBF16, true},
    {"learned slopes, causal", kSlopes, {}, DType::kBF16, true},
    {"learned slopes, head dim 64", kSlopes, {.dim = 64}, DType::kBF16, true},
    {"learned t5 buckets, head dim 64", kBuckets, {.dim = 64}, DType::kBF16, true},
    {"learned numbers of queries", "operand x: f32 [q_idx]\nvalue = score + x", {}, DType::kBF16, true},
    {"learned numbers of keys", "operand x: f32 [kv_idx]\nvalue = score + x", {}, DType::kBF16, true},
    {"learned numbers of keys and heads",
     "operand x: f32 [kv_idx]\noperand y: f32 [h]\nvalue = score * y + x",
     {},
     DType::kBF16,
     true},
    {"documents, alibi and soft cap",
     "operand q_id: i32 [b, q_idx]\noperand kv_id: i32 [b, kv_idx]\noperand x: f32 [h]\nvalue = 50.0 * tanh((score + x "
     "* "
     "f32(kv_idx - q_idx)) / 50.0)\nkeep = q_id == kv_id"},
    // What sizes cost.
    {"full, head dim 64", kPlain, {.dim = 64}},
    {"documents, head dim 64", kDocuments, {.dim = 64}},
    {"full, head dim 256", kPlain, {.dim = 256}},
    {"causal, 16384", kCausal, {.batch = 1, .seq_q = 16384, .seq_kv = 16384}},
    {"causal, 512 of 64", kCausal, {.batch = 16, .seq_q = 512, .seq_kv = 512, .dim = 64}},
    {"causal, grouped heads", kCausal, {.batch = 1, .heads_q = 32, .heads_kv = 8, .seq_q = 8192, .seq_kv = 8192}},
    {"one query", kPlain, {.batch = 16, .heads_q = 32, .heads_kv = 8, .seq_q = 1, .seq_kv = 8192}},
    {"eight queries", kPlain, {.batch = 16, .heads_q = 32, .heads_kv = 8, .seq_q = 8, .seq_kv = 8192}},
    // Of float32.
    {"full f32", kPlain, {}, DType::kF32},
    {"causal f32", kCausal, {}, DType::kF32},
    {"documents f32", kDocuments, {}, DType::kF32},
    {"full f32, 1024 of 64", kPlain, {.seq_q = 1024, .seq_kv = 1024, .dim = 64}, DType::kF32},
    {"full f32, head dim 256", kPlain, {.batch = 1, .dim = 256}, DType::kF32},
};

AttentionProblem problem_of(const Timed& timed) {
  AttentionProblem p;
  p.batch = timed.sizes.batch;
  p.heads_q = timed.sizes.heads_q;
  p.heads_kv = timed.sizes.heads_kv;
  p.seq_q = timed.sizes.seq_q;
  p.seq_kv = timed.sizes.seq_kv;
  p.dim_qk = p.dim_v = timed.sizes.dim;
  p.dtype = timed.dtype;
  p.backward = p.stats = true;
  p.program = Program::parse(timed.program);
  for (const OperandDecl& decl : p.program.operands()) {
    p.operands.push_back(problem::default_spec(p, decl));
    if (decl.is_table()) p.operands.back().shape = {257};
    if (decl.axes[2] && decl.axes[3]) p.operands.back().dtype = p.dtype;
    p.operands.back().gradient = timed.learned;
  }
  return p;
}

/// Random tensors of one call on the device.
class Call {
 public:
  /// `inputs` of any of the timed problems, of which as much is taken as there is room for: operands are made here.
  Call(const AttentionProblem& problem, const ProblemInputs& inputs) {
    const auto upload = [&](const std::vector<std::byte>& bytes) {
      memory_.emplace_back(bytes.size());
      memory_.back().upload(bytes.data(), bytes.size());
      return memory_.back().data();
    };
    const auto filled = [&](const std::vector<std::byte>& from, std::size_t count) {
      std::vector<std::byte> bytes(count);
      for (std::size_t at = 0; at < count; at += from.size())
        std::memcpy(bytes.data() + at, from.data(), std::min(from.size(), count - at));
      return upload(bytes);
    };
    const auto tensor = [&](const std::vector<std::byte>& from, TensorRole role) {
      return filled(from, problem::bytes_of(problem, role));
    };
    const auto room = [&](TensorRole role) {
      memory_.emplace_back(problem::bytes_of(problem, role));
      return memory_.back().data();
    };
    forward.q = backward.q = tensor(inputs.q, TensorRole::kQ);
    forward.k = backward.k = tensor(inputs.k, TensorRole::kK);
    forward.v = backward.v = tensor(inputs.v, TensorRole::kV);
    backward.d_o = tensor(inputs.d_o, TensorRole::kO);
    backward.o = forward.o = room(TensorRole::kO);
    memory_.emplace_back(static_cast<std::size_t>(problem.batch * problem.heads_q * problem.seq_q) * sizeof(float));
    backward.lse = forward.lse = static_cast<float*>(memory_.back().data());
    backward.dq = room(TensorRole::kQ);
    backward.dk = room(TensorRole::kK);
    backward.dv = room(TensorRole::kV);
    for (const OperandSpec& operand : problem.operands) {
      // Eight documents of one length, or numbers around 1.
      constexpr std::int64_t kRepeated = 4096 * 7;
      std::vector<std::byte> bytes(kRepeated * size_of(operand.dtype));
      for (std::int64_t i = 0; i < kRepeated; ++i) {
        const bool ids = operand.dtype == DType::kI32;
        store_element(bytes.data(), operand.dtype, i,
                      ids ? static_cast<double>(i % 4096 / 512) : 1 + static_cast<double>(i % 7) / 16);
      }
      operands_.push_back(filled(bytes, problem::bytes_of(operand)));
    }
    for (const OperandSpec& operand : problem.operands) {
      if (operand.gradient) memory_.emplace_back(problem::bytes_of(operand));
      gradients_.push_back(operand.gradient ? memory_.back().data() : nullptr);
    }
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

double median_of(std::vector<double> times) {
  std::ranges::nth_element(times, times.begin() + kRounds / 2);
  return times[kRounds / 2];
}

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
  return median_of(std::move(times));
}

/// Of several plans of one call, which run in turns.
template <class Plan, class Tensors>
std::vector<double> medians_in_turns(const std::vector<std::unique_ptr<Plan>>& plans, const Tensors& tensors,
                                     const CallParameters& parameters) {
  std::size_t bytes = 0;
  for (const auto& plan : plans) bytes = std::max(bytes, plan->workspace_bytes());
  const cuda::DeviceMemory memory(bytes);
  const std::span<std::byte> workspace(static_cast<std::byte*>(memory.data()), memory.bytes());
  std::vector<std::vector<double>> times(plans.size());
  for (int round = -2; round < kRounds; ++round)
    for (std::size_t i = 0; i < plans.size(); ++i) {
      cuda::DeviceTimer timer;
      timer.start();
      plans[i]->execute(tensors, parameters, workspace);
      const double ms = timer.stop();
      if (round >= 0) times[i].push_back(ms);
    }
  std::vector<double> medians;
  for (std::vector<double>& of_plan : times) medians.push_back(median_of(std::move(of_plan)));
  return medians;
}

std::string describe(const TileShape& shape) {
  return concat(to_string(shape.family), " ", shape.queries, "x", shape.keys, " warps ", shape.warps, " row tiles ",
                shape.row_tiles, " step ", shape.step, " part ", shape.part, " key step ", shape.key_step, " blocks ",
                shape.blocks, " stages ", shape.stages, " key stages ", shape.key_stages, " teams ", shape.teams,
                " splits ", shape.splits, " persistent blocks ", shape.persistent_blocks, shape.fused ? " fused" : "",
                shape.dq_order == DqOrder::kLateFence        ? ", late fence"
                : shape.dq_order == DqOrder::kEarlyAdditions ? ", early additions"
                                                             : "");
}

void record_time(const Timed& timed, const char* direction, const TileShape& shape, double ms) {
  const std::string line =
      concat(R"({"kind": "time", "case": ")", timed.name, shape.persistent_blocks > 0 ? "/persistent" : "",
             R"(", "direction": ")", direction, R"(", "shape": ")", describe(shape), R"(", "ms": )", ms, "}");
  std::printf("%s\n", line.c_str());
  test::record_line(line);
}

std::vector<OperandTarget> targets_of(const compiler::CompiledProblem& compiled, Direction direction) {
  if (direction == Direction::kForward) return {};
  return operand_targets(compiled, problem::operands_with_gradient(compiled.problem));
}

std::vector<std::string> modules_of(const compiler::CompiledProblem& compiled, Direction direction,
                                    const TileShape& shape) {
  return {cuda::cached_kernels(attention_source(compiled, direction, shape, {}, targets_of(compiled, direction)),
                               shape.instructions())};
}

struct TimedShape {
  const Timed* timed;
  Direction direction;
  TileShape shape;
};

std::vector<TimedShape> timed_shapes() {
  const std::vector<TileShape> forward_shapes{
      {.warps = 4, .row_tiles = 1, .queries = 64, .keys = 64, .blocks = 2},
      {.warps = 4, .row_tiles = 2, .queries = 128, .keys = 32, .blocks = 2},
      {.warps = 4, .row_tiles = 1, .queries = 64, .keys = 64, .blocks = 3},
  };
  const std::vector<TileShape> backward_shapes{
      {.warps = 4, .row_tiles = 2, .queries = 128, .keys = 64, .step = 64, .part = 64, .key_step = 32, .blocks = 2},
      {.warps = 4, .row_tiles = 2, .queries = 128, .keys = 64, .step = 32, .part = 32, .key_step = 32, .blocks = 2},
      {.warps = 4, .row_tiles = 1, .queries = 64, .keys = 64, .step = 64, .part = 32, .key_step = 64, .blocks = 2},
  };
  const std::vector<TileShape> float_forward_shapes{
      {.row_tiles = 1, .queries = 64, .keys = 32, .element_bytes = 4, .blocks = 3},
      {.row_tiles = 1, .queries = 64, .keys = 64, .element_bytes = 4},
      {.row_tiles = 2, .queries = 128, .keys = 64, .element_bytes = 4, .blocks = 1},
  };
  const std::vector<TileShape> float_backward_shapes{
      {.step = 8, .part = 8, .key_step = 8, .element_bytes = 4},
      {.step = 16, .part = 8, .key_step = 16, .element_bytes = 4},
      {.row_tiles = 2, .queries = 128, .step = 32, .part = 32, .key_step = 16, .element_bytes = 4, .blocks = 1},
      {.step = 32, .part = 32, .key_step = 32, .element_bytes = 4, .blocks = 1},
  };
  std::vector<TimedShape> all;
  for (const Timed& timed : kTimed) {
    const AttentionProblem problem = problem_of(timed);
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      if (!timed.learned) all.push_back({&timed, direction, tile_shape(problem, direction)});
      if (timed.learned && direction == Direction::kForward) continue;
      if (hopper_objections(problem, direction, kHopper).empty())
        all.push_back({&timed, direction, hopper_shapes(problem, direction).front()});
      const bool fused = direction == Direction::kBackward && !timed.learned &&
                         hopper_objections(problem, direction, kHopper).empty() &&
                         hopper_fused_objections(problem).empty();
      if (fused) all.push_back({&timed, direction, hopper_fused_shape(problem)});
    }
    if (timed.name == std::string("full f32")) {
      for (const TileShape& shape : float_forward_shapes) all.push_back({&timed, Direction::kForward, shape});
      for (const TileShape& shape : float_backward_shapes) all.push_back({&timed, Direction::kBackward, shape});
    }
    // Every shape where nothing else takes time.
    if (&timed >= kTimed + 2) continue;
    for (const TileShape& shape : forward_shapes) all.push_back({&timed, Direction::kForward, shape});
    for (const TileShape& shape : backward_shapes) all.push_back({&timed, Direction::kBackward, shape});
  }
  return all;
}

/// Few queries of grouped heads against caches of two sizes.
constexpr Timed kDecoding[] = {
    {"one query", kPlain, {.batch = 16, .heads_q = 32, .heads_kv = 8, .seq_q = 1, .seq_kv = 8192}},
    {"four queries", kPlain, {.batch = 16, .heads_q = 32, .heads_kv = 8, .seq_q = 4, .seq_kv = 8192}},
    {"eight queries", kPlain, {.batch = 16, .heads_q = 32, .heads_kv = 8, .seq_q = 8, .seq_kv = 8192}},
    {"sixteen queries", kPlain, {.batch = 16, .heads_q = 32, .heads_kv = 8, .seq_q = 16, .seq_kv = 8192}},
    {"one query, 32768", kPlain, {.batch = 4, .heads_q = 32, .heads_kv = 8, .seq_q = 1, .seq_kv = 32768}},
    {"four queries, 32768", kPlain, {.batch = 4, .heads_q = 32, .heads_kv = 8, .seq_q = 4, .seq_kv = 32768}},
    {"eight queries, 32768", kPlain, {.batch = 4, .heads_q = 32, .heads_kv = 8, .seq_q = 8, .seq_kv = 32768}},
    {"sixteen queries, 32768", kPlain, {.batch = 4, .heads_q = 32, .heads_kv = 8, .seq_q = 16, .seq_kv = 32768}},
};

/// Those that are offered for its rows, and some that are not.
std::vector<TileShape> decoding_shapes(const Timed& timed) {
  struct Cut {
    int rows, row_tiles, keys, warps;
  };
  static constexpr Cut kCuts[] = {{16, 1, 16, 4}, {32, 2, 16, 4}, {32, 2, 32, 8}, {64, 2, 16, 8}};
  const AttentionProblem problem = problem_of(timed);
  const std::int64_t rows = timed.sizes.heads_q / timed.sizes.heads_kv * timed.sizes.seq_q;
  const DeviceProperties& device = cuda::describe_current_device();
  std::vector<TileShape> shapes = few_query_shapes(problem, device);
  for (const Cut& cut : kCuts)
    shapes.push_back(few_query_shape(cut.rows, cut.row_tiles, cut.keys, cut.warps, problem, device));
  std::erase_if(shapes, [&](const TileShape& shape) { return shape.queries != std::max<std::int64_t>(rows, 16); });
  if (cuda::current_compute_capability() != kHopper) return shapes;
  // By warpgroups, and of these some that are not offered either.
  struct GroupCut {
    int keys, teams;
  };
  static constexpr GroupCut kGroupCuts[] = {{32, 2}, {64, 1}, {32, 1}};
  for (const TileShape& shape : hopper_few_query_shapes(problem, device.multiprocessors)) shapes.push_back(shape);
  for (const GroupCut& cut : kGroupCuts) {
    shapes.push_back(hopper_few_query_shape(cut.keys, cut.teams, problem, device.multiprocessors));
    // Where heads fill the device.
    if (problem.batch * problem.heads_kv * 2 > device.multiprocessors) shapes.back().splits = 1;
  }
  return shapes;
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

/// Forwards in these shapes, one after the other in every round.
void time_in_turns(const Timed& timed, const std::vector<TileShape>& shapes) {
  const AttentionProblem problem = problem_of(timed);
  const compiler::CompiledProblem compiled = compiler::compile(problem);
  std::vector<std::unique_ptr<ForwardPlan>> plans;
  for (const TileShape& shape : shapes)
    plans.push_back(forward_plan(compiled, shape, modules_of(compiled, Direction::kForward, shape)));
  if (std::string(std::getenv("SCOREMOD_DEVICE_TIMES")) == "build") return;
  const Call& call = call_of(timed, problem);
  const std::vector<double> times = medians_in_turns(plans, call.forward, call.parameters);
  for (std::size_t i = 0; i < plans.size(); ++i) record_time(timed, "forward", shapes[i], times[i]);
}

/// A backward reads what the forward wrote.
void run_forward(const AttentionProblem& problem, const compiler::CompiledProblem& compiled, const Call& call) {
  const TileShape shape = tile_shape(problem, Direction::kForward);
  const auto forward = forward_plan(compiled, shape, modules_of(compiled, Direction::kForward, shape));
  const cuda::DeviceMemory memory(forward->workspace_bytes());
  forward->execute(call.forward, call.parameters, {static_cast<std::byte*>(memory.data()), memory.bytes()});
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
  if (test.shape.family == Family::kHopper && cuda::current_compute_capability() != kHopper)
    GTEST_SKIP() << "no device of compute capability 9.0";
  const bool build_only = std::string(std::getenv("SCOREMOD_DEVICE_TIMES")) == "build";
  if (test.direction == Direction::kForward) {
    const auto plan = forward_plan(compiled, test.shape, modules_of(compiled, test.direction, test.shape));
    if (build_only) return;
    const Call& call = call_of(*test.timed, problem);
    record_time(*test.timed, "forward", test.shape, median_ms(*plan, call.forward, call.parameters));
  } else {
    const auto plan = backward_plan(compiled, test.shape, modules_of(compiled, test.direction, test.shape),
                                    targets_of(compiled, test.direction));
    if (build_only) return;
    const Call& call = call_of(*test.timed, problem);
    run_forward(problem, compiled, call);
    record_time(*test.timed, "backward", test.shape, median_ms(*plan, call.backward, call.parameters));
  }
}
/// Of these, forwards with persistent blocks are timed beside those with a block for each tile of queries, in turns.
constexpr const char* kPersistentTimed[] = {"full",
                                            "causal",
                                            "documents",
                                            "documents causal",
                                            "unequal documents",
                                            "window 512",
                                            "prefix 1024",
                                            "dilated 2",
                                            "2-d neighbourhood",
                                            "global 64 and window 512",
                                            "soft cap",
                                            "full, head dim 64",
                                            "documents, head dim 64",
                                            "full, head dim 256",
                                            "causal, 16384",
                                            "causal, grouped heads",
                                            "causal, 512 of 64"};

class PersistentAttentionKernelTimes : public AttentionKernelTimes {};

TEST_P(PersistentAttentionKernelTimes, OfACase) {
  const std::string name = kPersistentTimed[GetParam()];
  const Timed& timed = *std::ranges::find(kTimed, name, &Timed::name);
  const AttentionProblem problem = problem_of(timed);
  if (cuda::current_compute_capability() != kHopper) GTEST_SKIP() << "no device of compute capability 9.0";
  time_in_turns(timed, {hopper_shapes(problem, Direction::kForward).front(),
                        persistent_hopper_shape(problem, cuda::describe_current_device().multiprocessors)});
}
INSTANTIATE_TEST_SUITE_P(Cases, PersistentAttentionKernelTimes,
                         ::testing::Range(0, static_cast<int>(std::size(kPersistentTimed))));

/// Of these, backwards by two kernels are timed beside those that add dq up beside dk and dv, in turns.
constexpr const char* kLearnedTimed[] = {"learned slopes, causal",
                                         "learned t5 buckets",
                                         "learned relative table",
                                         "learned numbers of keys",
                                         "learned numbers of keys and heads",
                                         "learned slopes, head dim 64",
                                         "learned t5 buckets, head dim 64"};

class LearnedAttentionKernelTimes : public AttentionKernelTimes {};

void time_backwards(const Timed& timed, const AttentionProblem& problem, const std::vector<TileShape>& shapes) {
  const compiler::CompiledProblem compiled = compiler::compile(problem);
  std::vector<std::unique_ptr<BackwardPlan>> plans;
  for (const TileShape& shape : shapes)
    plans.push_back(backward_plan(compiled, shape, modules_of(compiled, Direction::kBackward, shape),
                                  targets_of(compiled, Direction::kBackward)));
  if (std::string(std::getenv("SCOREMOD_DEVICE_TIMES")) == "build") return;
  const Call& call = call_of(timed, problem);
  run_forward(problem, compiled, call);
  const std::vector<double> times = medians_in_turns(plans, call.backward, call.parameters);
  for (std::size_t i = 0; i < plans.size(); ++i) record_time(timed, "backward", shapes[i], times[i]);
}

TEST_P(LearnedAttentionKernelTimes, OfACase) {
  const std::string name = kLearnedTimed[GetParam()];
  const Timed& timed = *std::ranges::find(kTimed, name, &Timed::name);
  const AttentionProblem problem = problem_of(timed);
  const compiler::CompiledProblem compiled = compiler::compile(problem);
  if (cuda::current_compute_capability() != kHopper) GTEST_SKIP() << "no device of compute capability 9.0";
  const std::vector<OperandTarget> targets = targets_of(compiled, Direction::kBackward);
  std::vector<TileShape> shapes = hopper_shapes(problem, Direction::kBackward);
  if (has_differences(targets) && shapes.front().key_step > kMaxDiagonalStep) shapes.erase(shapes.begin());
  shapes.resize(1);
  ASSERT_TRUE(hopper_fused_objections(problem, targets).empty());
  shapes.push_back(hopper_fused_shape(problem));
  time_backwards(timed, problem, shapes);
}
INSTANTIATE_TEST_SUITE_P(Cases, LearnedAttentionKernelTimes,
                         ::testing::Range(0, static_cast<int>(std::size(kLearnedTimed))));

/// Of these, the orders in which a fused backward may add dq up, in turns.
constexpr const char* kOrdersTimed[] = {"full", "causal", "documents", "soft cap", "full, head dim 64"};

class DqOrderAttentionKernelTimes : public AttentionKernelTimes {};

TEST_P(DqOrderAttentionKernelTimes, OfACase) {
  const std::string name = kOrdersTimed[GetParam()];
  const Timed& timed = *std::ranges::find(kTimed, name, &Timed::name);
  if (cuda::current_compute_capability() != kHopper) GTEST_SKIP() << "no device of compute capability 9.0";
  std::vector<TileShape> shapes(3, hopper_fused_shape(problem_of(timed)));
  shapes[1].dq_order = DqOrder::kLateFence;
  shapes[2].dq_order = DqOrder::kEarlyAdditions;
  time_backwards(timed, problem_of(timed), shapes);
}
INSTANTIATE_TEST_SUITE_P(Cases, DqOrderAttentionKernelTimes,
                         ::testing::Range(0, static_cast<int>(std::size(kOrdersTimed))));

class FewQueryAttentionKernelTimes : public AttentionKernelTimes {};

TEST_P(FewQueryAttentionKernelTimes, OfACase) {
  const Timed& timed = kDecoding[GetParam()];
  time_in_turns(timed, decoding_shapes(timed));
}
INSTANTIATE_TEST_SUITE_P(Cases, FewQueryAttentionKernelTimes,
                         ::testing::Range(0, static_cast<int>(std::size(kDecoding))));

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionKernelTimes, ::testing::Range(0, static_cast<int>(timed_shapes().size())));

}  // namespace
}  // namespace scoremod::backend::kernels
