#include "backend/kernels/operand_source.hpp"

#include <algorithm>

#include "backend/cuda/gradient_text.hpp"
#include "backend/cuda/kernel_text.hpp"
#include "backend/cuda/program_source.hpp"
#include "backend/kernels/attention_source.hpp"
#include "backend/kernels/program_text.hpp"
#include "base/canonical_bytes.hpp"
#include "base/fail.hpp"
#include "compiler/operand_reduction.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::embedded {
extern const std::string_view kAttentionBackwardRows, kAttentionQueryGradients, kAttentionKeyGradients,
    kAttentionOperandProgram, kAttentionOperandGradients;
}  // namespace scoremod::embedded

namespace scoremod::backend::kernels {
namespace {

using cuda::fill;
using cuda::OperandSizes;
using cuda::part;
using cuda::ProgramSource;

/// A larger program's contributions are a function that is called, and one with more than the second number is written
/// down once: NVRTC would take many seconds.
constexpr std::size_t kMostInlinedNodes = 60, kMostTwiceNodes = 24;

constexpr std::array<const char*, kAxisCount> kIndexNames{"b", "h", "q", "kv"};

std::optional<OperandSum> sum_of(const AttentionProblem& problem, const compiler::OperandReduction& reduction) {
  if (reduction.scattered || reduction.roots.empty()) return std::nullopt;
  const auto varies = [&](Axis axis) {
    return reduction.has(axis) && reduction.extents[static_cast<std::size_t>(axis)] > 1;
  };
  if (!varies(Axis::kQuery)) return varies(Axis::kKey) ? OperandSum::kKeys : OperandSum::kTotal;
  if (!varies(Axis::kKey)) return OperandSum::kQueries;
  const bool once = reduction.extents[0] == problem.batch && reduction.extents[1] == problem.heads_q;
  return once ? std::optional(OperandSum::kElement) : std::nullopt;
}

/// The targets of a text, as its holes number them.
class OperandText {
 public:
  OperandText(const compiler::CompiledProblem& compiled, std::span<const OperandTarget> targets)
      : problem_(compiled.problem), derivative_(compiled.backward->program), targets_(targets) {}

  std::string program() const {
    ProgramSource source(problem_, derivative_, OperandSizes::kArguments);
    std::string forward = source.statements(forward_nodes(derivative_));
    std::vector<NodeId> adjoints;
    std::string contributions;
    for (const OperandTarget& target : targets_) {
      if (target.sum == OperandSum::kSink) continue;
      std::string sum;
      for (const Root& root : derivative_.roots()) {
        if (root.kind != RootKind::kOperandAdjoint || root.operand != target.operand) continue;
        adjoints.push_back(root.node);
        sum += concat(sum.empty() ? "" : " + ", ProgramSource::variable(root.node));
      }
      contributions += concat(contributions.empty() ? "" : ", ", sum);
    }
    const std::string statements = source.statements(adjoints);
    forward = with_operands(source, forward);
    const std::size_t rows = count(OperandSum::kTotal) + count(OperandSum::kQueries), keys = count(OperandSum::kKeys);
    std::string text(embedded::kAttentionOperandProgram);
    text.erase(text.find("/*{total}*/"));
    return fill(text, {{"row_targets", rows},
                       {"key_targets", keys},
                       {"targets", rows + keys + count(OperandSum::kElement)},
                       {"linkage", is_large(kMostInlinedNodes) ? "SCOREMOD_OUT_OF_LINE" : "SCOREMOD_FUNCTION"},
                       {"always_masked", is_large(kMostTwiceNodes) ? "true" : "false"},
                       {"forward_statements", forward},
                       {"value", ProgramSource::variable(derivative_.value())},
                       {"keep", keep_variable(derivative_)},
                       {"statements", statements},
                       {"contributions", contributions.empty() ? "0.0f" : contributions},
                       {"row_operands", numbers({OperandSum::kTotal, OperandSum::kQueries})},
                       {"totals", concat((1ULL << count(OperandSum::kTotal)) - 1, "ull")},
                       {"key_operands", numbers({OperandSum::kKeys})},
                       {"stores", element_stores()},
                       {"sink_store", sink_store()}});
  }

  std::string totals() const {
    std::string text;
    for (const OperandTarget& target : targets_) {
      if (target.sum == OperandSum::kElement || target.sum == OperandSum::kSink) continue;
      const OperandDecl& decl = problem_.program.operands()[target.operand];
      text += fill(part(embedded::kAttentionOperandProgram, "total"),
                   {{"name", total_kernel(target)},
                    {"operand", target.operand},
                    {"by_tiles", target.sum == OperandSum::kTotal ? "true" : "false"},
                    {"along_keys", target.sum == OperandSum::kKeys ? "true" : "false"},
                    {"by_batch", varies(decl, Axis::kBatch)},
                    {"by_head", varies(decl, Axis::kHead)},
                    {"store", store(target)},
                    {"offset", offset(target)}});
    }
    return text;
  }

 private:
  bool is_large(std::size_t most) const { return derivative_.nodes().size() > most; }

  std::size_t count(OperandSum sum) const {
    return static_cast<std::size_t>(std::ranges::count(targets_, sum, &OperandTarget::sum));
  }

  std::string numbers(std::initializer_list<OperandSum> sums) const {
    std::string text;
    for (const OperandTarget& target : targets_) {
      if (std::ranges::find(sums, target.sum) == sums.end()) continue;
      text += concat(text.empty() ? "" : ", ", target.operand);
    }
    return text.empty() ? "0" : text;
  }

  /// Whether the operand has entries of its own for each index of this axis, in a call: a dimension of 1 has not.
  std::string varies(const OperandDecl& decl, Axis axis) const {
    const auto number = static_cast<std::size_t>(axis);
    if (!decl.axes[number]) return "false";
    const auto dimension = std::count(decl.axes.begin(), decl.axes.begin() + number, true);
    const auto operand = &decl - problem_.program.operands().data();
    return concat("p.operands[", operand, "].extent[", dimension, "] > 1");
  }

  std::string store(const OperandTarget& target) const {
    return concat("store_", cuda::dtype_name(problem::spec_of(problem_, target.operand).dtype));
  }
  std::string offset(const OperandTarget& target) const {
    std::vector<std::string> indices;
    const OperandDecl& decl = problem_.program.operands()[target.operand];
    for (std::size_t axis = 0; axis < kAxisCount; ++axis) {
      if (decl.axes[axis]) indices.emplace_back(kIndexNames[axis]);
    }
    return cuda::entry_offset(problem_, target.operand, indices, OperandSizes::kArguments);
  }

  std::string element_stores() const {
    std::string text;
    std::size_t number = count(OperandSum::kKeys);
    for (const OperandTarget& target : targets_) {
      if (target.sum != OperandSum::kElement) continue;
      text += fill(
          part(embedded::kAttentionOperandProgram, "stores"),
          {{"operand", target.operand}, {"store", store(target)}, {"offset", offset(target)}, {"number", number++}});
    }
    return text;
  }

  std::string sink_store() const {
    const auto sink = std::ranges::find(targets_, OperandSum::kSink, &OperandTarget::sum);
    if (sink == targets_.end()) return {};
    return fill(part(embedded::kAttentionOperandProgram, "sink_store"),
                {{"operand", sink->operand}, {"store", store(*sink)}, {"offset", offset(*sink)}});
  }

  const AttentionProblem& problem_;
  const Program& derivative_;
  std::span<const OperandTarget> targets_;
};

}  // namespace

std::vector<OperandTarget> operand_targets(const compiler::CompiledProblem& problem,
                                           std::span<const std::uint32_t> operands) {
  const auto sink = problem::sink_operand(problem.problem);
  std::vector<OperandTarget> targets;
  for (const std::uint32_t operand : operands) {
    const auto sum = operand == sink ? std::optional(OperandSum::kSink)
                                     : sum_of(problem.problem, reduction_of(problem.backward->reductions, operand));
    if (!sum) return {};
    targets.push_back({operand, *sum});
  }
  std::ranges::stable_sort(targets, {}, &OperandTarget::sum);
  return targets;
}

std::string total_kernel(const OperandTarget& target) { return concat("attention_operand_total_", target.operand); }

std::string operand_source(const compiler::CompiledProblem& problem, std::span<const OperandTarget> targets,
                           const TileShape& shape, std::optional<std::string_view> primitives) {
  const OperandText text(problem, targets);
  return concat(text_before_kernels(problem, Direction::kBackward, shape, primitives), embedded::kAttentionBackwardRows,
                embedded::kAttentionQueryGradients, embedded::kAttentionKeyGradients, text.program(),
                embedded::kAttentionOperandGradients, text.totals(),
                text_of_tile_states(problem, Direction::kBackward));
}

Bytes structure_of_operand_source(const compiler::CompiledProblem& problem, std::span<const OperandTarget> targets,
                                  const TileShape& shape) {
  CanonicalWriter out;
  out.bytes(structure_of_source(problem, Direction::kBackward, shape));
  out.text(embedded::kAttentionOperandProgram).text(embedded::kAttentionOperandGradients);
  for (const OperandTarget& target : targets)
    out.integer(target.operand).integer(static_cast<std::int64_t>(target.sum));
  return out.written();
}

}  // namespace scoremod::backend::kernels
