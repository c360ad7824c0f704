#include "backend/kernels/operand_text.hpp"

#include <algorithm>
#include <array>

#include "backend/cuda/gradient_text.hpp"
#include "backend/cuda/kernel_text.hpp"
#include "backend/kernels/operand_source.hpp"
#include "backend/kernels/program_text.hpp"
#include "base/fail.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::embedded {
extern const std::string_view kAttentionOperandProgram, kAttentionOperandTargets, kAttentionOperandTotals;
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

}  // namespace

OperandText::OperandText(const compiler::CompiledProblem& compiled, std::span<const OperandTarget> targets)
    : problem_(compiled.problem),
      derivative_(compiled.backward ? &compiled.backward->program : nullptr),
      targets_(targets) {}

std::size_t OperandText::row_targets() const { return count(OperandSum::kTotal) + count(OperandSum::kQueries); }
std::size_t OperandText::key_targets() const { return count(OperandSum::kKeys); }
std::size_t OperandText::targets() const { return row_targets() + key_targets() + count(OperandSum::kElement); }

std::string OperandText::places() const {
  return fill(embedded::kAttentionOperandTargets,
              {{"row_operands", numbers({OperandSum::kTotal, OperandSum::kQueries})},
               {"totals", concat((1ULL << count(OperandSum::kTotal)) - 1, "ull")},
               {"key_operands", numbers({OperandSum::kKeys})}});
}

std::string OperandText::program() const {
  ProgramSource source(problem_, *derivative_, OperandSizes::kArguments);
  std::string forward = source.statements(forward_nodes(*derivative_));
  const std::string added = statements(source);
  forward = with_operands(source, forward);
  return fill(embedded::kAttentionOperandProgram,
              {{"linkage", is_large(kMostInlinedNodes) ? "SCOREMOD_OUT_OF_LINE" : "SCOREMOD_FUNCTION"},
               {"always_masked", is_large(kMostTwiceNodes) ? "true" : "false"},
               {"forward_statements", forward},
               {"value", ProgramSource::variable(derivative_->value())},
               {"keep", keep_variable(*derivative_)},
               {"statements", added},
               {"contributions", contributions()},
               {"stores", element_stores()}});
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
    if (target.sum == OperandSum::kElement || target.sum == OperandSum::kSink) continue;
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
  return fill(embedded::kAttentionOperandTotals, {{"total", kernels}, {"sink_store", sink_store()}});
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
  std::size_t number = count(OperandSum::kKeys);
  for (const OperandTarget& target : targets_) {
    if (target.sum != OperandSum::kElement) continue;
    text +=
        fill(part(embedded::kAttentionOperandProgram, "stores"),
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
