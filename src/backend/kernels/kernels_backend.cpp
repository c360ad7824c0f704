#include "backend/kernels/kernels_backend.hpp"

#include <algorithm>
#include <utility>

#include "backend/cuda/cuda_memory.hpp"
#include "backend/cuda/float8_candidates.hpp"
#include "backend/cuda/library.hpp"
#include "backend/cuda/workspace_alignment.hpp"
#include "backend/kernels/attention_time.hpp"
#include "backend/kernels/device_fit.hpp"
#include "backend/kernels/direction_kernels.hpp"
#include "backend/kernels/few_queries_shape.hpp"
#include "backend/kernels/few_queries_time.hpp"
#include "backend/kernels/hopper_shape.hpp"
#include "backend/kernels/operand_kernels.hpp"
#include "backend/kernels/recipe.hpp"
#include "backend/unsupported.hpp"
#include "base/canonical_bytes.hpp"
#include "base/fail.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend {
namespace {

using compiler::CompiledProblem;
using kernels::OperandSum;
using kernels::OperandTarget;
using kernels::TileShape;

/// To be raised when the same source is compiled to something else, or is given other arguments.
constexpr int kRevision = 3;
/// Gradients are the same bits from call to call unless that takes so much longer.
constexpr double kOrderWorth = 1.05;

Bytes plan_key(const kernels::KernelsRecipe& recipe, int compute_capability) {
  CanonicalWriter image;
  image.text("attention kernels").integer(kRevision).integer(compute_capability);
  image.bytes(kernels::key_of_source(recipe.problem(), recipe.direction(), recipe.shape(), recipe.targets()));
  image.boolean(recipe.shape().ordered);
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
  structure.bytes(kernels::structure_of_source(recipe.problem(), recipe.direction(), recipe.shape(), recipe.targets()));
  kernels::write_branches(structure, recipe.problem().problem);
  structure.boolean(recipe.shape().splits > 1).boolean(recipe.shape().ordered);
  return structure.written();
}

/// A shape, but for what is an argument of the kernels.
void write_shape(CanonicalWriter& out, const TileShape& shape) {
  const auto& [family, warps, row_tiles, queries, keys, step, part, key_step, element_bytes, blocks, split_keys,
               own_deltas, fused, dq_order, stages, key_stages, persistent_blocks, copied_operand, ordered,
               heads_together, teams, splits] = shape;
  for (const int number : {static_cast<int>(family), warps, row_tiles, queries, keys, step, part, key_step,
                           element_bytes, blocks, static_cast<int>(dq_order), stages, key_stages, teams})
    out.integer(number);
  for (const bool flag : {split_keys, own_deltas, fused, persistent_blocks > 0, ordered, splits > 1}) out.boolean(flag);
  out.integer(copied_operand ? static_cast<std::int64_t>(*copied_operand) : -1);
}

/// A key of a candidate, which follows from the structure and from what is written here: made once for all sizes.
CandidateKey kept_key(const CompiledProblem& problem, std::shared_ptr<const kernels::KernelsRecipe> recipe,
                      int compute_capability, Bytes (*make)(const kernels::KernelsRecipe&, int), const char* name) {
  return [recipe = std::move(recipe), derived = problem.derived.values(), compute_capability, make, name] {
    if (derived == nullptr) return make(*recipe, compute_capability);
    CanonicalWriter from;
    from.text(name).integer(compute_capability).integer(static_cast<int>(recipe->direction()));
    write_shape(from, recipe->shape());
    kernels::write_branches(from, recipe->problem().problem);
    from.list(recipe->targets().size());
    for (const OperandTarget& target : recipe->targets())
      from.integer(target.operand).integer(static_cast<int>(target.sum));
    return *derived->get<Bytes>(from.written(), [&] { return make(*recipe, compute_capability); });
  };
}

std::vector<UnsupportedReason> shape_objections(const CompiledProblem& problem, Direction direction,
                                                const TileShape& shape, const DeviceProperties& device) {
  return kernels::memory_objections(kernels::DirectionKernels(problem, direction, shape).launches(), device);
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
  /// of its sum of three is 2^-22 again (device/attention_products.cuh).
  double product_error() const override { return 0x1p-20; }

  std::vector<UnsupportedReason> objections(const CompiledProblem& problem, const Task& task,
                                            const Target* target) const override {
    if (is_float8(problem.problem.dtype))
      return objections(cuda::without_float8(problem, task.direction), task, target);
    std::vector<UnsupportedReason> reasons = kernels::DirectionKernels::unsupported_reasons(problem);
    if (!task.attention) {
      reasons.push_back(unsupported(Rule::kNoOperandGradient,
                                    "these kernels write operands' gradients beside dq, dk "
                                    "and dv alone"));
    } else if (!task.operand_gradients.empty() && targets_of(problem, task).empty()) {
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
    reasons = kernels::device_objections(target->device);
    for (UnsupportedReason& reason : shape_objections(
             problem, task.direction, kernels::tile_shapes(problem.problem, task.direction).back(), target->device))
      reasons.push_back(std::move(reason));
    return reasons;
  }

  std::vector<Candidate> candidates(const CompiledProblem& problem, const Task& task, const Target& target,
                                    std::vector<UnsupportedReason>& reasons) const override {
    if (is_float8(problem.problem.dtype)) return cuda::float8_candidates(*this, problem, task, target, reasons);
    std::vector<Candidate> candidates;
    const std::vector<OperandTarget> targets = targets_of(problem, task);
    const auto add = [&](const std::vector<TileShape>& shapes) {
      if (shapes.empty()) return;
      const kernels::MaskWork mask = kernels::mask_work(problem, task.direction, shapes.front());
      for (const TileShape& shape : shapes) {
        const kernels::DirectionKernels made(problem, task.direction, shape);
        if (!kernels::memory_objections(made.launches(), target.device).empty()) continue;
        Candidate candidate = candidate_of(problem, task, target, made, &shape == &shapes.back());
        candidate.predicted = kernels::attention_time(problem, task.direction, shape, mask, target.device.rates);
        if (!targets.empty() && !add_gains(candidate, problem, targets, shape, mask, target.device)) continue;
        candidates.push_back(std::move(candidate));
      }
    };
    const std::vector<UnsupportedReason> against =
        kernels::hopper_objections(problem.problem, task.direction, target.device.compute_capability);
    reasons.insert(reasons.end(), against.begin(), against.end());
    if (against.empty()) {
      std::vector<TileShape> shapes = kernels::hopper_shapes(problem.problem, task.direction);
      if (task.direction == Direction::kBackward) {
        add(shapes);
        add_fused(problem, task, target, candidates, reasons);
      } else {
        if (target.device.multiprocessors > 0 && kernels::has_persistent_hopper_shape(problem.problem))
          shapes.push_back(kernels::persistent_hopper_shape(problem.problem, target.device.multiprocessors));
        const std::vector<TileShape> ordered = kernels::ordered_hopper_shapes(problem, shapes);
        if (const auto operand = kernels::copied_operand(problem.problem, task.direction))
          shapes.push_back(kernels::copying_hopper_shape(problem.problem, *operand));
        add(shapes);
        add(ordered);
      }
    }
    if (have_no_sums(targets)) add(kernels::tile_shapes(problem.problem, task.direction));
    if (task.direction == Direction::kForward) add_few_queries(problem, task, target, candidates, reasons);
    return candidates;
  }

  std::vector<std::vector<std::uint32_t>> fused_operand_gradients(const CompiledProblem& problem, const Target& target,
                                                                  std::vector<std::string>& notes) const override {
    if (is_float8(problem.problem.dtype))
      return fused_operand_gradients(cuda::without_float8(problem, Direction::kBackward), target, notes);
    const Task task{Direction::kBackward, true, problem::operands_with_gradient(problem.problem)};
    const std::vector<OperandTarget> targets = targets_of(problem, task);
    const bool can =
        !targets.empty() &&
        (have_no_sums(targets) ||
         kernels::hopper_objections(problem.problem, task.direction, target.device.compute_capability).empty()) &&
        objections(problem, task, &target).empty();
    if (!can) return {};
    return {task.operand_gradients};
  }

 private:
  /// The kernels that add dq up in no fixed order, the one that copies an operand's tiles before the other. Whatever
  /// the sizes they are there, for a trial at others. `candidates` are the other Hopper kernels.
  static void add_fused(const CompiledProblem& problem, const Task& task, const Target& target,
                        std::vector<Candidate>& candidates, std::vector<UnsupportedReason>& reasons) {
    add_fused(problem, task, target, kernels::hopper_fused_shape(problem.problem), candidates, reasons);
    if (const auto operand = kernels::copied_operand(problem.problem, task.direction))
      add_fused(problem, task, target, kernels::copying_fused_shape(problem.problem, *operand), candidates, reasons);
  }
  static void add_fused(const CompiledProblem& problem, const Task& task, const Target& target, const TileShape& shape,
                        std::vector<Candidate>& candidates, std::vector<UnsupportedReason>& reasons) {
    const std::vector<OperandTarget> targets = targets_of(problem, task);
    const std::vector<UnsupportedReason> against = kernels::hopper_fused_objections(problem.problem, shape, targets);
    reasons.insert(reasons.end(), against.begin(), against.end());
    if (!against.empty()) return;
    const kernels::DirectionKernels made(problem, task.direction, shape);
    if (!kernels::memory_objections(made.launches(), target.device).empty()) return;
    const kernels::MaskWork mask = kernels::mask_work(problem, task.direction, shape);
    Candidate candidate = candidate_of(problem, task, target, made, false);
    Prediction& predicted = candidate.predicted;
    predicted = kernels::attention_time(problem, task.direction, shape, mask, target.device.rates);
    if (!targets.empty() && !add_gains(candidate, problem, targets, shape, mask, target.device)) return;
    predicted.milliseconds *= kOrderWorth;
    predicted.source += concat("; times ", kOrderWorth, ", for gradients in no fixed order");
    candidates.insert(candidates.begin(), std::move(candidate));
  }

  /// Portable kernels' registers are full without sums for operands' gradients; what is written at once takes none, and
  /// a sink's are a kernel of their own.
  static bool have_no_sums(const std::vector<OperandTarget>& targets) {
    return std::ranges::all_of(targets, [](const OperandTarget& target) {
      return target.sum == OperandSum::kElement || target.sum == OperandSum::kSink;
    });
  }

  /// Adds the time and workspace of operand gradients beside dq, dk and dv; false if this shape has no room for them.
  static bool add_gains(Candidate& candidate, const CompiledProblem& problem, const std::vector<OperandTarget>& targets,
                        const TileShape& shape, const kernels::MaskWork& mask, const DeviceProperties& device) {
    if (kernels::has_differences(targets) && !shape.fused && shape.key_step > kernels::kMaxDiagonalStep) return false;
    const kernels::OperandKernels made(problem, targets, shape, kernels::Gains::kBeside);
    if (!kernels::memory_objections(made.launches(), device).empty()) return false;
    candidate.workspace_bytes = cuda::with_room_to_align(made.workspace_bytes());
    candidate.predicted.milliseconds += kernels::gains_time(problem, targets, shape, mask, device.rates);
    return true;
  }

  static void add_few_queries(const CompiledProblem& problem, const Task& task, const Target& target,
                              std::vector<Candidate>& candidates, std::vector<UnsupportedReason>& reasons) {
    const std::vector<UnsupportedReason> against = kernels::few_query_objections(problem.problem);
    reasons.insert(reasons.end(), against.begin(), against.end());
    if (!against.empty()) return;
    std::vector<TileShape> shapes = kernels::few_query_shapes(problem.problem, target.device);
    for (const TileShape& shape : hopper_few_query_shapes(problem.problem, target.device, reasons))
      shapes.push_back(shape);
    for (const TileShape& shape : shapes) {
      const kernels::DirectionKernels made(problem, task.direction, shape);
      if (!kernels::memory_objections(made.launches(), target.device).empty()) continue;
      candidates.push_back(candidate_of(problem, task, target, made, false));
      candidates.back().predicted = kernels::few_query_time(
          problem, shape, kernels::mask_work(problem, task.direction, shape), target.device.rates);
    }
  }

  static std::vector<TileShape> hopper_few_query_shapes(const AttentionProblem& problem, const DeviceProperties& device,
                                                        std::vector<UnsupportedReason>& reasons) {
    if (!kernels::hopper_objections(problem, Direction::kForward, device.compute_capability).empty()) return {};
    const std::vector<UnsupportedReason> against = kernels::hopper_few_query_objections(problem);
    reasons.insert(reasons.end(), against.begin(), against.end());
    if (!against.empty()) return {};
    return kernels::hopper_few_query_shapes(problem, device.multiprocessors);
  }

  static Candidate candidate_of(const CompiledProblem& problem, const Task& task, const Target& target,
                                const kernels::DirectionKernels& made, bool last) {
    const std::vector<OperandTarget> targets = targets_of(problem, task);
    const AttentionProblem& p = problem.problem;
    const TileShape& shape = made.shape();
    const auto recipe = std::make_shared<kernels::KernelsRecipe>(
        problem, task.direction, shape, last && shape.family == kernels::Family::kPortable, targets);
    const int compute_capability = target.device.compute_capability;
    Candidate candidate;
    candidate.task = task;
    candidate.structural_key = kept_key(problem, recipe, compute_capability, structural_key, "structure of kernels");
    candidate.plan_key = kept_key(problem, recipe, compute_capability, plan_key, "kernels");
    candidate.refusal_key = [recipe, compute_capability] { return refusal_key(*recipe, compute_capability); };
    candidate.label = concat(
        task.direction == Direction::kForward ? "forward " : "backward ", to_string(p.dtype), " d", p.dim_qk, " by ",
        to_string(shape.family), " kernels with tiles of ", shape.queries, "x", shape.keys,
        shape.persistent_blocks > 0 ? " by persistent blocks" : "", shape.ordered ? ", the longest rows first" : "",
        shape.copied_operand ? concat(", tiles of ", p.program.operands()[*shape.copied_operand].name, " copied") : "",
        shape.fused ? ", dq added up beside dk and dv" : "", targets.empty() ? "" : ", with operands' gradients");
    candidate.notes = {candidate.label};
    candidate.workspace_bytes = cuda::with_room_to_align(made.workspace_bytes());
    candidate.nodes = problem.forward.program.nodes().size();
    candidate.recipe = recipe;
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

const Backend& kernels_backend() {
  static const KernelsBackend backend;
  return backend;
}

}  // namespace scoremod::backend
