#include "backend/kernels/attention_source.hpp"

#include <algorithm>

#include "backend/cuda/kernel_text.hpp"
#include "backend/cuda/program_source.hpp"
#include "backend/kernels/attention_settings.hpp"
#include "backend/kernels/attention_texts.hpp"
#include "backend/kernels/difference_tables.hpp"
#include "backend/kernels/hopper_shape.hpp"
#include "backend/kernels/mask_knowledge.hpp"
#include "backend/kernels/mask_ranges.hpp"
#include "backend/kernels/program_text.hpp"
#include "backend/program_structure.hpp"
#include "base/canonical_bytes.hpp"
#include "base/fail.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::embedded {
extern const std::string_view kDropoutArgument, kDropoutMask, kAttentionArguments, kAttentionPrimitives,
    kAttentionElements, kAttentionTiles, kAttentionProducts, kAttentionDropout, kAttentionProgram, kAttentionMaskRanges,
    kAttentionTileStates, kHopperPrimitives, kHopperTiles;
}  // namespace scoremod::embedded

namespace scoremod::backend::kernels {
namespace {

using cuda::fill;
using cuda::OperandSizes;
using cuda::part;
using cuda::ProgramSource;

/// Larger programs become functions that are called: a copy for every element of a thread's tile would take NVRTC
/// minutes, and leave the instruction cache.
constexpr std::size_t kMaxInlinedNodes = 120;

/// The tables that a direction's kernels read. Decode kernels have rows of several heads in a tile, and kernels of
/// gradients alone walk once, so these read none.
DifferenceTables tables_of(const compiler::CompiledProblem& problem, Direction direction, Family family, Gains gains) {
  if (is_few_queries(family) || gains == Gains::kApart) return {};
  return difference_tables(program_of(problem, direction));
}

/// Reads of the operand whose tiles are copied, if any.
void read_copied(ProgramSource& source, const Program& program, std::optional<std::uint32_t> copied) {
  for (NodeId id = 0; id < program.nodes().size(); ++id) {
    const Node& node = program.nodes()[id];
    if (node.op == Op::kOperand && node.payload == copied) source.offer(id, "kCopied", "copied");
  }
}

std::string forward_function(const AttentionProblem& problem, const Program& program, const DifferenceTables& tables,
                             std::optional<std::uint32_t> copied) {
  ProgramSource source(problem, program, OperandSizes::kArguments);
  read_tables(source, tables);
  read_copied(source, program, copied);
  const std::string statements = source.statements(forward_nodes(program));
  return fill(part(embedded::kAttentionProgram, "forward"), {{"linkage", linkage(program)},
                                                             {"statements", with_operands(source, statements)},
                                                             {"keep", keep_variable(program)},
                                                             {"value", ProgramSource::variable(program.value())}});
}

/// The text of the operand gradients at an element, at the end of its derivative.
std::string gains_of(ProgramSource source, const Program& derivative, const OperandText& operands) {
  return fill(part(embedded::kAttentionProgram, "gains"), {{"value", ProgramSource::variable(derivative.value())},
                                                           {"gains_statements", operands.statements(source)},
                                                           {"contributions", operands.contributions()}});
}

std::string backward_function(const AttentionProblem& problem, const Program& derivative, const OperandText& operands,
                              const DifferenceTables& tables, std::optional<std::uint32_t> copied, Gains where) {
  ProgramSource source(problem, derivative, OperandSizes::kArguments);
  read_tables(source, tables);
  read_copied(source, derivative, copied);
  const auto root = std::ranges::find(derivative.roots(), RootKind::kScoreAdjoint, &Root::kind);
  if (root == derivative.roots().end()) fail_bug("a derivative without an adjoint of the score");
  std::string forward = source.statements(forward_nodes(derivative));
  const bool has_gains = where == Gains::kBeside && operands.targets() > 0;
  const std::string gains = has_gains ? gains_of(source, derivative, operands) : "";
  ProgramSource all = source;
  const std::string statements = source.statements(std::span(&root->node, 1));
  if (has_gains) operands.statements(all);
  all.statements(std::span(&root->node, 1));
  forward = with_operands(all, forward);
  return fill(part(embedded::kAttentionProgram, "backward"), {{"linkage", linkage(derivative)},
                                                              {"gains", gains},
                                                              {"forward_statements", forward},
                                                              {"value", ProgramSource::variable(derivative.value())},
                                                              {"keep", keep_variable(derivative)},
                                                              {"statements", statements},
                                                              {"d_score", ProgramSource::variable(root->node)}});
}

/// The function of a direction's program.
std::string function_of(const compiler::CompiledProblem& compiled, Direction direction, const TileShape& shape,
                        const OperandText& operands, const DifferenceTables& tables, Gains gains) {
  return direction == Direction::kForward
             ? forward_function(compiled.problem, compiled.forward.program, tables, shape.copied_operand)
             : backward_function(compiled.problem, compiled.backward->program, operands, tables, shape.copied_operand,
                                 gains);
}

std::string sink_function(const AttentionProblem& problem) {
  std::string statements, sink = problem.sink == Sink::kNone ? "-infinity()" : "0.0f";
  if (const auto operand = problem::sink_operand(problem)) {
    const std::string name = ProgramSource::operand_name(*operand);
    const std::vector<std::string> head{"h"};
    statements = concat("const void* ", name, " = p.operands[", *operand, "].data;\n");
    sink = concat(cuda::loader(problem::spec_of(problem, *operand).dtype), "(", name, ", ",
                  cuda::entry_offset(problem, *operand, head, OperandSizes::kArguments), ")");
  }
  return fill(part(embedded::kAttentionProgram, "sink"), {{"statements", statements}, {"sink", sink}});
}

std::string mask_function(const AttentionProblem& problem, const Program& program, std::span<const NodeId> terms) {
  ProgramSource source(problem, program, OperandSizes::kArguments);
  const std::string statements = source.statements(terms);
  std::string keep;
  for (const NodeId term : terms) keep += concat(keep.empty() ? "" : " && ", ProgramSource::variable(term));
  return fill(part(embedded::kAttentionProgram, "mask"),
              {{"linkage", linkage(program)}, {"statements", with_operands(source, statements)}, {"keep", keep}});
}

/// `count` numbers of registers in an instruction, from `first` on.
std::string register_numbers(std::int64_t first, std::int64_t count) {
  std::string text;
  for (std::int64_t i = 0; i < count; ++i) text += concat(i == 0 ? "%" : ", %", first + i);
  return text;
}

/// A warpgroup's product with this number of columns; a thread has half as many sums.
std::string product_text(DType dtype, std::int64_t columns) {
  const std::int64_t sums = columns / 2;
  std::string operands;
  for (std::int64_t i = 0; i < sums; ++i) operands += concat(i == 0 ? "" : ", ", "\"+f\"(d[", i / 4, "][", i % 4, "])");
  return fill(part(embedded::kHopperPrimitives, "product"), {{"columns", columns},
                                                             {"type", dtype == DType::kBF16 ? "bf16.bf16" : "f16.f16"},
                                                             {"sums", register_numbers(0, sums)},
                                                             {"operands", operands},
                                                             {"quad", register_numbers(sums, 4)},
                                                             {"r0", register_numbers(sums, 1)},
                                                             {"r1", register_numbers(sums + 1, 1)},
                                                             {"r2", register_numbers(sums + 2, 1)},
                                                             {"r4", register_numbers(sums + 4, 1)},
                                                             {"r5", register_numbers(sums + 5, 1)}});
}

std::string hopper_primitives(const AttentionProblem& problem, Direction direction, const TileShape& shape) {
  std::string products;
  for (const std::int64_t columns : hopper_product_columns(problem, direction, shape))
    products += product_text(problem.dtype, columns);
  return fill(embedded::kHopperPrimitives, {{"product", products}});
}

/// The text before a program's functions and the kernels that call them.
std::string text_before(const compiler::CompiledProblem& compiled, Direction direction, const TileShape& shape,
                        const MaskKnowledge& mask, std::optional<std::string_view> primitives,
                        const OperandText& operands) {
  const bool hopper = is_hopper(shape.family);
  return concat(
      embedded::kProgramPrelude, embedded::kDropoutArgument, embedded::kDropoutMask, embedded::kAttentionArguments,
      text_of_settings(compiled, shape, mask, operands), primitives.value_or(embedded::kAttentionPrimitives),
      hopper && !primitives ? hopper_primitives(compiled.problem, direction, shape) : "", embedded::kAttentionElements,
      embedded::kAttentionTiles, operands.places(), hopper ? embedded::kHopperTiles : embedded::kAttentionProducts,
      embedded::kAttentionDropout, sink_function(compiled.problem));
}

/// Writes the inputs of text_before() and of the kernels' texts.
void write_frame(CanonicalWriter& out, const compiler::CompiledProblem& compiled, Direction direction,
                 const TileShape& shape, const OperandText& operands) {
  const bool hopper = is_hopper(shape.family);
  out.integer(static_cast<std::int64_t>(revision_of_texts())).integer(static_cast<std::int64_t>(direction));
  out.boolean(hopper)
      .boolean(shape.copied_operand.has_value())
      .integer(shape.copied_operand.value_or(0))
      .text(text_of_settings(compiled, shape, mask_knowledge(compiled, direction), operands));
  const std::vector<std::int64_t> columns =
      hopper ? hopper_product_columns(compiled.problem, direction, shape) : std::vector<std::int64_t>{};
  out.list(columns.size());
  for (const std::int64_t count : columns) out.integer(count);
  out.text(sink_function(compiled.problem));
}

}  // namespace

const char* linkage(const Program& program) {
  return program.nodes().size() > kMaxInlinedNodes ? "SCOREMOD_OUT_OF_LINE" : "SCOREMOD_FUNCTION";
}

std::string with_operands(const ProgramSource& source, const std::string& statements) {
  std::string text;
  for (const std::uint32_t operand : source.operands())
    text += concat("const void* ", ProgramSource::operand_name(operand), " = p.operands[", operand, "].data;\n");
  return text + statements;
}

std::string keep_variable(const Program& program) {
  return program.keep() == kNoNode ? "true" : ProgramSource::variable(program.keep());
}

std::vector<NodeId> forward_nodes(const Program& program) {
  std::vector<NodeId> nodes{program.value()};
  if (program.keep() != kNoNode) nodes.push_back(program.keep());
  return nodes;
}

namespace {

/// The kernel that fills a direction's tables.
std::string text_of_differences(const compiler::CompiledProblem& compiled, Direction direction, Family family) {
  return text_of_difference_kernel(compiled.problem, program_of(compiled, direction),
                                   tables_of(compiled, direction, family, Gains::kBeside));
}

/// The mask of an element, for kernels that find tile states; decode kernels do it themselves, and name it always.
std::string mask_text(const compiler::CompiledProblem& compiled, Direction direction, Family family) {
  const Program& program = program_of(compiled, direction);
  const MaskKnowledge mask = mask_knowledge(compiled, direction);
  const bool few = is_few_queries(family);
  if (few ? mask.kind == MaskKnowledge::Kind::kList : mask.has_states())
    return mask_function(compiled.problem, program, mask.terms);
  if (!few) return {};
  return fill(part(embedded::kAttentionProgram, "mask"),
              {{"linkage", linkage(program)}, {"statements", ""}, {"keep", "true"}});
}

/// The mask of a box of elements.
std::string mask_ranges(const compiler::CompiledProblem& compiled, Direction direction, Family family) {
  const MaskKnowledge mask = mask_knowledge(compiled, direction);
  if (is_few_queries(family) || !mask.has_states()) return {};
  return mask_ranges_function(compiled.problem, program_of(compiled, direction), mask.terms);
}

}  // namespace

std::string text_before_kernels(const compiler::CompiledProblem& compiled, Direction direction, const TileShape& shape,
                                std::optional<std::string_view> primitives, const OperandText& operands, Gains gains) {
  const DifferenceTables tables = tables_of(compiled, direction, shape.family, gains);
  return concat(text_before(compiled, direction, shape, mask_knowledge(compiled, direction), primitives, operands),
                text_of_difference_reads(tables), function_of(compiled, direction, shape, operands, tables, gains));
}

std::string text_of_tile_states(const compiler::CompiledProblem& compiled, Direction direction) {
  const std::string ranges = mask_ranges(compiled, direction, Family::kPortable);
  if (ranges.empty()) return {};
  return concat(mask_text(compiled, direction, Family::kPortable),
                fill(embedded::kAttentionMaskRanges, {{"mask", ranges}}), embedded::kAttentionTileStates);
}

std::string attention_source(const compiler::CompiledProblem& compiled, Direction direction, const TileShape& shape,
                             std::optional<std::string_view> primitives, std::span<const OperandTarget> targets) {
  const OperandText operands(compiled, targets);
  const std::string before = text_before_kernels(compiled, direction, shape, primitives, operands, Gains::kBeside);
  const std::string kernels = text_of_kernels(direction, shape);
  if (is_few_queries(shape.family)) return concat(before, mask_text(compiled, direction, shape.family), kernels);
  return concat(before, kernels, text_of_tile_states(compiled, direction),
                text_of_differences(compiled, direction, shape.family), targets.empty() ? "" : operands.totals());
}

std::vector<std::string> attention_modules(const compiler::CompiledProblem& compiled, Direction direction,
                                           const TileShape& shape, std::span<const OperandTarget> targets) {
  if (is_few_queries(shape.family)) return {attention_source(compiled, direction, shape)};
  const OperandText operands(compiled, targets);
  const std::string small =
      concat(text_of_tile_states(compiled, direction), text_of_differences(compiled, direction, shape.family));
  if (direction == Direction::kForward) {
    const std::string before = text_before_kernels(compiled, direction, shape, {}, operands, Gains::kBeside);
    const std::string kernels = concat(before, text_of_kernels(direction, shape));
    if (small.empty()) return {kernels};
    return {concat(before, small), kernels};
  }
  const std::string before =
      concat(text_before_kernels(compiled, direction, shape, {}, operands, Gains::kBeside), text_of_rows(shape));
  // The keys' take longest to compile: small kernels are with those of queries.
  std::vector<std::string> modules{
      concat(before, text_of_row_kernel(), text_of_queries(shape), small, targets.empty() ? "" : operands.totals())};
  for (const std::string& keys : texts_of_keys(shape)) modules.push_back(concat(before, keys));
  return modules;
}

Bytes key_of_source(const compiler::CompiledProblem& compiled, Direction direction, const TileShape& shape,
                    std::span<const OperandTarget> targets) {
  CanonicalWriter out;
  const OperandText operands(compiled, targets);
  write_frame(out, compiled, direction, shape, operands);
  const DifferenceTables tables = tables_of(compiled, direction, shape.family, Gains::kBeside);
  out.integer(static_cast<std::int64_t>(tables.nodes.size())).boolean(tables.by_batch).boolean(tables.by_head);
  out.text(function_of(compiled, direction, shape, operands, tables, Gains::kBeside));
  out.text(text_of_differences(compiled, direction, shape.family));
  out.text(mask_text(compiled, direction, shape.family)).text(mask_ranges(compiled, direction, shape.family));
  out.text(targets.empty() ? "" : operands.places() + operands.totals());
  return out.written();
}

Bytes structure_of_source(const compiler::CompiledProblem& compiled, Direction direction, const TileShape& shape,
                          std::span<const OperandTarget> targets) {
  CanonicalWriter out;
  write_frame(out, compiled, direction, shape, OperandText(compiled, targets));
  write_structure(out, program_of(compiled, direction));
  write_structure(out, direction == Direction::kForward ? compiled.forward.mask : compiled.backward->mask);
  // Which they are depends on the values of constants too.
  const std::vector<NodeId> terms = mask_knowledge(compiled, direction).terms;
  out.list(terms.size());
  for (const NodeId term : terms) out.integer(term);
  const DifferenceTables tables = tables_of(compiled, direction, shape.family, Gains::kBeside);
  out.list(tables.nodes.size());
  for (const NodeId node : tables.nodes) out.integer(node);
  for (std::uint32_t i = 0; i < compiled.problem.program.operands().size(); ++i)
    out.integer(static_cast<std::int64_t>(problem::spec_of(compiled.problem, i).dtype));
  out.list(targets.size());
  for (const OperandTarget& target : targets)
    out.integer(target.operand).integer(static_cast<std::int64_t>(target.sum));
  return out.written();
}

}  // namespace scoremod::backend::kernels
