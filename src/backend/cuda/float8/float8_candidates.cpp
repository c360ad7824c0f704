#include "backend/cuda/float8/float8_candidates.hpp"

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "backend/cuda/device/workspace_alignment.hpp"
#include "backend/cuda/float8/float8_conversions.hpp"
#include "base/byte_count.hpp"
#include "base/canonical_bytes.hpp"
#include "base/fail.hpp"
#include "compiler/pipeline.hpp"
#include "problem/implied_operands.hpp"
#include "problem/stored_problem.hpp"

namespace scoremod::backend::cuda {
namespace {

using compiler::CompiledProblem;
using problem::TensorRole;

/// To be raised when conversions compute something else.
constexpr int kRevision = 3;

/// An FP8 problem, the 16-bit or f32 problem that a backend runs in its place, and the place of the latter's tensors in
/// the workspace.
class ConvertedCall {
 public:
  ConvertedCall(const AttentionProblem& given, const AttentionProblem& stored, std::span<const TensorRole> roles)
      : given_(given), stored_(stored) {
    for (const TensorRole role : roles) {
      places_[index(role)] = bytes_;
      reserve(problem::bytes_of(stored_, role));
    }
    head_scales_ = bytes_;
    if (has_head_scales()) reserve(static_cast<std::size_t>(given_.heads_q) * sizeof(float));
  }

  /// The bytes of the tensors. The backend's own workspace comes after them.
  std::size_t bytes() const { return bytes_; }
  std::size_t workspace_bytes(std::size_t engines) const { return with_room_to_align(add_bytes(bytes_, engines)); }

  /// The number of the operand that holds the keys' scales.
  std::uint32_t keys_scales() const { return *problem::operand_number(given_.program, problem::kDescaleOfKeys); }
  std::byte* tensor(std::span<std::byte> workspace, TensorRole role) const {
    return workspace.data() + places_[index(role)];
  }
  bool has_head_scales() const { return problem::has_head_scales(given_, problem::kDescaleOfKeys); }
  /// The keys' scales of each query head, as the stored problem has them, and what makes them.
  HeadScales head_scales(std::span<const void* const> operands, std::span<std::byte> workspace) const {
    return {factor(operands, problem::kDescaleOfKeys), step_of(problem::kDescaleOfKeys),
            reinterpret_cast<float*>(workspace.data() + head_scales_), given_.heads_q, group()};
  }
  /// Has o multiplied by the values' scales.
  void multiply_by_scales_of_values(Float8Conversion& o, std::span<const void* const> operands) const {
    o.times[0] = factor(operands, problem::kDescaleOfValues);
    if (!problem::has_head_scales(given_, problem::kDescaleOfValues)) return;
    o.times_step = step_of(problem::kDescaleOfValues);
    o.times_group = group();
  }
  /// The factor of this name among a call's operands; null for a tensor that is stored with its block scales.
  const float* factor(std::span<const void* const> operands, const char* name) const {
    if (!problem::is_tensor_scale(given_, name) || problem::has_block_scales(given_, name)) return nullptr;
    return static_cast<const float*>(operands[*problem::operand_number(given_.program, name)]);
  }

  Float8Conversion to_stored(TensorRole role, const void* from, std::span<std::byte> workspace) const {
    return {&given_, from, &stored_, tensor(workspace, role), role};
  }
  /// That of q, k or v, with its block scales if it has any.
  Float8Conversion input(TensorRole role, const void* from, std::span<const void* const> operands,
                         std::span<std::byte> workspace) const {
    Float8Conversion conversion = to_stored(role, from, workspace);
    if (const auto scales = problem::block_scales_of(given_, role)) {
      conversion.block_scales = static_cast<const float*>(operands[scales->operand()]);
      conversion.scale_places = scales->places();
    }
    return conversion;
  }
  Float8Conversion from_stored(TensorRole role, std::span<std::byte> workspace, void* to) const {
    return {&stored_, tensor(workspace, role), &given_, to, role};
  }

 private:
  static std::size_t index(TensorRole role) { return static_cast<std::size_t>(role); }
  void reserve(std::size_t bytes) { bytes_ = add_bytes(bytes_, align_bytes(bytes, kWorkspaceAlignment)); }
  std::int64_t group() const { return given_.heads_q / given_.heads_kv; }
  std::int64_t step_of(const char* scales) const {
    return problem::strides_of(problem::spec_of(given_, *problem::operand_number(given_.program, scales)))[0];
  }

  const AttentionProblem given_, stored_;
  std::array<std::size_t, 9> places_{};
  std::size_t bytes_ = 0, head_scales_ = 0;
};

/// An FP8 KV cache has queries of the stored problem's dtype, which it reads as they are.
constexpr std::array kCacheRoles{TensorRole::kK, TensorRole::kV, TensorRole::kO};
constexpr std::array kForwardRoles{TensorRole::kQ, TensorRole::kK, TensorRole::kV, TensorRole::kO};
constexpr std::array kBackwardRoles{TensorRole::kQ,  TensorRole::kK,  TensorRole::kV,  TensorRole::kO,
                                    TensorRole::kDO, TensorRole::kDQ, TensorRole::kDK, TensorRole::kDV};
std::span<const TensorRole> converted_roles(const AttentionProblem& given, Direction direction) {
  if (given.dtype_kv) return kCacheRoles;
  if (direction == Direction::kForward) return kForwardRoles;
  return kBackwardRoles;
}

class Float8Forward final : public ForwardPlan {
 public:
  Float8Forward(const AttentionProblem& given, const AttentionProblem& stored,
                std::shared_ptr<const ForwardPlan> engine)
      : call_(given, stored, converted_roles(given, Direction::kForward)),
        engine_(std::move(engine)),
        conversions_(Float8Conversions::build()),
        converts_queries_(!given.dtype_kv) {}

  std::size_t workspace_bytes() const override { return call_.workspace_bytes(engine_->workspace_bytes()); }

  void execute(const ForwardTensors& tensors, const CallParameters& parameters,
               std::span<std::byte> workspace) const override {
    const std::span<std::byte> memory = aligned(workspace);
    const auto enqueue = [&](const Float8Conversion& each) { conversions_->enqueue(each, parameters.stream); };
    if (converts_queries_) enqueue(call_.input(TensorRole::kQ, tensors.q, tensors.operands, memory));
    enqueue(call_.input(TensorRole::kK, tensors.k, tensors.operands, memory));
    enqueue(call_.input(TensorRole::kV, tensors.v, tensors.operands, memory));
    ForwardTensors stored = tensors;
    std::vector<const void*> operands;
    if (call_.has_head_scales()) {
      const HeadScales scales = call_.head_scales(tensors.operands, memory);
      conversions_->enqueue(scales, parameters.stream);
      operands.assign(tensors.operands.begin(), tensors.operands.end());
      operands[call_.keys_scales()] = scales.to;
      stored.operands = operands;
    }
    if (converts_queries_) stored.q = call_.tensor(memory, TensorRole::kQ);
    stored.k = call_.tensor(memory, TensorRole::kK);
    stored.v = call_.tensor(memory, TensorRole::kV);
    stored.o = call_.tensor(memory, TensorRole::kO);
    stored.amax_o = nullptr;
    engine_->execute(stored, parameters, memory.subspan(call_.bytes()));
    Float8Conversion o = call_.from_stored(TensorRole::kO, memory, tensors.o);
    call_.multiply_by_scales_of_values(o, tensors.operands);
    o.scale = call_.factor(tensors.operands, problem::kScaleOfOutput);
    o.largest = tensors.amax_o;
    enqueue(o);
  }

 private:
  const ConvertedCall call_;
  std::shared_ptr<const ForwardPlan> engine_;
  std::unique_ptr<const Float8Conversions> conversions_;
  const bool converts_queries_;
};

class Float8Backward final : public BackwardPlan {
 public:
  /// `attention`: whether it writes dq, dk and dv.
  Float8Backward(const AttentionProblem& given, const AttentionProblem& stored,
                 std::shared_ptr<const BackwardPlan> engine, bool attention)
      : call_(given, stored, converted_roles(given, Direction::kBackward)),
        engine_(std::move(engine)),
        conversions_(Float8Conversions::build()),
        attention_(attention) {}

  std::size_t workspace_bytes() const override { return call_.workspace_bytes(engine_->workspace_bytes()); }

  void execute(const BackwardTensors& tensors, const CallParameters& parameters,
               std::span<std::byte> workspace) const override {
    const std::span<std::byte> memory = aligned(workspace);
    load(tensors, parameters, memory);
    BackwardTensors stored = tensors;
    const auto place = [&](TensorRole role) { return call_.tensor(memory, role); };
    stored.q = place(TensorRole::kQ);
    stored.k = place(TensorRole::kK);
    stored.v = place(TensorRole::kV);
    stored.o = place(TensorRole::kO);
    stored.d_o = place(TensorRole::kDO);
    stored.dq = place(TensorRole::kDQ);
    stored.dk = place(TensorRole::kDK);
    stored.dv = place(TensorRole::kDV);
    engine_->execute(stored, parameters, memory.subspan(call_.bytes()));
    if (attention_) store(tensors, parameters, memory);
  }

 private:
  void load(const BackwardTensors& tensors, const CallParameters& parameters, std::span<std::byte> memory) const {
    const float* of_v = call_.factor(tensors.operands, problem::kDescaleOfValues);
    Float8Conversion o = call_.to_stored(TensorRole::kO, tensors.o, memory);
    o.by = {of_v, call_.factor(tensors.operands, problem::kScaleOfOutput)};
    Float8Conversion d_o = call_.to_stored(TensorRole::kDO, tensors.d_o, memory);
    d_o.times = {of_v, call_.factor(tensors.operands, problem::kDescaleOfOutputGradient)};
    for (const Float8Conversion& each : {call_.input(TensorRole::kQ, tensors.q, tensors.operands, memory),
                                         call_.input(TensorRole::kK, tensors.k, tensors.operands, memory),
                                         call_.input(TensorRole::kV, tensors.v, tensors.operands, memory), o, d_o})
      conversions_->enqueue(each, parameters.stream);
  }

  void store(const BackwardTensors& tensors, const CallParameters& parameters, std::span<std::byte> memory) const {
    const auto gradient = [&](TensorRole role, void* to, const char* factor) {
      Float8Conversion conversion = call_.from_stored(role, memory, to);
      conversion.by[0] = call_.factor(tensors.operands, factor);
      conversions_->enqueue(conversion, parameters.stream);
    };
    gradient(TensorRole::kDQ, tensors.dq, problem::kDescaleOfQueries);
    gradient(TensorRole::kDK, tensors.dk, problem::kDescaleOfKeys);
    gradient(TensorRole::kDV, tensors.dv, problem::kDescaleOfValues);
  }

  const ConvertedCall call_;
  std::shared_ptr<const BackwardPlan> engine_;
  std::unique_ptr<const Float8Conversions> conversions_;
  const bool attention_;
};

const char* float8_name(const AttentionProblem& given) { return to_string(problem::dtype_of(given, TensorRole::kK)); }

class Float8Recipe final : public Recipe {
 public:
  Float8Recipe(const AttentionProblem& given, const AttentionProblem& stored, std::shared_ptr<const Recipe> engine,
               bool attention)
      : given_(given), stored_(stored), engine_(std::move(engine)), attention_(attention) {}

  BuildResult build(const Target& target) const override { return engine_->build(target); }
  std::shared_ptr<const Artifact> load(std::span<const std::byte> bytes, const Target& target) const override {
    return engine_->load(bytes, target);
  }
  ExecutablePlan plan(std::shared_ptr<const Artifact> artifact, const PlanOptions& options) const override {
    ExecutablePlan plan = engine_->plan(std::move(artifact), options);
    if (plan.forward) plan.forward = std::make_shared<Float8Forward>(given_, stored_, std::move(plan.forward));
    if (plan.backward)
      plan.backward = std::make_shared<Float8Backward>(given_, stored_, std::move(plan.backward), attention_);
    plan.note += concat(", of tensors converted from ", float8_name(given_), " to ", to_string(stored_.dtype));
    return plan;
  }
  bool needs_context() const override { return engine_->needs_context(); }

 private:
  const AttentionProblem given_, stored_;
  std::shared_ptr<const Recipe> engine_;
  const bool attention_;
};

Bytes structural_key(const AttentionProblem& given, const Bytes& of_engine) {
  CanonicalWriter key;
  key.text("converted from eight bits").integer(kRevision).boolean(given.amax_o);
  for (const TensorRole role : {TensorRole::kQ, TensorRole::kK, TensorRole::kO, TensorRole::kDO, TensorRole::kDQ})
    key.text(to_string(problem::dtype_of(given, role)));
  for (const char* scales : {problem::kDescaleOfKeys, problem::kDescaleOfValues})
    key.boolean(problem::has_head_scales(given, scales));
  for (const TensorRole role : {TensorRole::kQ, TensorRole::kK, TensorRole::kV})
    key.boolean(problem::has_block_scales(given, problem::descale_of(role)));
  key.bytes(of_engine);
  return key.written();
}

/// Every conversion reads and writes its elements once, at about the speed of the device's memory.
double milliseconds(const ConvertedCall& call, const AttentionProblem& stored, std::span<const TensorRole> roles,
                    const DeviceRates& rates) {
  double elements = 0;
  for (const TensorRole role : roles) {
    const auto count = problem::bytes_of(stored, role) / size_of(problem::dtype_of(stored, role));
    elements += static_cast<double>(count);
  }
  constexpr double kShareOfPeak = 0.7;
  return (static_cast<double>(call.bytes()) + elements) / (kShareOfPeak * rates.bytes_per_ms);
}

/// A candidate of the stored problem as one of the given one.
Candidate with_conversions(const AttentionProblem& given, const AttentionProblem& stored, Candidate candidate,
                           const Target& target) {
  const std::span<const TensorRole> roles = converted_roles(given, candidate.task.direction);
  const ConvertedCall call(given, stored, roles);
  if (!candidate.structural_key.empty()) {
    candidate.structural_key = [given, of_engine = candidate.structural_key] {
      return structural_key(given, of_engine.bytes());
    };
  }
  candidate.known_right.reset();
  candidate.label += concat(given.dtype_kv ? ", of k and v in " : ", of ", float8_name(given));
  candidate.notes.push_back(
      given.dtype_kv ? concat("k and v are converted from ", float8_name(given), " to ", to_string(stored.dtype))
                     : concat("tensors are converted from ", float8_name(given), " to bf16 and back"));
  candidate.predicted.milliseconds += milliseconds(call, stored, roles, target.device.rates);
  if (candidate.workspace_bytes) candidate.workspace_bytes = call.workspace_bytes(*candidate.workspace_bytes);
  candidate.recipe =
      std::make_shared<Float8Recipe>(given, stored, std::move(candidate.recipe), candidate.task.attention);
  return candidate;
}

}  // namespace

CompiledProblem without_float8(const CompiledProblem& problem, Direction direction) {
  // A backward of sm_90a's kernels reads d_o in the dtype of q. A forward's o is rounded once, to the requested dtype.
  const DType dtype_o = direction == Direction::kForward ? DType::kF32 : DType::kBF16;
  return compiler::compile(problem::stored_problem(problem.problem, dtype_o));
}

std::vector<Candidate> float8_candidates(const Backend& engine, const CompiledProblem& problem, const Task& task,
                                         const Target& target, std::vector<UnsupportedReason>& reasons) {
  const CompiledProblem stored = without_float8(problem, task.direction);
  std::vector<Candidate> candidates;
  for (Candidate& candidate : engine.candidates(stored, task, target, reasons))
    candidates.push_back(with_conversions(problem.problem, stored.problem, std::move(candidate), target));
  return candidates;
}

}  // namespace scoremod::backend::cuda
