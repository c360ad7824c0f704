#include <algorithm>
#include <array>

#include "analysis/dependence.hpp"
#include "backend/cuda/operand_gradients/gradient_text.hpp"
#include "backend/cuda/text/kernel_text.hpp"
#include "backend/kernels/family.hpp"
#include "backend/kernels/operand_gradients/operand_gradients.hpp"
#include "backend/program_structure.hpp"
#include "base/canonical_bytes.hpp"
#include "base/fail.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::kernels {
namespace {

using cuda::file_text;
using cuda::fill;
using cuda::OperandSizes;
using cuda::part;
using cuda::ProgramSource;

/// A larger program's contributions are a function that is called, and one with more than the second number is written
/// down once: NVRTC would take many seconds.
constexpr std::size_t kMaxInlinedNodes = 60, kMaxTwiceNodes = 24;

constexpr std::string_view kDerivative = "backend/kernels/shared/derivative.cuh",
                           kElementGradients = "backend/kernels/operand_gradients/element_gradients.cuh";

/// Whether attention_operand_total_I of exact sums writes a target's gradient.
bool has_exact_total(const OperandTarget& target) {
  return target.sum == OperandSum::kTable || target.sum == OperandSum::kDifference ||
         target.sum == OperandSum::kNothing;
}

constexpr std::array<const char*, kAxisCount> kIndexNames{"b", "h", "q", "kv"};

}  // namespace

OperandText::OperandText(const compiler::CompiledProblem& compiled, std::span<const OperandTarget> targets)
    : problem_(compiled.problem), derivative_(compiled.backward->program), targets_(targets) {}

std::size_t OperandText::table_reads() const {
  std::size_t reads = 0;
  for (const OperandTarget& target : targets_)
    if (target.sum == OperandSum::kTable) reads += roots_of(target.operand).size();
  return reads;
}
std::size_t OperandText::targets() const {
  return count(OperandSum::kTotal) + count(OperandSum::kQueries) + count(OperandSum::kKeys) +
         count(OperandSum::kDifference) + table_reads() + count(OperandSum::kShared) + count(OperandSum::kElement);
}

Bytes OperandText::structure() const {
  CanonicalWriter out;
  if (targets_.empty()) return out.written();
  write_structure(out, derivative_);
  for (std::uint32_t i = 0; i < problem_.program.operands().size(); ++i)
    out.integer(static_cast<std::int64_t>(problem::spec_of(problem_, i).dtype));
  for (const OperandTarget& target : targets_)
    out.integer(target.operand).integer(static_cast<std::int64_t>(target.sum));
  return out.written();
}

void OperandText::fill_targets(Holes& holes) const {
  holes.set("row_targets", count(OperandSum::kTotal) + count(OperandSum::kQueries));
  holes.set("key_targets", count(OperandSum::kKeys));
  holes.set("difference_targets", count(OperandSum::kDifference));
  holes.set("table_reads", table_reads());
  holes.set("shared_targets", count(OperandSum::kShared));
  holes.set("targets", targets());
  holes.set("row_operands", numbers({OperandSum::kTotal, OperandSum::kQueries}));
  holes.set("row_totals", concat((1ULL << count(OperandSum::kTotal)) - 1, "ull"));
  holes.set("key_operands", numbers({OperandSum::kKeys}));
  holes.set("difference_operand", numbers({OperandSum::kDifference}));
  holes.set("difference_rank", difference_rank());
  holes.set("stores", element_stores());
}

void OperandText::fill_tile_sums(Holes& holes) const {
  ProgramSource source(problem_, derivative_, OperandSizes::kArguments);
  std::string forward = source.statements(forward_nodes(derivative_));
  const std::string read_at = entries(source), added = statements(source);
  forward = with_operands(source, forward);
  holes.set("always_masked", is_large(kMaxTwiceNodes) ? "true" : "false");
  holes.set_program("gains_of",
                    fill(part(file_text(kElementGradients), "gains_of"),
                         {{"linkage", is_large(kMaxInlinedNodes) ? "SCOREMOD_OUT_OF_LINE" : "SCOREMOD_FUNCTION"},
                          {"entries", read_at},
                          {"forward_statements", forward},
                          {"value", ProgramSource::variable(derivative_.value())},
                          {"keep", keep_variable(derivative_)},
                          {"statements", added},
                          {"contributions", contributions()}}),
                    structure());
  const auto first = std::ranges::find(targets_, OperandSum::kTable, &OperandTarget::sum);
  holes.set("first_table", first == targets_.end() ? 0 : first->operand);
  holes.set("shared_elements", shared_elements());
}

std::vector<const Root*> OperandText::roots_of(std::uint32_t operand) const {
  std::vector<const Root*> roots;
  for (const Root& root : derivative_.roots())
    if (root.kind == RootKind::kOperandAdjoint && root.operand == operand) roots.push_back(&root);
  return roots;
}

std::vector<NodeId> OperandText::adjoints() const {
  std::vector<NodeId> nodes;
  for (const OperandTarget& target : targets_) {
    if (target.sum == OperandSum::kSink) continue;
    for (const Root* root : roots_of(target.operand)) nodes.push_back(root->node);
  }
  return nodes;
}

std::string OperandText::statements(ProgramSource& source) const { return source.statements(adjoints()); }

std::string OperandText::contributions() const {
  std::string text;
  const auto append = [&](const std::string& contribution) { text += concat(text.empty() ? "" : ", ", contribution); };
  for (const OperandTarget& target : targets_) {
    if (target.sum == OperandSum::kSink || target.sum == OperandSum::kNothing) continue;
    std::string sum;
    for (const Root* root : roots_of(target.operand)) {
      const std::string contribution = ProgramSource::variable(root->node);
      if (target.sum == OperandSum::kTable)
        append(contribution);
      else
        sum += concat(sum.empty() ? "" : " + ", contribution);
    }
    if (target.sum != OperandSum::kTable) append(sum);
  }
  return text.empty() ? "0.0f" : text;
}

std::span<const NodeId> OperandText::indices_of(const Root& root) const {
  return std::span(root.indices).first(static_cast<std::size_t>(rank_of(root.operand)));
}

std::string OperandText::entry_of(const Root& root) const {
  const std::span<const NodeId> indices = indices_of(root);
  std::string entry;
  for (std::size_t d = 0; d < indices.size(); ++d) {
    const std::string extent = concat("p.operands[", root.operand, "].extent[", d, "]");
    const std::string at = concat("clamp_index(", ProgramSource::variable(indices[d]), ", ", extent, ")");
    entry = d == 0 ? at : concat("(", entry, ") * ", extent, " + ", at);
  }
  return entry;
}

std::string OperandText::entries(ProgramSource& source) const {
  std::string text, first;
  std::size_t number = 0;
  for (const OperandTarget& target : targets_) {
    if (target.sum != OperandSum::kTable) continue;
    for (const Root* root : roots_of(target.operand)) {
      text += source.statements(indices_of(*root));
      text += concat("gains.entries[", number++, "] = ", first, entry_of(*root), ";\n");
    }
    first += concat("(int)entries_of(p.operands[", target.operand, "], ", rank_of(target.operand), ") + ");
  }
  return text;
}

std::string OperandText::shared_elements() const {
  std::string kernels;
  std::size_t number = 0;
  for (const OperandTarget& target : targets_) {
    if (target.sum != OperandSum::kShared) continue;
    const OperandDecl& decl = problem_.program.operands()[target.operand];
    kernels += fill(part(file_text(kElementGradients), "shared_elements"), {{"name", total_kernel(target)},
                                                                            {"operand", target.operand},
                                                                            {"by_batch", varies(decl, Axis::kBatch)},
                                                                            {"by_head", varies(decl, Axis::kHead)},
                                                                            {"number", number++},
                                                                            {"store", store(target)},
                                                                            {"offset", offset(target)}});
  }
  return kernels;
}

std::string OperandText::totals() const {
  constexpr std::array kByRowsOrKeys{OperandSum::kTotal, OperandSum::kQueries, OperandSum::kKeys};
  std::string kernels;
  for (const OperandTarget& target : targets_) {
    if (std::ranges::find(kByRowsOrKeys, target.sum) == kByRowsOrKeys.end()) continue;
    const OperandDecl& decl = problem_.program.operands()[target.operand];
    kernels += fill(part(file_text(kTotalsFile), "operand_totals"),
                    {{"name", total_kernel(target)},
                     {"operand", target.operand},
                     {"by_tiles", target.sum == OperandSum::kTotal ? "true" : "false"},
                     {"along_keys", target.sum == OperandSum::kKeys ? "true" : "false"},
                     {"by_batch", varies(decl, Axis::kBatch)},
                     {"by_head", varies(decl, Axis::kHead)},
                     {"store", store(target)},
                     {"offset", offset(target)}});
  }
  return kernels;
}

void OperandText::fill_totals(Holes& holes) const {
  holes.set("operand_totals", totals());
  holes.set("sink_store", sink_store());
  std::string differences, clear, total;
  for (const OperandTarget& target : targets_) {
    if (target.sum == OperandSum::kDifference) differences += difference_total(target);
    if (!has_exact_total(target)) continue;
    const bool sums = target.sum != OperandSum::kNothing;
    const int rank = rank_of(target.operand);
    if (sums) {
      clear += fill(part(file_text(kTotalsFile), "exact_clears"),
                    {{"name", clear_kernel(target)}, {"operand", target.operand}, {"rank", rank}});
    }
    total += fill(part(file_text(kTotalsFile), "exact_totals"),
                  {{"name", total_kernel(target)},
                   {"operand", target.operand},
                   {"rank", rank},
                   {"store", store(target)},
                   {"value", sums ? "sum_at((const long long*)operand.sums, entry)" : "0.0f"}});
  }
  holes.set_program("diagonal_totals", std::move(differences), structure());
  holes.set("exact_clears", clear);
  holes.set("exact_totals", total);
}

std::string OperandText::difference_total(const OperandTarget& target) const {
  const Root& root = *roots_of(target.operand).front();
  const std::span<const NodeId> indices = indices_of(root);
  ProgramSource source(problem_, derivative_, OperandSizes::kArguments);
  const std::string statements = source.statements(indices);
  const std::vector<analysis::Dependence> on = analysis::dependences(derivative_);
  const bool by_batch = std::ranges::any_of(indices, [&](NodeId index) { return on[index].on(Axis::kBatch); });
  return fill(part(file_text(kTotalsFile), "diagonal_totals"), {{"add", diagonals_kernel(target)},
                                                                {"operand", target.operand},
                                                                {"by_batch", by_batch ? "true" : "false"},
                                                                {"statements", with_operands(source, statements)},
                                                                {"entry", entry_of(root)}});
}

int OperandText::rank_of(std::uint32_t operand) const { return problem_.program.operands()[operand].rank(); }

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
        fill(part(file_text(kDerivative), "stores"),
             {{"operand", target.operand}, {"store", store(target)}, {"offset", offset(target)}, {"number", number++}});
  }
  return text;
}

std::string OperandText::sink_store() const {
  const auto sink = std::ranges::find(targets_, OperandSum::kSink, &OperandTarget::sum);
  if (sink == targets_.end()) return {};
  return fill(part(file_text(kTotalsFile), "sink_store"),
              {{"operand", sink->operand}, {"store", store(*sink)}, {"offset", offset(*sink)}});
}

}  // namespace scoremod::backend::kernels
