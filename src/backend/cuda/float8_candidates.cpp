#include "backend/cuda/float8_candidates.hpp"

#include <array>
#include <memory>
#include <utility>

#include "backend/cuda/float8_conversions.hpp"
#include "backend/cuda/workspace_alignment.hpp"
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
constexpr int kRevision = 1;

/// An FP8 problem, the bf16 problem that a backend runs in its place, and the place of the latter's tensors in the
/// workspace.
class ConvertedCall {
 public:
  ConvertedCall(const AttentionProblem& given, const AttentionProblem& stored, std::span<const TensorRole> roles)
      : given_(given), stored_(stored) {
    for (const TensorRole role : roles) {
      places_[index(role)] = bytes_;
      bytes_ = add_bytes(bytes_, align_bytes(problem::bytes_of(stored_, role), kWorkspaceAlignment));
    }
  }

  /// The bytes of the tensors. The backend's own workspace comes after them.
  std::size_t bytes() const { return bytes_; }
  std::size_t workspace_bytes(std::size_t engines) const { return with_room_to_align(add_bytes(bytes_, engines)); }

  std::byte* tensor(std::span<std::byte> workspace, TensorRole role) const {
    return workspace.data() + places_[index(role)];
  }
  /// The factor of this name among a call's operands.
  const float* factor(std::span<const void* const> operands, const char* name) const {
    if (!problem::is_tensor_scale(given_, name)) return nullptr;
    return static_cast<const float*>(operands[*problem::operand_number(given_.program, name)]);
  }

  Float8Conversion to_stored(TensorRole role, const void* from, std::span<std::byte> workspace) const {
    return {&given_, from, &stored_, tensor(workspace, role), role};
  }
  Float8Conversion from_stored(TensorRole role, std::span<std::byte> workspace, void* to) const {
    return {&stored_, tensor(workspace, role), &given_, to, role};
  }

 private:
  static std::size_t index(TensorRole role) { return static_cast<std::size_t>(role); }

  const AttentionProblem given_, stored_;
  std::array<std::size_t, 9> places_{};
  std::size_t bytes_ = 0;
};

constexpr std::array kForwardRoles{TensorRole::kQ, TensorRole::kK, TensorRole::kV, TensorRole::kO};
constexpr std::array kBackwardRoles{TensorRole::kQ,  TensorRole::kK,  TensorRole::kV,  TensorRole::kO,
                                    TensorRole::kDO, TensorRole::kDQ, TensorRole::kDK, TensorRole::kDV};

class Float8Forward final : public ForwardPlan {
 public:
  Float8Forward(const AttentionProblem& given, const AttentionProblem& stored,
                std::shared_ptr<const ForwardPlan> engine)
      : call_(given, stored, kForwardRoles), engine_(std::move(engine)), conversions_(Float8Conversions::build()) {}

  std::size_t workspace_bytes() const override { return call_.workspace_bytes(engine_->workspace_bytes()); }

  void execute(const ForwardTensors& tensors, const CallParameters& parameters,
               std::span<std::byte> workspace) const override {
    const std::span<std::byte> memory = aligned(workspace);
    const auto enqueue = [&](const Float8Conversion& each) { conversions_->enqueue(each, parameters.stream); };
    enqueue(call_.to_stored(TensorRole::kQ, tensors.q, memory));
    enqueue(call_.to_stored(TensorRole::kK, tensors.k, memory));
    enqueue(call_.to_stored(TensorRole::kV, tensors.v, memory));
    ForwardTensors stored = tensors;
    stored.q = call_.tensor(memory, TensorRole::kQ);
    stored.k = call_.tensor(memory, TensorRole::kK);
    stored.v = call_.tensor(memory, TensorRole::kV);
    stored.o = call_.tensor(memory, TensorRole::kO);
    stored.amax_o = nullptr;
    engine_->execute(stored, parameters, memory.subspan(call_.bytes()));
    Float8Conversion o = call_.from_stored(TensorRole::kO, memory, tensors.o);
    o.times[0] = call_.factor(tensors.operands, problem::kDescaleOfValues);
    o.scale = call_.factor(tensors.operands, problem::kScaleOfOutput);
    o.largest = tensors.amax_o;
    enqueue(o);
  }

 private:
  const ConvertedCall call_;
  std::shared_ptr<const ForwardPlan> engine_;
  std::unique_ptr<const Float8Conversions> conversions_;
};

class Float8Backward final : public BackwardPlan {
 public:
  /// `attention`: whether it writes dq, dk and dv.
  Float8Backward(const AttentionProblem& given, const AttentionProblem& stored,
                 std::shared_ptr<const BackwardPlan> engine, bool attention)
      : call_(given, stored, kBackwardRoles),
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
    for (const Float8Conversion& each :
         {call_.to_stored(TensorRole::kQ, tensors.q, memory), call_.to_stored(TensorRole::kK, tensors.k, memory),
          call_.to_stored(TensorRole::kV, tensors.v, memory), o, d_o})
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
    plan.note += concat(", of tensors converted from ", to_string(given_.dtype), " to bf16");
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
  for (const TensorRole role : {TensorRole::kQ, TensorRole::kO, TensorRole::kDO, TensorRole::kDQ})
    key.text(to_string(problem::dtype_of(given, role)));
  key.bytes(of_engine);
  return key.written();
}

/// Every conversion reads and writes its elements once, at about the speed of the device's memory.
double milliseconds(const ConvertedCall& call, const AttentionProblem& stored, std::span<const TensorRole> roles,
                    const DeviceRates& rates) {
  double elements = 0;
  for (const TensorRole role : roles)
    elements += static_cast<double>(problem::bytes_of(stored, role) / size_of(problem::dtype_of(stored, role)));
  constexpr double kShareOfPeak = 0.7;
  return (static_cast<double>(call.bytes()) + elements) / (kShareOfPeak * rates.bytes_per_ms);
}

/// A candidate of the stored problem as one of the given one.
Candidate with_conversions(const AttentionProblem& given, const AttentionProblem& stored, Candidate candidate,
                           const Target& target) {
  const std::span<const TensorRole> roles = candidate.task.direction == Direction::kForward
                                                ? std::span<const TensorRole>(kForwardRoles)
                                                : std::span<const TensorRole>(kBackwardRoles);
  const ConvertedCall call(given, stored, roles);
  if (!candidate.structural_key.empty()) {
    candidate.structural_key = [given, of_engine = candidate.structural_key] {
      return structural_key(given, of_engine.bytes());
    };
  }
  candidate.known_right = false;
  candidate.label += concat(", of ", to_string(given.dtype));
  candidate.notes.push_back(concat("tensors are converted from ", to_string(given.dtype), " to bf16 and back"));
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
