#include "backend/kernels/backend/kernels_backend.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

#include "backend/cuda/device/cuda_memory.hpp"
#include "backend/cuda/device/library.hpp"
#include "backend/cuda/device/workspace_alignment.hpp"
#include "backend/cuda/float8/float8_candidates.hpp"
#include "backend/kernels/family.hpp"
#include "backend/kernels/float8/family.hpp"
#include "backend/kernels/hopper/family.hpp"
#include "backend/kernels/operand_gradients/operand_gradients.hpp"
#include "backend/kernels/portable/family.hpp"
#include "backend/kernels/shared/tiled_variant.hpp"
#include "backend/kernels/split_kv/family.hpp"
#include "backend/unsupported.hpp"
#include "base/canonical_bytes.hpp"
#include "base/fail.hpp"
#include "base/fork_mutex.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend {
namespace {

using compiler::CompiledProblem;
using kernels::KernelFamily;
using kernels::OperandSum;
using kernels::OperandTarget;
using kernels::Work;

/// In the order in which explain lists their candidates.
constexpr const KernelFamily* kFamilies[]{&kernels::kHopperFamily, &kernels::kFloat8Family, &kernels::kPortableFamily,
                                          &kernels::kSplitKvFamily};

/// Never destroyed: threads may plan while the process ends.
ForkMutex& added_mutex() {
  static auto& made = *new ForkMutex;
  return made;
}

std::vector<const KernelFamily*>& added_families() {
  static std::vector<const KernelFamily*> list;
  return list;
}

std::vector<const KernelFamily*> all_families() {
  std::vector<const KernelFamily*> list(std::begin(kFamilies), std::end(kFamilies));
  const std::scoped_lock lock(added_mutex());
  list.insert(list.end(), added_families().begin(), added_families().end());
  return list;
}

/// To be raised when the same source is compiled to something else, or is given other arguments.
constexpr int kRevision = 5;

Bytes plan_key(const kernels::KernelsRecipe& recipe, int compute_capability) {
  CanonicalWriter image;
  image.text("attention kernels").integer(kRevision).integer(compute_capability);
  image.bytes(kernels::key_of(recipe.source()));
  return image.written();
}

Bytes refusal_key(const kernels::KernelsRecipe& recipe, int compute_capability) {
  CanonicalWriter refusal;
  refusal.bytes(plan_key(recipe, compute_capability));
  recipe.write_refusal_terms(refusal);
  return refusal.written();
}

Bytes structural_key(const kernels::KernelsRecipe& recipe, int compute_capability) {
  CanonicalWriter structure;
  structure.text("attention kernels").integer(kRevision).integer(compute_capability);
  structure.bytes(kernels::structure_of(recipe.source()));
  kernels::write_branches(structure, recipe.branches());
  recipe.variant().write(structure);
  return structure.written();
}

/// A key of a candidate, which follows from the structure and from what is written here: made once for all sizes.
CandidateKey kept_key(const CompiledProblem& problem, std::shared_ptr<const kernels::KernelsRecipe> recipe,
                      int compute_capability, Bytes (*make)(const kernels::KernelsRecipe&, int), const char* name) {
  return [recipe = std::move(recipe), derived = problem.derived.values(), compute_capability, make, name] {
    if (derived == nullptr) return make(*recipe, compute_capability);
    CanonicalWriter from;
    from.text(name).integer(compute_capability).integer(static_cast<int>(recipe->direction()));
    recipe->variant().write(from);
    kernels::write_branches(from, recipe->branches());
    from.list(recipe->targets().size());
    for (const OperandTarget& target : recipe->targets())
      from.integer(target.operand).integer(static_cast<int>(target.sum));
    return *derived->get<Bytes>(from.written(), [&] { return make(*recipe, compute_capability); });
  };
}

void append(std::vector<UnsupportedReason>& to, const std::vector<UnsupportedReason>& more) {
  for (const UnsupportedReason& reason : more) {
    if (std::ranges::find(to, reason.text, &UnsupportedReason::text) == to.end()) to.push_back(reason);
  }
}

class KernelsBackend final : public Backend {
 public:
  const char* name() const override { return "kernels"; }
  const MemorySpace& memory() const override { return cuda::cuda_memory(); }
  /// Sizes are arguments of the kernels.
  bool serves_all_sizes() const override { return true; }
  /// CUDA's functions are at most 4 units in the last place off (CUDA C++ Programming Guide, mathematical functions),
  /// and programs' are made of up to a few of them.
  double function_error() const override { return 0x1p-20; }
  /// A float32 number is split into 11 digits and the rest, of which sm_80's matrix units read 11 digits: 2^-23 of it
  /// is cut off at most. A product leaves out that of the two rests, which is 2^-22 of it at most, and what it cuts off
  /// of its sum of three is 2^-22 again (shared/products.cuh).
  double product_error() const override { return 0x1p-20; }
  /// A problem is held to the coarsest family that has kernels for it, whichever candidate runs.
  ForwardRounding forward_rounding(const CompiledProblem& problem) const override {
    const Work work{problem, Direction::kForward, {}};
    ForwardRounding coarsest;
    for (const KernelFamily* family : families_for(problem)) {
      if (!family->objections(work, nullptr).empty()) continue;
      const auto& [scores, weights, lost_weights] = family->rounding;
      coarsest = {std::max(coarsest.scores, scores), std::max(coarsest.weights, weights),
                  std::max(coarsest.lost_weights, lost_weights)};
    }
    return coarsest;
  }

  std::vector<UnsupportedReason> objections(const CompiledProblem& problem, const Task& task,
                                            const Target* target) const override {
    if (problem::has_float8_keys(problem.problem)) return float8_objections(problem, task, target);
    const std::vector<OperandTarget> targets = targets_of(problem, task);
    const Work work{problem, task.direction, targets};
    std::vector<UnsupportedReason> reasons = family_objections(work, nullptr);
    if (!task.attention) {
      reasons.push_back(unsupported(Rule::kNoOperandGradient,
                                    "these kernels write operands' gradients beside dq, dk "
                                    "and dv alone"));
    } else if (!task.operand_gradients.empty() && targets.empty()) {
      reasons.push_back(
          unsupported(Rule::kNoOperandGradient,
                      concat("beside dq, dk and dv: expected the gradients of at most ", kernels::kMaxTargets,
                             " operands, none of them one along queries and keys that batches or heads share or a "
                             "table, but for one whose indices follow from kv_idx - q_idx and whose sums are no larger "
                             "than q, k, v and o")));
    }
    if (const cuda::SharedLibrary& nvrtc = cuda::nvrtc_library(); nvrtc.handle == nullptr)
      reasons.push_back(unsupported(Rule::kNoLibrary, concat("no NVRTC: ", nvrtc.reason)));
    if (target == nullptr || !reasons.empty()) return reasons;
    return family_objections(work, &target->device);
  }

  std::vector<Candidate> candidates(const CompiledProblem& problem, const Task& task, const Target& target,
                                    std::vector<UnsupportedReason>& reasons) const override {
    if (!problem::has_float8_keys(problem.problem)) return own_candidates(problem, task, target, reasons);
    std::vector<Candidate> candidates = cuda::float8_candidates(*this, problem, task, target, reasons);
    // Some kernels read FP8 tensors as they are. What the others object to is known of 16 bits.
    std::vector<UnsupportedReason> of_eight_bits;
    const bool is_forward = task.direction == Direction::kForward;
    for (Candidate& direct : own_candidates(problem, task, target,
                                            is_float8(problem.problem.dtype) && is_forward ? reasons : of_eight_bits))
      candidates.push_back(std::move(direct));
    return candidates;
  }

  std::vector<std::vector<std::uint32_t>> fused_operand_gradients(const CompiledProblem& problem, const Target& target,
                                                                  std::vector<std::string>& notes) const override {
    if (problem::has_float8_keys(problem.problem))
      return fused_operand_gradients(cuda::without_float8(problem, Direction::kBackward), target, notes);
    const Task task{Direction::kBackward, true, problem::operands_with_gradient(problem.problem)};
    const std::vector<OperandTarget> targets = targets_of(problem, task);
    if (targets.empty() || !objections(problem, task, &target).empty()) return {};
    const Work work{problem, task.direction, targets};
    std::vector<UnsupportedReason> reasons;
    const bool can = std::ranges::any_of(all_families(), [&](const KernelFamily* family) {
      return family->objections(work, &target.device).empty() &&
             !family->variants(work, target.device, reasons).empty();
    });
    if (!can) return {};
    return {task.operand_gradients};
  }

 private:
  static std::vector<const KernelFamily*> families_for(const CompiledProblem& problem) {
    std::vector<const KernelFamily*> families = all_families();
    const bool float8 = is_float8(problem.problem.dtype);
    std::erase_if(families, [&](const KernelFamily* family) { return family->of_float8 != float8; });
    return families;
  }

  /// The candidates of kernels that run the problem as it is.
  static std::vector<Candidate> own_candidates(const CompiledProblem& problem, const Task& task, const Target& target,
                                               std::vector<UnsupportedReason>& reasons) {
    std::vector<Candidate> candidates;
    const std::vector<OperandTarget> targets = targets_of(problem, task);
    const Work work{problem, task.direction, targets};
    for (const KernelFamily* family : families_for(problem)) {
      const std::vector<UnsupportedReason> against = family->objections(work, &target.device);
      append(reasons, against);
      if (!against.empty()) continue;
      for (const auto& variant : family->variants(work, target.device, reasons)) {
        const kernels::CallLayout layout = variant->layout(work);
        if (kernels::memory_objections(layout.launches(), target.device).empty())
          candidates.push_back(candidate_of(task, target, work, *family, variant, layout));
      }
    }
    return candidates;
  }

  std::vector<UnsupportedReason> float8_objections(const CompiledProblem& problem, const Task& task,
                                                   const Target* target) const {
    std::vector<UnsupportedReason> reasons = objections(cuda::without_float8(problem, task.direction), task, target);
    if (problem.problem.amax_gradients && task.direction == Direction::kBackward && task.attention)
      reasons.push_back(unsupported(Rule::kAmaxGradients,
                                    "expected no amax_gradients, found them: the kernels round dq, dk and dv as they "
                                    "store them, and write no magnitudes"));
    return reasons;
  }

  /// Why no family has kernels that fit; empty if one has.
  static std::vector<UnsupportedReason> family_objections(const Work& work, const DeviceProperties* device) {
    std::vector<UnsupportedReason> all;
    for (const KernelFamily* family : families_for(work.problem)) {
      std::vector<UnsupportedReason> against = family->objections(work, device);
      if (against.empty() && device == nullptr) return {};
      if (against.empty()) {
        std::vector<UnsupportedReason> left_out;
        for (const auto& variant : family->variants(work, *device, left_out)) {
          against = kernels::memory_objections(variant->layout(work).launches(), *device);
          if (against.empty()) return {};
        }
        append(all, left_out);
      }
      append(all, against);
    }
    return all;
  }

  static Candidate candidate_of(const Task& task, const Target& target, const Work& work, const KernelFamily& family,
                                const std::shared_ptr<const kernels::Variant>& variant,
                                const kernels::CallLayout& layout) {
    const CompiledProblem& problem = work.problem;
    const AttentionProblem& p = problem.problem;
    const std::vector<OperandTarget> targets(work.targets.begin(), work.targets.end());
    const auto recipe = std::make_shared<kernels::KernelsRecipe>(problem, task.direction, family, variant, targets);
    const int compute_capability = target.device.compute_capability;
    Candidate candidate;
    candidate.task = task;
    candidate.structural_key = kept_key(problem, recipe, compute_capability, structural_key, "structure of kernels");
    candidate.plan_key = kept_key(problem, recipe, compute_capability, plan_key, "kernels");
    candidate.refusal_key = [recipe, compute_capability] { return refusal_key(*recipe, compute_capability); };
    candidate.label = concat(task.direction == Direction::kForward ? "forward " : "backward ", to_string(p.dtype),
                             p.dtype_kv ? concat(" over ", to_string(*p.dtype_kv)) : std::string(), " d", p.dim_qk,
                             " by ", variant->label(work), targets.empty() ? "" : ", with operands' gradients");
    candidate.notes = {candidate.label};
    candidate.workspace_bytes = cuda::with_room_to_align(layout.workspace_bytes());
    candidate.nodes = problem.forward.program.nodes().size();
    candidate.recipe = recipe;
    candidate.predicted = variant->time(work, target.device.rates);
    return candidate;
  }

  /// The operand gradients that are summed beside dq, dk and dv; empty if there are none, or none can be.
  static std::vector<OperandTarget> targets_of(const CompiledProblem& problem, const Task& task) {
    const AttentionProblem& p = problem.problem;
    if (task.operand_gradients.empty() || p.paged) return {};
    if (!problem.backward || !std::ranges::includes(problem::operands_with_gradient(p), task.operand_gradients))
      return {};
    std::vector<OperandTarget> targets =
        kernels::operand_targets(problem, task.operand_gradients, kernels::Gains::kBeside);
    const auto count = [&](OperandSum sum) { return std::ranges::count(targets, sum, &OperandTarget::sum); };
    if (targets.size() > kernels::kMaxTargets) return {};
    const bool fits = count(OperandSum::kDifference) == 0 || diagonal_bytes(p) <= tensor_bytes(p);
    if (count(OperandSum::kDifference) > 1 || !fits) return {};
    return targets;
  }

  /// About what the sums along diagonals take, which grows with both lengths: one for each 64 queries and each key.
  static double diagonal_bytes(const AttentionProblem& p) {
    constexpr double kRows = 64;
    return static_cast<double>(p.batch * p.heads_q) * static_cast<double>(p.seq_q) / kRows *
           static_cast<double>(p.seq_kv) * sizeof(float);
  }
  static double tensor_bytes(const AttentionProblem& p) {
    const auto rows = static_cast<double>(p.batch * (p.heads_q * p.seq_q + p.heads_kv * p.seq_kv));
    return rows * static_cast<double>(p.dim_qk + p.dim_v) * 2;
  }
};

}  // namespace

namespace kernels {

AddedFamily::AddedFamily(const KernelFamily& family, std::span<const cuda::KernelFile> files) {
  cuda::set_added_files(files);
  const std::scoped_lock lock(added_mutex());
  added_families().push_back(&family);
}

AddedFamily::~AddedFamily() {
  const std::scoped_lock lock(added_mutex());
  added_families().pop_back();
  cuda::set_added_files({});
}

}  // namespace kernels

const Backend& kernels_backend() {
  static const KernelsBackend backend;
  return backend;
}

}  // namespace scoremod::backend
