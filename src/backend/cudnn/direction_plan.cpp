#include "backend/cudnn/direction_plan.hpp"

#include "backend/cuda/device/context.hpp"
#include "backend/cuda/device/runtime_call.hpp"
#include "backend/cuda/device/workspace_alignment.hpp"
#include "backend/cudnn/graph/handle.hpp"
#include "backend/cudnn/lowering/page_mask.hpp"
#include "base/byte_count.hpp"
#include "base/fail.hpp"
#include "problem/implied_operands.hpp"
#include "problem/strided_tensor.hpp"

namespace scoremod::backend::cudnn {
namespace {

/// Parts of the workspace, as allocations of their own would lie.
constexpr std::size_t kPartAlignment = cuda::kWorkspaceAlignment;

std::vector<cuda::NodeTensor> node_tensors(const std::vector<ComputedOperand>& computed) {
  std::vector<cuda::NodeTensor> tensors;
  tensors.reserve(computed.size());
  for (const ComputedOperand& operand : computed) tensors.push_back({operand.node, operand.axes, operand.type});
  return tensors;
}

}  // namespace

DirectionPlan::DirectionPlan(const compiler::CompiledProblem& problem, Direction direction, LoweredModifier modifier,
                             std::shared_ptr<const EnginePlan> engine)
    : context_(cuda::current_context()), modifier_(std::move(modifier)), engine_(std::move(engine)) {
  const Program& program = direction == Direction::kForward ? problem.forward.program : problem.backward->program;
  const std::vector<cuda::NodeTensor> computed = node_tensors(modifier_.computed);
  if (!computed.empty()) kernel_ = cuda::ComputeKernel::build(problem.problem, program, computed);
  place_in_workspace(engine_->workspace_bytes());
  for (const cuda::NodeTensor& tensor : computed) {
    const std::size_t bytes = cuda::bytes_of(tensor, problem.problem);
    computed_places_.push_back(place_in_workspace(bytes));
    computed_bytes_ += bytes;
  }
  if (direction == Direction::kForward) {
    stats_place_ = place_in_workspace(problem::lse_tensor(problem.problem).bytes());
  }
  if (problem.problem.tokens_q || problem.problem.tokens_kv || problem.problem.paged) {
    placer_.emplace(problem.problem, direction);
    placer_place_ = place_in_workspace(placer_->layout().workspace_bytes());
    page_mask_ = page_mask_operand(problem.problem);
  }
  if (direction == Direction::kForward && problem.problem.sink != Sink::kNone) sink_ = sink_source(problem.problem);
  if (engine_->uids().size() > kMaxPointers) {
    fail_bug("a plan takes ", engine_->uids().size(), " pointers, more than ", kMaxPointers);
  }
  for (const std::int64_t uid : engine_->uids()) sources_.push_back(source_of(uid));
}

std::size_t DirectionPlan::place_in_workspace(std::size_t bytes) {
  const std::size_t place = workspace_bytes_;
  workspace_bytes_ = add_bytes(workspace_bytes_, align_bytes(bytes, kPartAlignment));
  return place;
}

DirectionPlan::Source DirectionPlan::sink_source(const AttentionProblem& problem) {
  if (const auto learned = problem::sink_operand(problem)) return {Source::Kind::kOperand, *learned};
  cleared_bytes_ = static_cast<std::size_t>(problem.heads_q) * sizeof(float);
  return {Source::Kind::kWorkspace, place_in_workspace(cleared_bytes_)};
}

std::size_t DirectionPlan::page_mask_place() const {
  return placer_place_ + placer_->layout().place_of(kUidNamesPages).value();
}

DirectionPlan::Source DirectionPlan::source_of(std::int64_t uid) const {
  if (uid <= kUidDBias) return {Source::Kind::kAttention, static_cast<std::size_t>(uid)};
  if (uid == kUidScale) return {Source::Kind::kScale, 0};
  if (uid == kUidSink) return sink_;
  if (placer_) {
    if (const auto place = placer_->layout().place_of(uid)) return {Source::Kind::kWorkspace, placer_place_ + *place};
  }
  const TensorBinding& binding = modifier_.bindings.at(static_cast<std::size_t>(uid - kUidModifierTensor));
  switch (binding.kind) {
    case TensorBinding::Kind::kOperand:
      if (binding.operand == page_mask_) return {Source::Kind::kWorkspace, page_mask_place()};
      return {Source::Kind::kOperand, binding.operand};
    case TensorBinding::Kind::kComputed: return {Source::Kind::kWorkspace, computed_places_.at(binding.operand)};
    case TensorBinding::Kind::kOffset: return {Source::Kind::kOffset, static_cast<std::size_t>(binding.axis)};
  }
  fail_bug("a modifier tensor without a source");
}

void DirectionPlan::compute_operands(const CallPointers& call, const CallParameters& parameters,
                                     std::span<std::byte> workspace) const {
  std::array<void*, kMaxPointers> outputs;
  for (std::size_t i = 0; i < computed_places_.size(); ++i) outputs[i] = workspace.data() + computed_places_[i];
  std::vector<const void*> operands;
  if (page_mask_) {
    operands.assign(call.operands.begin(), call.operands.end());
    operands.push_back(workspace.data() + page_mask_place());
  }
  kernel_->execute(page_mask_ ? operands : call.operands,
                   std::span<void* const>(outputs.data(), computed_places_.size()), parameters.offsets,
                   parameters.stream);
}

void DirectionPlan::clear(const CallParameters& parameters, std::span<std::byte> workspace) const {
  cuda::check_runtime(SCOREMOD_CUDART(cudaMemsetAsync)(workspace.data() + sink_.place, 0, cleared_bytes_,
                                                       static_cast<cudaStream_t>(parameters.stream)),
                      "cudaMemsetAsync");
}

void DirectionPlan::execute(const CallPointers& call, const CallParameters& parameters,
                            std::span<std::byte> workspace) const {
  cuda::require_context(context_);
  if (placer_) placer_->execute(call, workspace.data() + placer_place_, parameters.stream);
  if (kernel_) compute_operands(call, parameters, workspace);
  if (cleared_bytes_ > 0) clear(parameters, workspace);
  float scale = parameters.scale;
  std::array<std::int32_t, kAxisCount> offsets{parameters.offsets.batch, parameters.offsets.head,
                                               parameters.offsets.query, parameters.offsets.key};
  std::array<void*, kMaxPointers> pointers;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const Source& source = sources_[i];
    switch (source.kind) {
      case Source::Kind::kAttention: pointers[i] = call.attention[source.place]; break;
      case Source::Kind::kOperand: pointers[i] = const_cast<void*>(call.operands[source.place]); break;
      case Source::Kind::kWorkspace: pointers[i] = workspace.data() + source.place; break;
      case Source::Kind::kOffset: pointers[i] = &offsets[source.place]; break;
      case Source::Kind::kScale: pointers[i] = &scale; break;
    }
    const bool absent = source.kind == Source::Kind::kAttention && pointers[i] == nullptr;
    if (absent && source.place == kUidStats) pointers[i] = workspace.data() + stats_place_;
  }
  engine_->execute(thread_handle(parameters.stream), {pointers.data(), sources_.size()}, workspace.data());
}

}  // namespace scoremod::backend::cudnn
