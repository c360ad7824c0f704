#include "backend/kernels/shared/tiled_source.hpp"

#include <algorithm>

#include "backend/cuda/kernel_text.hpp"
#include "backend/cuda/program_source.hpp"
#include "backend/kernels/mask/mask_knowledge.hpp"
#include "backend/kernels/mask/mask_ranges.hpp"
#include "backend/kernels/shared/position_tables.hpp"
#include "backend/kernels/shared/settings.hpp"
#include "backend/kernels/text/program_text.hpp"
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

constexpr std::string_view kProgram = "backend/kernels/shared/program.cuh";

/// Larger programs become functions that are called: a copy for every element of a thread's tile would take NVRTC
/// minutes, and leave the instruction cache.
constexpr std::size_t kMaxInlinedNodes = 120;

/// The tables that a direction's kernels read. Decode kernels have rows of several heads in a tile, and kernels of
/// gradients alone walk once, so these read none.
PositionTables tables_of(const compiler::CompiledProblem& problem, Direction direction, Family family, Gains gains) {
  if (is_split_kv(family) || gains == Gains::kApart) return {};
  return position_tables(program_of(problem, direction));
}

/// Reads of the operand whose tiles are copied, if any.
void read_copied(ProgramSource& source, const Program& program, std::optional<std::uint32_t> copied) {
  for (NodeId id = 0; id < program.nodes().size(); ++id) {
    const Node& node = program.nodes()[id];
    if (node.op == Op::kOperand && node.payload == copied) source.offer(id, "kCopied", "copied");
  }
}

std::string forward_function(const AttentionProblem& problem, const Program& program, const PositionTables& tables,
                             std::optional<std::uint32_t> copied) {
  ProgramSource source(problem, program, OperandSizes::kArguments);
  read_tables(source, tables);
  read_copied(source, program, copied);
  const std::string statements = source.statements(forward_nodes(program));
  return fill(part(file_text(kProgram), "forward"), {{"linkage", linkage(program)},
                                                     {"statements", with_operands(source, statements)},
                                                     {"keep", keep_variable(program)},
                                                     {"value", ProgramSource::variable(program.value())}});
}

/// The text of the operand gradients at an element, at the end of its derivative.
std::string gains_of(ProgramSource source, const Program& derivative, const OperandText& operands) {
  return fill(part(file_text(kProgram), "gains"), {{"value", ProgramSource::variable(derivative.value())},
                                                   {"gains_statements", operands.statements(source)},
                                                   {"contributions", operands.contributions()}});
}

std::string backward_function(const AttentionProblem& problem, const Program& derivative, const OperandText& operands,
                              const PositionTables& tables, std::optional<std::uint32_t> copied, Gains where) {
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
  return fill(part(file_text(kProgram), "backward"), {{"linkage", linkage(derivative)},
                                                      {"gains", gains},
                                                      {"forward_statements", forward},
                                                      {"value", ProgramSource::variable(derivative.value())},
                                                      {"keep", keep_variable(derivative)},
                                                      {"statements", statements},
                                                      {"d_score", ProgramSource::variable(root->node)}});
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
  return fill(part(file_text(kProgram), "sink"), {{"statements", statements}, {"sink", sink}});
}

std::string mask_function(const AttentionProblem& problem, const Program& program, std::span<const NodeId> terms) {
  ProgramSource source(problem, program, OperandSizes::kArguments);
  const std::string statements = source.statements(terms);
  std::string keep;
  for (const NodeId term : terms) keep += concat(keep.empty() ? "" : " && ", ProgramSource::variable(term));
  return fill(part(file_text(kProgram), "keeps"),
              {{"linkage", linkage(program)}, {"statements", with_operands(source, statements)}, {"keep", keep}});
}

/// A trial also vouches for programs with other integers, and for masks of another length.
Bytes structure_of_program(const compiler::CompiledProblem& compiled, Direction direction,
                           const PositionTables& tables) {
  CanonicalWriter out;
  write_structure(out, program_of(compiled, direction));
  write_structure(out, direction == Direction::kForward ? compiled.forward.mask : compiled.backward->mask);
  out.list(tables.nodes.size());
  for (const NodeId node : tables.nodes) out.integer(node);
  for (std::uint32_t i = 0; i < compiled.problem.program.operands().size(); ++i)
    out.integer(static_cast<std::int64_t>(problem::spec_of(compiled.problem, i).dtype));
  return out.written();
}

/// The function of a direction's program.
void fill_program(Holes& holes, const compiler::CompiledProblem& compiled, Direction direction, const TileShape& shape,
                  const OperandText& operands, const PositionTables& tables, Gains gains) {
  const auto copied = shape.loaded_bias;
  CanonicalWriter structure;
  structure.bytes(structure_of_program(compiled, direction, tables));
  structure.integer(copied ? static_cast<std::int64_t>(*copied) : -1).bytes(operands.structure());
  if (direction == Direction::kForward) {
    holes.set_program("forward", forward_function(compiled.problem, compiled.forward.program, tables, copied),
                      structure.written());
    return holes.set("backward", "");
  }
  holes.set("forward", "");
  holes.set_program("backward",
                    backward_function(compiled.problem, compiled.backward->program, operands, tables, copied, gains),
                    structure.written());
}

/// The mask of an element, for kernels that make the block mask. Decode kernels evaluate it themselves, and always name
/// it.
std::string mask_text(const compiler::CompiledProblem& compiled, Direction direction, Family family) {
  const Program& program = program_of(compiled, direction);
  const MaskKnowledge mask = mask_knowledge(compiled, direction);
  if (is_split_kv(family) ? mask.kind == MaskKnowledge::Kind::kList : mask.has_states())
    return mask_function(compiled.problem, program, mask.terms);
  return fill(part(file_text(kProgram), "keeps"),
              {{"linkage", linkage(program)}, {"statements", ""}, {"keep", "true"}});
}

void fill_mask(Holes& holes, const compiler::CompiledProblem& compiled, Direction direction, Family family) {
  const MaskKnowledge mask = mask_knowledge(compiled, direction);
  // The values of constants decide which terms a mask has, and the program's structure is in another hole.
  CanonicalWriter structure;
  structure.list(mask.terms.size());
  for (const NodeId term : mask.terms) structure.integer(term);
  holes.set_program("keeps", mask_text(compiled, direction, family), structure.written());
  if (mask.has_states()) {
    holes.set_program("mask_over", mask_ranges_function(compiled.problem, program_of(compiled, direction), mask.terms),
                      structure.written());
  }
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

void fill_attention(Holes& holes, const compiler::CompiledProblem& compiled, Direction direction,
                    const TileShape& shape, const OperandText& operands, Gains gains) {
  fill_settings(holes, compiled, shape, mask_knowledge(compiled, direction), operands);
  operands.fill_targets(holes);
  holes.set("sink", sink_function(compiled.problem));
  const PositionTables tables = tables_of(compiled, direction, shape.family, gains);
  fill_tables(holes, compiled.problem, program_of(compiled, direction), tables);
  fill_program(holes, compiled, direction, shape, operands, tables, gains);
  fill_mask(holes, compiled, direction, shape.family);
}

Module block_mask_files(const compiler::CompiledProblem& compiled, Direction direction) {
  if (!mask_knowledge(compiled, direction).has_states()) return {};
  return {{"backend/kernels/mask/block_mask.cuh"}};
}

KernelSource tiled_source(const Work& work, const TileShape& shape, const KernelFiles& files) {
  KernelSource source;
  const OperandText operands(work.problem, work.targets);
  fill_attention(source.holes, work.problem, work.direction, shape, operands, Gains::kBeside);
  Module small = files.small;
  const auto add = [&](const Module& more) { small.insert(small.end(), more.begin(), more.end()); };
  if (!is_split_kv(shape.family)) {
    add(block_mask_files(work.problem, work.direction));
    if (!tables_of(work.problem, work.direction, shape.family, Gains::kBeside).nodes.empty())
      add({{kProgram, {"attention_differences"}}});
  }
  if (!work.targets.empty()) {
    operands.fill_totals(source.holes);
    add({{kTotalsFile}});
  }
  if (!small.empty()) source.modules.push_back(std::move(small));
  for (const ModuleFile& file : files.large) source.modules.push_back({file});
  return source;
}

}  // namespace scoremod::backend::kernels
