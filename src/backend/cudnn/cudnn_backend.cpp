#include "backend/cudnn/cudnn_backend.hpp"

#include "backend/cuda/device/cuda_memory.hpp"
#include "backend/cuda/device/load_stub_driver.hpp"
#include "backend/cudnn/graph/device_target.hpp"
#include "backend/cudnn/graph/engine.hpp"
#include "backend/cudnn/graph/handle.hpp"
#include "backend/cudnn/graph/library.hpp"
#include "backend/cudnn/lowering/fused_gradient.hpp"
#include "backend/cudnn/lowering/page_mask.hpp"
#include "backend/cudnn/lowerings.hpp"
#include "backend/cudnn/problem_rules.hpp"
#include "backend/cudnn/recipe.hpp"
#include "backend/unsupported.hpp"
#include "base/fail.hpp"
#include "verification/verdict.hpp"

namespace scoremod::backend {
namespace {

using compiler::CompiledProblem;
using cudnn::DeviceTarget;
using cudnn::PatternTable;

/// The task in cuDNN's terms; the operands are one at most, as fused_operand_gradients() says.
cudnn::PlanTask plan_task_of(const Task& task) {
  cudnn::PlanTask of{task.direction};
  if (!task.operand_gradients.empty()) of.operand_gradient = task.operand_gradients.front();
  of.engine = task.library_engine;
  return of;
}

class CudnnBackend final : public Backend {
 public:
  explicit CudnnBackend(cudnn::PatternFilter allowed = {}) : allowed_(std::move(allowed)) {}

  const char* name() const override { return "cudnn"; }
  const MemorySpace& memory() const override { return cuda::cuda_memory(); }
  /// cuDNN computes functions by the GPU's approximations. The largest error seen on an H200 with 9.19 was 2^-17.4 (a
  /// tanh, by the LSE of rows with two keys).
  double function_error() const override { return 0x1p-17; }
  bool runs_only_shown() const override { return true; }
  std::string engine_text() const override {
    return concat("cudnn ", cudnn::version_text(cudnn::library().cudnn_version));
  }

  void prepare_building_elsewhere() const override {
    cuda::load_stub_driver();
    cudnn::require_library();
  }
  std::string device_properties_here() const override { return cudnn::device_properties(cudnn::builder_handle()).json; }

  /// Its own locks: construction_turns() says which.
  bool builds_in_turn() const override { return true; }
  std::vector<std::string> library_folders() const override { return cudnn::library_folders(); }

  std::vector<UnsupportedReason> objections(const CompiledProblem& problem, const Task& task,
                                            const Target* target) const override {
    const std::optional<int> capability =
        target == nullptr ? std::nullopt : std::optional(target->device.compute_capability);
    std::vector<UnsupportedReason> reasons = cudnn::problem_objections(problem.problem, task.direction, capability);
    if (!cudnn::library().available) reasons.push_back(unsupported(Rule::kNoLibrary, cudnn::library().reason));
    if (target == nullptr || !cudnn::library().available) return reasons;
    // A problem that the rules above refuse has no graph to ask about.
    if (reasons.empty()) object_to_graph(problem.problem, task.direction, target->device.compute_capability, reasons);
    object_to_table(problem, *target, reasons);
    return reasons;
  }

  std::vector<Candidate> candidates(const CompiledProblem& problem, const Task& task, const Target& target,
                                    std::vector<UnsupportedReason>& reasons) const override {
    if (problem.problem.paged) return candidates_of(cudnn::with_page_mask(problem), task, target, reasons);
    return candidates_of(problem, task, target, reasons);
  }

  std::vector<std::vector<std::uint32_t>> fused_operand_gradients(const CompiledProblem& problem, const Target& target,
                                                                  std::vector<std::string>& notes) const override {
    const std::optional<std::uint32_t> operand = cudnn::fused_gradient_operand(problem);
    if (!operand || !cudnn::library().available) return {};
    const DeviceTarget device = cudnn::device_target(target);
    const PatternTable& table = device.patterns(cudnn::row_class(problem.problem));
    const std::string objection = cudnn::gradient_objection(table, cudnn::bias_gradient(problem.problem, *operand));
    if (objection.empty()) return {{*operand}};
    notes.push_back(
        concat("gradient of '", problem.problem.program.operands()[*operand].name, "' not by cuDNN: ", objection));
    return {};
  }

 private:
  std::vector<Candidate> candidates_of(const CompiledProblem& problem, const Task& task, const Target& target,
                                       std::vector<UnsupportedReason>& reasons) const {
    const DeviceTarget device = cudnn::device_target(target);
    const cudnn::PlanTask plan_task = plan_task_of(task);
    if (!writes(problem, plan_task, reasons)) return {};
    const PatternTable& table = device.patterns(cudnn::row_class(problem.problem));
    cudnn::Lowerings found =
        cudnn::lowerings(problem, plan_task, allowed_ ? allowed_ : cudnn::right_patterns(table, task.direction));
    for (std::string& reason : found.reasons) {
      reasons.push_back(unsupported(Rule::kNoLowering, std::move(reason)));
    }
    std::vector<Candidate> candidates;
    candidates.reserve(found.found.size());
    for (cudnn::Lowering& lowering : found.found) {
      candidates.push_back(cudnn::candidate_of(problem, plan_task, std::move(lowering), device));
    }
    return candidates;
  }

  /// Whether cuDNN writes the operand's gradient that the task asks for; says why not.
  static bool writes(const CompiledProblem& problem, const cudnn::PlanTask& task,
                     std::vector<UnsupportedReason>& reasons) {
    if (!task.operand_gradient || cudnn::fused_gradient_operand(problem) == task.operand_gradient) return true;
    reasons.push_back(
        unsupported(Rule::kNoOperandGradient,
                    concat("cuDNN does not write the gradient of '",
                           problem.problem.program.operands()[*task.operand_gradient].name, "' with dq, dk and dv")));
    return false;
  }

  static void object_to_graph(const AttentionProblem& problem, Direction direction, int compute_capability,
                              std::vector<UnsupportedReason>& reasons) {
    cudnn::ModifierGraph unchanged;
    unchanged.value.kind = cudnn::Ref::Kind::kScore;
    const std::string objection = cudnn::frontend_objection(
        cudnn::attention_graph(problem, {direction}, std::move(unchanged)), compute_capability);
    if (objection.empty()) return;
    reasons.push_back(unsupported(Rule::kEngineRefused,
                                  concat("cudnn-frontend refuses it on sm_", compute_capability, ": ", objection)));
  }

  static void object_to_table(const CompiledProblem& problem, const Target& target,
                              std::vector<UnsupportedReason>& reasons) {
    const DeviceTarget device = cudnn::device_target(target);
    const PatternTable& table = device.patterns(cudnn::row_class(problem.problem));
    if (table.size() == 0) {
      reasons.push_back(unsupported(Rule::kUnexploredVersion, concat("no pattern is known for cuDNN ",
                                                                     device.cudnn_version, ": expected a cuDNN 9")));
    } else if (!table.verified() && verification::verification_mode() == verification::Mode::kNever) {
      reasons.push_back(unsupported(
          Rule::kVerificationForbidden,
          concat("the patterns were verified on ", table.seen_on(), ", not on ", device.architecture, " with cuDNN ",
                 device.cudnn_version, "; SCOREMOD_VERIFICATION=never forbids the trial that would verify them")));
    }
  }

  cudnn::PatternFilter allowed_;  ///< empty: those that the table has seen to be right
};

}  // namespace

std::unique_ptr<const Backend> make_cudnn_backend(cudnn::PatternFilter allowed) {
  return std::make_unique<CudnnBackend>(std::move(allowed));
}

const Backend& cudnn_backend() {
  static const CudnnBackend backend;
  return backend;
}

}  // namespace scoremod::backend
