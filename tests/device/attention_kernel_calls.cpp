#include "device/attention_kernel_calls.hpp"

#include <cstring>

#include "backend/cuda/device/cuda_memory.hpp"
#include "backend/cuda/modules/kernel_cache.hpp"
#include "backend/kernels/backend/kernels_backend.hpp"
#include "backend/kernels/hopper/family.hpp"
#include "base/element.hpp"
#include "base/fail.hpp"
#include "compiler/pipeline.hpp"
#include "problem/tensor_view.hpp"
#include "support/tiled_call.hpp"

namespace scoremod::backend::kernels {
namespace {

using problem::TensorRole;

constexpr const char* kCausalDocuments =
    "operand q_id: i32 [b, q_idx]\noperand kv_id: i32 [b, kv_idx]\nvalue = score\nkeep = q_id == kv_id & kv_idx <= "
    "q_idx";
constexpr const char* kWindow = "value = score\nkeep = kv_idx <= q_idx & q_idx - kv_idx < 512";

constexpr Timed kTimed[] = {
    {"full", kPlain},
    {"causal", kCausal},
    {"documents", kDocuments},
    {"documents causal", kCausalDocuments},
    // One of 2048 and four of 512.
    {"unequal documents",
     "operand q_id: i32 [b, q_idx]\noperand kv_id: i32 [b, kv_idx]\nvalue = score\nkeep = max(q_id, 3) == max(kv_id, "
     "3)"},
    {"soft cap", "value = tanh(score * 0.02) * 50.0"},
    {"2-d neighbourhood",
     "value = score\nkeep = abs(q_idx // 64 - kv_idx // 64) <= 4 & abs(q_idx % 64 - kv_idx % 64) <= 4"},
    {"window 512", kWindow},
    {"prefix 1024", "value = score\nkeep = kv_idx < 1024 | kv_idx <= q_idx"},
    {"dilated 2", "value = score\nkeep = (q_idx - kv_idx) % 2 == 0"},
    {"global 64 and window 512", "value = score\nkeep = kv_idx < 64 | q_idx < 64 | abs(q_idx - kv_idx) < 512"},
    {"documents of heads",
     "operand q_id: i32 [b, h, q_idx]\noperand kv_id: i32 [b, h, kv_idx]\nvalue = score\nkeep = q_id == kv_id"},
    // The cost of nodes: each case has one kind more than another.
    {"ten sums and products",
     "value = ((((score * 1.1 + 0.1) * score + 0.2) * score + 0.3) * score + 0.4) * score + 0.5"},
    {"alibi", "operand x: f32 [h]\nvalue = score + x * f32(kv_idx - q_idx)"},
    {"read by query", "operand x: f32 [q_idx]\nvalue = score * x"},
    {"read by key", "operand x: f32 [kv_idx]\nvalue = score * x"},
    {"bias", "operand x: f32 [h, q_idx, kv_idx]\nvalue = score + x"},
    {"bias, causal", "operand x: f32 [h, q_idx, kv_idx]\nvalue = score + x\nkeep = kv_idx <= q_idx"},
    {"bias, head dim 64", "operand x: f32 [h, q_idx, kv_idx]\nvalue = score + x", {4, 16, 16, 4096, 4096, 64}},
    {"relative table", kRelativeTable},
    {"t5 buckets", kBuckets},
    {"quotient", "value = score / (1.0 + abs(score))"},
    {"floor division", "value = score + f32((q_idx + kv_idx) // 7)"},
    // Nothing here may overflow: rows that are not finite are recomputed one by one.
    {"exponential", "value = score * exp(-abs(score))"},
    {"logarithm", "value = log(1.5 + abs(score))"},
    {"sigmoid", "value = sigmoid(score)"},
    {"sine", "value = sin(score)"},
    {"power", "value = pow(1.5 + abs(score), 1.3)"},
    {"gelu", "value = gelu(score)"},
    // The cost of operand gradients.
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
    // The cost of sizes.
    {"full, head dim 64", kPlain, {.dim = 64}},
    {"documents, head dim 64", kDocuments, {.dim = 64}},
    {"documents causal, head dim 64", kCausalDocuments, {.dim = 64}},
    {"causal, head dim 64", kCausal, {.dim = 64}},
    {"window 512, head dim 64", kWindow, {.dim = 64}},
    {"full, head dim 256", kPlain, {.dim = 256}},
    {"full, head dims 192 and 128", kPlain, {.dim = 192, .dim_v = 128}},
    {"causal, head dims 192 and 128", kCausal, {.dim = 192, .dim_v = 128}},
    {"window 512, head dims 192 and 128", kWindow, {.dim = 192, .dim_v = 128}},
    {"documents, head dims 192 and 128", kDocuments, {.dim = 192, .dim_v = 128}},
    {"documents causal, head dims 192 and 128", kCausalDocuments, {.dim = 192, .dim_v = 128}},
    {"soft cap, head dims 192 and 128", "value = 50.0 * tanh(score / 50.0)", {.dim = 192, .dim_v = 128}},
    {"causal, 16384", kCausal, {.batch = 1, .seq_q = 16384, .seq_kv = 16384}},
    {"causal, 512 of 64", kCausal, {.batch = 16, .seq_q = 512, .seq_kv = 512, .dim = 64}},
    {"causal, 2048 of 64", kCausal, {.batch = 8, .seq_q = 2048, .seq_kv = 2048, .dim = 64}},
    {"causal, grouped heads", kCausal, {.batch = 1, .heads_q = 32, .heads_kv = 8, .seq_q = 8192, .seq_kv = 8192}},
    {"full, 64 heads over 8", kPlain, {.batch = 1, .heads_q = 64, .heads_kv = 8}},
    {"causal, 64 heads over 8", kCausal, {.batch = 1, .heads_q = 64, .heads_kv = 8}},
    {"window 512, 64 heads over 8", kWindow, {.batch = 1, .heads_q = 64, .heads_kv = 8}},
    {"documents causal, 64 heads over 8", kCausalDocuments, {.batch = 1, .heads_q = 64, .heads_kv = 8}},
    {"one query", kPlain, {.batch = 16, .heads_q = 32, .heads_kv = 8, .seq_q = 1, .seq_kv = 8192}},
    {"eight queries", kPlain, {.batch = 16, .heads_q = 32, .heads_kv = 8, .seq_q = 8, .seq_kv = 8192}},
    // The cost of float32.
    {"full f32", kPlain, {}, DType::kF32},
    {"causal f32", kCausal, {}, DType::kF32},
    {"documents f32", kDocuments, {}, DType::kF32},
    {"full f32, 1024 of 64", kPlain, {.seq_q = 1024, .seq_kv = 1024, .dim = 64}, DType::kF32},
    {"full f32, head dim 256", kPlain, {.batch = 1, .dim = 256}, DType::kF32},
};

struct Describe {
  static std::string tile(const char* family, const TileShape& shape) {
    return concat(family, " ", shape.queries, "x", shape.keys, " warps ", shape.warps, " row tiles ", shape.row_tiles,
                  " blocks ", shape.blocks);
  }
  std::string operator()(const PortableShape& shape) const {
    return concat(tile("portable", shape), " step ", shape.step, " part ", shape.part, " key step ", shape.key_step);
  }
  std::string operator()(const HopperShape& shape) const {
    return concat(tile("hopper", shape), " step ", shape.step, " key step ", shape.key_step, " stages ", shape.stages,
                  " key stages ", shape.key_stages, " persistent CTAs ", shape.persistent_ctas, " heads together ",
                  shape.heads_together, shape.ordered ? " ordered" : "", shape.fused ? " fused" : "",
                  shape.turn_ctas > 0 ? " in turns" : "",
                  shape.dq_order == DqOrder::kLateFence        ? ", late fence"
                  : shape.dq_order == DqOrder::kEarlyAdditions ? ", early additions"
                                                               : "");
  }
  std::string operator()(const SplitKvShape& shape) const {
    return concat(tile(shape.traits().name, shape), " stages ", shape.stages, " teams ", shape.teams, " splits ",
                  shape.splits, " persistent CTAs ", shape.persistent_ctas);
  }
  std::string operator()(const Float8Shape& shape) const {
    return concat(tile("FP8 products", shape), " stages ", shape.stages);
  }
  std::string operator()(const std::shared_ptr<const Variant>&) const { return "another"; }
};

}  // namespace

std::span<const Timed> timed_problems() { return kTimed; }
const Timed& timed_problem(const std::string& name) { return *std::ranges::find(kTimed, name, &Timed::name); }

AttentionProblem problem_of(const Timed& timed) {
  AttentionProblem p;
  p.batch = timed.sizes.batch;
  p.heads_q = timed.sizes.heads_q;
  p.heads_kv = timed.sizes.heads_kv;
  p.seq_q = timed.sizes.seq_q;
  p.seq_kv = timed.sizes.seq_kv;
  p.dim_qk = timed.sizes.dim;
  p.dim_v = timed.sizes.dim_v > 0 ? timed.sizes.dim_v : p.dim_qk;
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

Call::Call(const AttentionProblem& problem, const ProblemInputs& inputs) {
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
    constexpr std::int64_t kRepeated = std::int64_t{4096} * 7;
    std::vector<std::byte> bytes(kRepeated * size_of(operand.dtype));
    for (std::int64_t i = 0; i < kRepeated; ++i) {
      const std::int64_t document = i % 4096 / 512;
      store_element(bytes.data(), operand.dtype, i,
                    operand.dtype == DType::kI32 ? static_cast<double>(document) : 1 + static_cast<double>(i % 7) / 16);
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
  parameters.stream = cuda::own_stream();
}

void record_time(const Timed& timed, const char* direction, const AnyShape& shape, double ms) {
  const KernelTraits traits = traits_of(shape);
  const std::string line = concat(R"({"kind": "time", "case": ")", timed.name, traits.persistent ? "/persistent" : "",
                                  traits.loaded_bias ? "/copied" : "", R"(", "direction": ")", direction,
                                  R"(", "shape": ")", std::visit(Describe{}, shape), R"(", "ms": )", ms, "}");
  std::printf("%s\n", line.c_str());
  test::record_line(line);
}

std::vector<OperandTarget> targets_of(const compiler::CompiledProblem& compiled, Direction direction) {
  if (direction == Direction::kForward) return {};
  return operand_targets(compiled, problem::operands_with_gradient(compiled.problem), Gains::kBeside);
}

HopperShape hopper_backward_shape(const AttentionProblem& problem, std::span<const OperandTarget> targets) {
  std::vector<HopperShape> shapes = hopper_shapes(problem, Direction::kBackward);
  if (has_differences(targets)) {
    std::erase_if(shapes, [](const HopperShape& shape) { return shape.key_step > kMaxDiagonalStep; });
  }
  return shapes.at(0);
}

std::shared_ptr<LoadedModules> modules_of(const compiler::CompiledProblem& compiled, Direction direction,
                                          const AnyShape& shape) {
  const std::string source = render_all(attention_source(compiled, direction, shape, targets_of(compiled, direction)));
  return std::make_shared<LoadedModules>(
      std::vector<std::string>{cuda::cached_kernels(source, tiled_variant(shape)->instructions())});
}

const Call& call_of(const Timed& timed, const AttentionProblem& problem) {
  static const ProblemInputs inputs = random_inputs(problem_of(kTimed[0]));
  static const Timed* made = nullptr;
  static std::unique_ptr<Call> call;
  if (made != &timed) {
    call.reset();
    call = std::make_unique<Call>(problem, inputs);
    made = &timed;
  }
  return *call;
}

void run_forward(const AttentionProblem& problem, const compiler::CompiledProblem& compiled, const Call& call) {
  const PortableShape shape = portable_shape(problem, Direction::kForward);
  const auto forward = forward_plan(test::attention_call(compiled, Direction::kForward, shape),
                                    modules_of(compiled, Direction::kForward, shape));
  const cuda::DeviceMemory memory(forward->workspace_bytes());
  forward->execute(call.forward, call.parameters, {static_cast<std::byte*>(memory.data()), memory.bytes()});
}

bool builds_alone() { return std::string(std::getenv("SCOREMOD_DEVICE_TIMES")) == "build"; }

void time_forwards(const Timed& timed, const std::vector<AnyShape>& shapes) {
  const AttentionProblem problem = problem_of(timed);
  const compiler::CompiledProblem compiled = compiler::compile(problem);
  std::vector<std::unique_ptr<ForwardPlan>> plans;
  for (const AnyShape& shape : shapes)
    plans.push_back(forward_plan(test::attention_call(compiled, Direction::kForward, shape),
                                 modules_of(compiled, Direction::kForward, shape)));
  if (builds_alone()) return;
  const Call& call = call_of(timed, problem);
  const std::vector<double> times =
      medians_in_turns(plans, call.forward, call.parameters, std::holds_alternative<SplitKvShape>(shapes.front()));
  for (std::size_t i = 0; i < plans.size(); ++i) record_time(timed, "forward", shapes[i], times[i]);
}

void time_backwards(const Timed& timed, const std::vector<AnyShape>& shapes) {
  const AttentionProblem problem = problem_of(timed);
  const compiler::CompiledProblem compiled = compiler::compile(problem);
  std::vector<std::unique_ptr<BackwardPlan>> plans;
  for (const AnyShape& shape : shapes)
    plans.push_back(backward_plan(
        test::attention_call(compiled, Direction::kBackward, shape, targets_of(compiled, Direction::kBackward)),
        modules_of(compiled, Direction::kBackward, shape)));
  if (builds_alone()) return;
  const Call& call = call_of(timed, problem);
  run_forward(problem, compiled, call);
  const std::vector<double> times = medians_in_turns(plans, call.backward, call.parameters);
  for (std::size_t i = 0; i < plans.size(); ++i) record_time(timed, "backward", shapes[i], times[i]);
}

}  // namespace scoremod::backend::kernels
