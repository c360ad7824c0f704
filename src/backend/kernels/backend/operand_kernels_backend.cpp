#include <algorithm>
#include <utility>

#include "backend/cuda/device/cuda_memory.hpp"
#include "backend/cuda/device/library.hpp"
#include "backend/cuda/device/workspace_alignment.hpp"
#include "backend/cuda/float8/float8_candidates.hpp"
#include "backend/cuda/modules/runtime_compiler.hpp"
#include "backend/kernels/backend/kernels_backend.hpp"
#include "backend/kernels/operand_gradients/operand_gradients.hpp"
#include "backend/kernels/portable/family.hpp"
#include "backend/kernels/shared/tiled_variant.hpp"
#include "backend/unsupported.hpp"
#include "base/canonical_bytes.hpp"
#include "base/fail.hpp"

namespace scoremod::backend {
namespace {

using compiler::CompiledProblem;
using kernels::OperandTarget;
using kernels::PortableShape;

/// To be raised when the same source is compiled to something else, or is given other arguments.
constexpr int kRevision = 4;

class OperandKernelsRecipe final : public Recipe {
 public:
  OperandKernelsRecipe(CompiledProblem problem, std::vector<OperandTarget> targets, const PortableShape& shape)
      : problem_(std::move(problem)), targets_(std::move(targets)), shape_(shape) {}

  BuildResult build(const Target& target) const override {
    std::vector<std::string> module{
        cuda::compile_kernels(kernels::render_all(source()), target.device.compute_capability)};
    return {std::make_shared<kernels::Images>(std::move(module)), ""};
  }
  std::shared_ptr<const Artifact> load(std::span<const std::byte> bytes, const Target&) const override {
    return std::make_shared<kernels::Images>(bytes);
  }
  ExecutablePlan plan(std::shared_ptr<const Artifact> artifact, const PlanOptions&) const override {
    ExecutablePlan plan;
    kernels::KernelCall call(problem_, Direction::kBackward, kernels::operand_layout(problem_, targets_, shape_));
    plan.backward = kernels::backward_plan(std::move(call), dynamic_cast<const kernels::Images&>(*artifact).loaded({}));
    plan.note = "by kernels, from tiles of scores";
    return plan;
  }
  bool needs_context() const override { return false; }

  Bytes plan_key(int compute_capability) const {
    CanonicalWriter image;
    image.text("operand kernels").integer(kRevision).integer(compute_capability).bytes(kernels::key_of(source()));
    return image.written();
  }
  Bytes structural_key(int compute_capability) const {
    CanonicalWriter structure;
    structure.text("operand kernels").integer(kRevision).integer(compute_capability);
    structure.bytes(kernels::structure_of(source()));
    kernels::write_branches(structure, kernels::branches_of(problem_.problem));
    return structure.written();
  }

 private:
  kernels::KernelSource source() const { return kernels::operand_source(problem_, targets_, shape_); }

  CompiledProblem problem_;
  std::vector<OperandTarget> targets_;
  PortableShape shape_;
};

class OperandKernelsBackend final : public Backend {
 public:
  const char* name() const override { return "operand_kernels"; }
  const MemorySpace& memory() const override { return cuda::cuda_memory(); }
  /// As the attention kernels'.
  double function_error() const override { return 0x1p-20; }
  double product_error() const override { return 0x1p-20; }
  bool is_companion() const override { return true; }

  std::vector<UnsupportedReason> objections(const CompiledProblem& problem, const Task& task,
                                            const Target* target) const override {
    if (problem::has_float8_keys(problem.problem))
      return objections(cuda::without_float8(problem, task.direction), task, target);
    std::vector<UnsupportedReason> reasons = kernels::problem_objections(problem, Direction::kBackward);
    const std::vector<OperandTarget> targets = targets_of(problem, task);
    if (const std::int64_t entries = kernels::table_entries(problem, targets); entries > kernels::kMaxTableEntries) {
      reasons.push_back(unsupported(Rule::kOperandGradientSize,
                                    concat("gradients from tiles of scores: expected tables of at most ",
                                           kernels::kMaxTableEntries, " entries together, found ", entries)));
    }
    if (const cuda::SharedLibrary& nvrtc = cuda::nvrtc_library(); nvrtc.handle == nullptr)
      reasons.push_back(unsupported(Rule::kNoLibrary, concat("no NVRTC: ", nvrtc.reason)));
    if (target == nullptr || !reasons.empty()) return reasons;
    reasons = kernels::device_objections(target->device);
    const kernels::CallLayout layout = kernels::operand_layout(problem, targets, shape_of(problem));
    for (UnsupportedReason& reason : kernels::memory_objections(layout.launches(), target->device))
      reasons.push_back(std::move(reason));
    return reasons;
  }

  std::vector<Candidate> candidates(const CompiledProblem& problem, const Task& task, const Target& target,
                                    std::vector<UnsupportedReason>& reasons) const override {
    if (problem::has_float8_keys(problem.problem))
      return cuda::float8_candidates(*this, problem, task, target, reasons);
    const std::vector<OperandTarget> targets = targets_of(problem, task);
    const PortableShape shape = shape_of(problem);
    const auto recipe = std::make_shared<OperandKernelsRecipe>(problem, targets, shape);
    const int compute_capability = target.device.compute_capability;
    Candidate candidate;
    candidate.task = task;
    candidate.structural_key = [recipe, compute_capability] { return recipe->structural_key(compute_capability); };
    candidate.plan_key = [recipe, compute_capability] { return recipe->plan_key(compute_capability); };
    candidate.label =
        concat("gradients of ", targets.size(), " operands from tiles of ", shape.queries, "x", shape.keys);
    candidate.notes = {candidate.label};
    candidate.workspace_bytes =
        cuda::with_room_to_align(kernels::operand_layout(problem, targets, shape).workspace_bytes());
    candidate.predicted = kernels::operand_time(problem, targets, shape,
                                                kernels::mask_work(problem, Direction::kBackward, shape.score_tile()),
                                                target.device.rates);
    candidate.nodes = problem.backward->program.nodes().size();
    candidate.recipe = recipe;
    return {std::move(candidate)};
  }

 private:
  static std::vector<OperandTarget> targets_of(const CompiledProblem& problem, const Task& task) {
    return kernels::operand_targets(problem, task.operand_gradients, kernels::Gains::kApart);
  }
  static PortableShape shape_of(const CompiledProblem& problem) {
    return kernels::portable_shape(problem.problem, Direction::kBackward);
  }
};

}  // namespace

const Backend& operand_kernels_backend() {
  static const OperandKernelsBackend backend;
  return backend;
}

}  // namespace scoremod::backend
