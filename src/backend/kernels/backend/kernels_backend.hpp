#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.hpp"
#include "backend/candidate.hpp"
#include "backend/kernels/family.hpp"
#include "backend/kernels/loading/attention_plans.hpp"
#include "backend/kernels/text/kernel_source.hpp"
#include "backend/kernels/workspace/call.hpp"
#include "base/canonical_bytes.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend {

/// Attention kernels of scoremod's own, generated from the program, on NVIDIA devices from sm_80 on; they need a driver
/// and NVRTC.
const Backend& kernels_backend();

/// Gradients of operands by tiles of scores, in kernels of scoremod's own, beside any engine's backward.
const Backend& operand_kernels_backend();

namespace kernels {

/// Kernels as NVRTC compiled them, in one module or several.
class Images final : public Artifact {
 public:
  explicit Images(std::vector<std::string> modules) : modules_(std::move(modules)) {}
  /// Reads the bytes of serialize(). Throws Error(kEnvironment) for others.
  explicit Images(std::span<const std::byte> bytes);
  std::vector<std::byte> serialize() const override;
  const std::vector<std::string>& modules() const { return modules_; }

  /// The modules in the current context, which is `context` where that is known: loaded by the first who asks, and
  /// shared by the plans of all sizes. Throws Error(kEnvironment) with the driver's text.
  std::shared_ptr<LoadedModules> loaded(std::optional<std::uint64_t> context) const;

 private:
  std::vector<std::string> modules_;
  mutable std::mutex mutex_;
  mutable std::map<std::uint64_t, std::shared_ptr<LoadedModules>> loaded_;  ///< by context
};

/// The kernels of one variant, as the planner builds, keeps and runs them.
class KernelsRecipe final : public Recipe {
 public:
  /// `family` is that of the variant, and `targets` are as in Work. A build whose registers spill is refused, unless
  /// the variant may: a smaller one is faster.
  KernelsRecipe(compiler::CompiledProblem problem, Direction direction, const KernelFamily& family,
                std::shared_ptr<const Variant> variant, std::vector<OperandTarget> targets = {});

  BuildResult build(const Target& target) const override;
  std::shared_ptr<const Artifact> load(std::span<const std::byte> bytes, const Target& target) const override;
  ExecutablePlan plan(std::shared_ptr<const Artifact> artifact, const PlanOptions& options) const override;
  bool needs_context() const override { return false; }
  std::optional<ExecutablePlan> plan_at_sizes_of(const compiler::CompiledProblem& problem,
                                                 const DeviceProperties& device, const Artifact& artifact,
                                                 const PlanOptions& options) const override;
  std::optional<ExecutablePlan> plan_on_few_blocks(const Artifact& artifact) const override;

  /// The launches of the plan of other sizes, which has this recipe's kernels; nothing where there is no such plan.
  std::optional<CallLayout> layout_at_sizes_of(const compiler::CompiledProblem& problem,
                                               const DeviceProperties& device) const;

  /// Writes the facts that decide build()'s refusals, beside the kernels' text and the architecture. Loads NVRTC.
  void write_refusal_terms(CanonicalWriter& to) const;

  KernelSource source() const { return variant_->source(work()); }

  const compiler::CompiledProblem& problem() const { return problem_; }
  Direction direction() const { return direction_; }
  const Branches& branches() const { return branches_; }
  const Variant& variant() const { return *variant_; }
  const std::vector<OperandTarget>& targets() const { return targets_; }
  Work work() const { return {problem_, direction_, targets_}; }

 private:
  /// This variant among all of the family for other work; null if it has none such.
  std::shared_ptr<const Variant> same_variant(const Work& work, const DeviceProperties& device) const;

  /// The artifact's kernels with these launches, which are of the problem.
  ExecutablePlan plan_of(const compiler::CompiledProblem& problem, CallLayout layout, const Artifact& artifact,
                         const PlanOptions& options) const;

  compiler::CompiledProblem problem_;
  Branches branches_;  ///< of the problem
  Direction direction_;
  const KernelFamily& family_;
  std::shared_ptr<const Variant> variant_;
  std::vector<OperandTarget> targets_;
};

/// The most bytes that one of the kernels keeps in memory for want of registers, by what ptxas says of them.
std::int64_t register_spill_bytes(const std::string& report);
/// Whether products of warpgroups do not run beside other work, by what ptxas says.
bool serializes_products(const std::string& report);

}  // namespace kernels

}  // namespace scoremod::backend
