#include "backend/kernels/operand_text.hpp"

#include <algorithm>
#include <array>

#include "analysis/dependence.hpp"
#include "backend/cuda/gradient_text.hpp"
#include "backend/cuda/kernel_text.hpp"
#include "backend/kernels/operand_source.hpp"
#include "backend/kernels/program_text.hpp"
#include "base/fail.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::embedded {
extern const std::string_view kExactSum, kAttentionDifferenceTotals, kAttentionOperandProgram, kAttentionOperandTargets,
    kAttentionOperandTotals;
}  // namespace scoremod::embedded

namespace scoremod::backend::kernels {
namespace {

using cuda::fill;
using cuda::OperandSizes;
using cuda::part;
using cuda::ProgramSource;

/// A larger program's contributions are a function that is called, and one with more than the second number is written
/// down once: NVRTC would take many seconds.
constexpr std::size_t kMaxInlinedNodes = 60, kMaxTwiceNodes = 24;

constexpr std::array<const char*, kAxisCount> kIndexNames{"b", "h", "q", "kv"};

}  // namespace

OperandText::OperandText(const compiler::CompiledProblem& compiled, std::span<const OperandTarget> targets)
    : problem_(compiled.problem),
      derivative_(compiled.backward ? &compiled.backward->program : nullptr),
      targets_(targets) {}

std::size_t OperandText::row_targets() const { return count(OperandSum::kTotal) + count(OperandSum::kQueries); }
std::size_t OperandText::key_targets() const { return count(OperandSum::kKeys); }
std::size_t OperandText::difference_targets() const { return count(OperandSum::kDifference); }
std::size_t OperandText::targets() const {
  return row_targets() + key_targets() + difference_targets() + count(OperandSum::kElement);
}

std::string OperandText::places() const {
  return fill(embedded::kAttentionOperandTargets,
              {{"row_operands", numbers({OperandSum::kTotal, OperandSum::kQueries})},
               {"totals", concat((1ULL << count(OperandSum::kTotal)) - 1, "ull")},
               {"key_operands", numbers({OperandSum::kKeys})},
               {"difference_operand", numbers({OperandSum::kDifference})},
               {"difference_rank", difference_rank()},
               {"stores", element_stores()}});
}

std::string OperandText::program() const {
  ProgramSource source(problem_, *derivative_, OperandSizes::kArguments);
  std::string forward = source.statements(forward_nodes(*derivative_));
  const std::string added = statements(source);
  forward = with_operands(source, forward);
  return fill(embedded::kAttentionOperandProgram,
              {{"linkage", is_large(kMaxInlinedNodes) ? "SCOREMOD_OUT_OF_LINE" : "SCOREMOD_FUNCTION"},
               {"always_masked", is_large(kMaxTwiceNodes) ? "true" : "false"},
               {"forward_statements", forward},
               {"value", ProgramSource::variable(derivative_->value())},
               {"keep", keep_variable(*derivative_)},
               {"statements", added},
               {"contributions", contributions()}});
}

std::vector<NodeId> OperandText::adjoints() const {
  std::vector<NodeId> nodes;
  for (const OperandTarget& target : targets_) {
    for (const Root& root : derivative_->roots()) {
      if (root.kind == RootKind::kOperandAdjoint && root.operand == target.operand && target.sum != OperandSum::kSink)
        nodes.push_back(root.node);
    }
  }
  return nodes;
}

std::string OperandText::statements(ProgramSource& source) const { return source.statements(adjoints()); }

std::string OperandText::contributions() const {
  std::string text;
  for (const OperandTarget& target : targets_) {
    if (target.sum == OperandSum::kSink) continue;
    std::string sum;
    for (const Root& root : derivative_->roots()) {
      if (root.kind == RootKind::kOperandAdjoint && root.operand == target.operand)
        sum += concat(sum.empty() ? "" : " + ", ProgramSource::variable(root.node));
    }
    text += concat(text.empty() ? "" : ", ", sum);
  }
  return text.empty() ? "0.0f" : text;
}

std::string OperandText::totals() const {
  std::string kernels;
  for (const OperandTarget& target : targets_) {
    if (target.sum == OperandSum::kElement || target.sum == OperandSum::kSink || target.sum == OperandSum::kDifference)
      continue;
    const OperandDecl& decl = problem_.program.operands()[target.operand];
    kernels += fill(part(embedded::kAttentionOperandTotals, "total"),
                    {{"name", total_kernel(target)},
                     {"operand", target.operand},
                     {"by_tiles", target.sum == OperandSum::kTotal ? "true" : "false"},
                     {"along_keys", target.sum == OperandSum::kKeys ? "true" : "false"},
                     {"by_batch", varies(decl, Axis::kBatch)},
                     {"by_head", varies(decl, Axis::kHead)},
                     {"store", store(target)},
                     {"offset", offset(target)}});
  }
  kernels = fill(embedded::kAttentionOperandTotals, {{"total", kernels}, {"sink_store", sink_store()}});
  if (difference_targets() == 0) return kernels;
  std::string differences;
  for (const OperandTarget& target : targets_)
    if (target.sum == OperandSum::kDifference) differences += difference_total(target);
  return concat(kernels, embedded::kExactSum, fill(embedded::kAttentionDifferenceTotals, {{"total", differences}}));
}

std::string OperandText::difference_total(const OperandTarget& target) const {
  const Root& root = *std::ranges::find_if(derivative_->roots(), [&](const Root& each) {
    return each.kind == RootKind::kOperandAdjoint && each.operand == target.operand;
  });
  const auto rank = static_cast<std::size_t>(problem_.program.operands()[target.operand].rank());
  const std::span<const NodeId> indices = std::span(root.indices).first(rank);
  ProgramSource source(problem_, *derivative_, OperandSizes::kArguments);
  const std::string statements = source.statements(indices);
  std::string entry;
  for (std::size_t d = 0; d < rank; ++d) {
    const std::string extent = concat("operand.extent[", d, "]");
    const std::string at = concat("clamp_index(", ProgramSource::variable(indices[d]), ", ", extent, ")");
    entry = d == 0 ? at : concat("(", entry, ") * ", extent, " + ", at);
  }
  const std::vector<analysis::Dependence> on = analysis::dependences(*derivative_);
  const bool by_batch = std::ranges::any_of(indices, [&](NodeId index) { return on[index].on(Axis::kBatch); });
  return fill(part(embedded::kAttentionDifferenceTotals, "total"), {{"clear", clear_kernel(target)},
                                                                    {"add", diagonals_kernel(target)},
                                                                    {"name", total_kernel(target)},
                                                                    {"operand", target.operand},
                                                                    {"rank", rank},
                                                                    {"by_batch", by_batch ? "true" : "false"},
                                                                    {"statements", with_operands(source, statements)},
                                                                    {"entry", entry},
                                                                    {"store", store(target)}});
}

int OperandText::difference_rank() const {
  const auto target = std::ranges::find(targets_, OperandSum::kDifference, &OperandTarget::sum);
  return target == targets_.end() ? 1 : problem_.program.operands()[target->operand].rank();
}

std::size_t OperandText::count(OperandSum sum) const {
  return static_cast<std::size_t>(std::ranges::count(targets_, sum, &OperandTarget::sum));
}

std::string OperandText::numbers(std::initializer_list<OperandSum> sums) const {
  std::string text;
  for (const OperandTarget& target : targets_) {
    if (std::ranges::find(sums, target.sum) == sums.end()) continue;
    text += concat(text.empty() ? "" : ", ", target.operand);
  }
  return text.empty() ? "0" : text;
}

std::string OperandText::varies(const OperandDecl& decl, Axis axis) const {
  const auto number = static_cast<std::size_t>(axis);
  if (!decl.axes[number]) return "false";
  const auto dimension = std::count(decl.axes.begin(), decl.axes.begin() + number, true);
  const auto operand = &decl - problem_.program.operands().data();
  return concat("p.operands[", operand, "].extent[", dimension, "] > 1");
}

std::string OperandText::store(const OperandTarget& target) const {
  return concat("store_", cuda::dtype_name(problem::spec_of(problem_, target.operand).dtype));
}

std::string OperandText::offset(const OperandTarget& target) const {
  std::vector<std::string> indices;
  const OperandDecl& decl = problem_.program.operands()[target.operand];
  for (std::size_t axis = 0; axis < kAxisCount; ++axis) {
    if (decl.axes[axis]) indices.emplace_back(kIndexNames[axis]);
  }
  return cuda::entry_offset(problem_, target.operand, indices, OperandSizes::kArguments);
}

std::string OperandText::element_stores() const {
  std::string text;
  std::size_t number = 0;
  for (const OperandTarget& target : targets_) {
    if (target.sum != OperandSum::kElement) continue;
    text +=
        fill(part(embedded::kAttentionOperandTargets, "stores"),
             {{"operand", target.operand}, {"store", store(target)}, {"offset", offset(target)}, {"number", number++}});
  }
  return text;
}

std::string OperandText::sink_store() const {
  const auto sink = std::ranges::find(targets_, OperandSum::kSink, &OperandTarget::sum);
  if (sink == targets_.end()) return {};
  return fill(part(embedded::kAttentionOperandTotals, "sink_store"),
              {{"operand", sink->operand}, {"store", store(*sink)}, {"offset", offset(*sink)}});
}

}  // namespace scoremod::backend::kernels
