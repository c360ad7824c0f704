#include "backend/kernels/backend/kernels_backend.hpp"

#include <algorithm>
#include <charconv>
#include <future>
#include <mutex>
#include <string_view>
#include <utility>

#include "backend/cuda/device/cuda_memory.hpp"
#include "backend/cuda/device/library.hpp"
#include "backend/cuda/device/workspace_alignment.hpp"
#include "backend/cuda/float8/float8_candidates.hpp"
#include "backend/cuda/modules/runtime_compiler.hpp"
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
namespace {

/// To be raised when build() refuses for other reasons.
constexpr int kRefusalRevision = 1;

struct Compiled {
  std::string image, report;
};

Compiled compiled(const std::string& text, int compute_capability, cuda::Instructions instructions) {
  Compiled made;
  made.image = cuda::compile_kernels(text, compute_capability, &made.report, instructions);
  return made;
}

/// All modules, side by side: the first in this thread.
std::vector<Compiled> compiled(const std::vector<std::string>& texts, int compute_capability,
                               cuda::Instructions instructions) {
  std::vector<std::future<Compiled>> others;
  for (std::size_t i = 1; i < texts.size(); ++i) {
    others.push_back(std::async(std::launch::async, [&texts, i, compute_capability, instructions] {
      return compiled(texts[i], compute_capability, instructions);
    }));
  }
  std::vector<Compiled> made{compiled(texts.front(), compute_capability, instructions)};
  for (std::future<Compiled>& other : others) made.push_back(other.get());
  return made;
}

bool has_strides(const AttentionProblem& problem) {
  const auto has = [](const std::optional<TensorLayout>& tensor) { return tensor && tensor->strides; };
  return problem.q.strides || problem.k.strides || problem.v.strides || problem.o.strides || has(problem.d_o) ||
         has(problem.dq) || has(problem.dk) || has(problem.dv);
}

/// Whether two problems of one structure, of which `other` has these branches, have the same.
bool has_branches(const AttentionProblem& problem, const AttentionProblem& other, const Branches& branches) {
  if (has_strides(problem) || has_strides(other)) return branches_of(problem) == branches;
  // Each stride of a dense tensor is a multiple of its head dim, which is of the structure.
  return (problem.heads_q == problem.heads_kv) == (other.heads_q == other.heads_kv);
}

}  // namespace

KernelsRecipe::KernelsRecipe(compiler::CompiledProblem problem, Direction direction, const KernelFamily& family,
                             std::shared_ptr<const Variant> variant, std::vector<OperandTarget> targets)
    : problem_(std::move(problem)),
      branches_(branches_of(problem_.problem)),
      direction_(direction),
      family_(family),
      variant_(std::move(variant)),
      targets_(std::move(targets)) {}

BuildResult KernelsRecipe::build(const Target& target) const {
  const std::vector<std::string> texts = render_modules(source());
  std::string report;
  std::vector<std::string> images;
  for (Compiled& module : compiled(texts, target.device.compute_capability, variant_->instructions())) {
    report += module.report;
    images.push_back(std::move(module.image));
  }
  const auto refused = [&](const auto&... why) {
    return BuildResult{nullptr, concat(variant_->label(work()), ": ", why...)};
  };
  if (serializes_products(report)) return refused("ptxas serializes WGMMAs");
  const std::int64_t spill_bytes = register_spill_bytes(report);
  if (spill_bytes > variant_->harmless_spill() && !variant_->may_spill())
    return refused(spill_bytes, " bytes of registers spill");
  return {std::make_shared<const Images>(std::move(images)), ""};
}

std::optional<CallLayout> KernelsRecipe::layout_at_sizes_of(const compiler::CompiledProblem& problem,
                                                            const DeviceProperties& device) const {
  // Which gradients are summed beside dq, dk and dv hangs on the sizes.
  if (!targets_.empty() || !has_branches(problem.problem, problem_.problem, branches_)) return std::nullopt;
  const Work work{problem, direction_, {}};
  if (!family_.objections(work, &device).empty()) return std::nullopt;
  std::shared_ptr<const Variant> same = variant_->at_sizes_of(work, device);
  if (!same) same = same_variant(work, device);
  if (!same) return std::nullopt;
  CallLayout layout = same->layout(work);
  if (!memory_objections(layout.launches(), device).empty()) return std::nullopt;
  return layout;
}

std::optional<ExecutablePlan> KernelsRecipe::plan_at_sizes_of(const compiler::CompiledProblem& problem,
                                                              const DeviceProperties& device, const Artifact& artifact,
                                                              const PlanOptions& options) const {
  std::optional<CallLayout> layout = layout_at_sizes_of(problem, device);
  if (!layout) return std::nullopt;
  return plan_of(problem, std::move(*layout), artifact, options);
}

std::optional<ExecutablePlan> KernelsRecipe::plan_on_few_blocks(const Artifact& artifact) const {
  const std::shared_ptr<const Variant> few = variant_->on_few_ctas();
  if (!few) return std::nullopt;
  return plan_of(problem_, few->layout(work()), artifact, {});
}

std::shared_ptr<const Variant> KernelsRecipe::same_variant(const Work& work, const DeviceProperties& device) const {
  std::vector<UnsupportedReason> left_out;
  for (auto& variant : family_.variants(work, device, left_out))
    if (variant->is_same(*variant_)) return std::move(variant);
  return nullptr;
}

void KernelsRecipe::write_refusal_terms(CanonicalWriter& to) const {
  to.integer(kRefusalRevision).integer(variant_->harmless_spill()).boolean(variant_->may_spill());
  to.integer(cuda::compiler_version());
}

std::shared_ptr<const Artifact> KernelsRecipe::load(std::span<const std::byte> bytes, const Target&) const {
  return std::make_shared<const Images>(bytes);
}

ExecutablePlan KernelsRecipe::plan(std::shared_ptr<const Artifact> artifact, const PlanOptions& options) const {
  ExecutablePlan plan = plan_of(problem_, variant_->layout(work()), *artifact, options);
  plan.note = variant_->label(work());
  return plan;
}

ExecutablePlan KernelsRecipe::plan_of(const compiler::CompiledProblem& problem, CallLayout layout,
                                      const Artifact& artifact, const PlanOptions& options) const {
  std::shared_ptr<LoadedModules> modules = dynamic_cast<const Images&>(artifact).loaded(options.context);
  KernelCall call(problem, direction_, std::move(layout));
  ExecutablePlan plan;
  if (direction_ == Direction::kForward)
    plan.forward = forward_plan(std::move(call), std::move(modules));
  else
    plan.backward = backward_plan(std::move(call), std::move(modules));
  return plan;
}

// Both functions search without <regex>, of which GCC 12 warns with a sanitizer (GCC bug 105562).

bool serializes_products(const std::string& report) {
  for (std::size_t at = report.find("wgmma"); at != std::string::npos; at = report.find("wgmma", at + 1)) {
    const std::size_t serialized = report.find("serialized", at);
    if (serialized < report.find('\n', at)) return true;
  }
  return false;
}

std::int64_t register_spill_bytes(const std::string& report) {
  constexpr std::string_view kWords = " bytes spill ";
  std::int64_t most = 0;
  for (std::size_t at = report.find(kWords); at != std::string::npos; at = report.find(kWords, at + 1)) {
    std::size_t begin = at;
    while (begin > 0 && report[begin - 1] >= '0' && report[begin - 1] <= '9') --begin;
    std::int64_t bytes = 0;
    std::from_chars(report.data() + begin, report.data() + at, bytes);
    most = std::max(most, bytes);
  }
  return most;
}

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
