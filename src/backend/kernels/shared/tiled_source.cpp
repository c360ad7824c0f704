#include <algorithm>
#include <array>

#include "analysis/dependence.hpp"
#include "analysis/differences.hpp"
#include "backend/cuda/text/kernel_text.hpp"
#include "backend/cuda/text/program_source.hpp"
#include "backend/kernels/family.hpp"
#include "backend/kernels/operand_gradients/operand_gradients.hpp"
#include "backend/kernels/shared/tile_time.hpp"
#include "backend/kernels/shared/tiled_variant.hpp"
#include "backend/of_structure.hpp"
#include "backend/program_structure.hpp"
#include "base/canonical_bytes.hpp"
#include "base/fail.hpp"
#include "compiler/compiled_problem.hpp"
#include "ir/builder.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::kernels {
namespace {

/// The 16-bit dtype of the kernels: that of q, k and v, or of o if only o has one.
DType half_dtype(const AttentionProblem& problem) {
  if (problem.dtype == DType::kF16 || problem.dtype == DType::kBF16) return problem.dtype;
  return problem.dtype_o.value_or(DType::kBF16);
}

/// Whether an operand has numbers of its own along the axis, or there is no mask. A table's indices are clamped where
/// it is read.
bool clamps_along(const Program& program, Axis axis) {
  return program.keep() == kNoNode || std::ranges::any_of(program.operands(), [&](const OperandDecl& operand) {
           return !operand.is_table() && operand.axes[static_cast<std::size_t>(axis)];
         });
}

const char* output_kind(const AttentionProblem& problem) {
  const DType output = problem.dtype_o.value_or(problem.dtype);
  if (output == DType::kF32) return "kFloatOutput";
  return output == half_dtype(problem) ? "kHalfOutput" : "kOtherHalfOutput";
}

const char* key_kind(const AttentionProblem& problem) {
  const DType keys = problem::dtype_of(problem, problem::TensorRole::kK);
  if (!is_float8(keys)) return "kElementKeys";
  return keys == DType::kE4M3 ? "kE4M3Keys" : "kE5M2Keys";
}

const char* flag(bool value) { return value ? "true" : "false"; }

void set_problem(Holes& holes, const AttentionProblem& problem) {
  holes.set("bf16", flag(half_dtype(problem) == DType::kBF16));
  holes.set("floats", flag(problem.dtype == DType::kF32));
  holes.set("key_kind", key_kind(problem));
  holes.set("row_scales", flag(problem::has_row_scales(problem)));
  holes.set("float8_queries", flag(is_float8(problem.dtype)));
  holes.set("dim_qk", problem.dim_qk);
  holes.set("index_offsets", flag(problem.index_offsets));
  holes.set("given_deltas", flag(problem.given_deltas));
  holes.set("has_sink", flag(problem.sink != Sink::kNone));
  holes.set("dropout", flag(problem.dropout > 0));
  holes.set("dropout_keys", flag(problem.dropout_keys));
  holes.set("dropout_places", flag(problem::has_dropout_places(problem)));
  holes.set("max_logit", flag(problem.max_logit));
  holes.set("ragged_queries", flag(problem.tokens_q.has_value()));
  holes.set("ragged_keys", flag(problem.tokens_kv.has_value()));
  holes.set("paged", flag(problem.paged.has_value()));
  holes.set("block_rows", problem.paged ? problem.paged->block_size : 1);
  holes.set("output", output_kind(problem));
}

void set_program(Holes& holes, const AttentionProblem& problem, const Program& program, const MaskKnowledge& mask) {
  const bool score_is_value =
      program.nodes()[program.value()].op == Op::kScore && mask.kind != MaskKnowledge::Kind::kScore;
  holes.set("clamps_queries", flag(clamps_along(program, Axis::kQuery)));
  holes.set("clamps_keys", flag(clamps_along(program, Axis::kKey)));
  holes.set("operands", std::max<std::size_t>(problem.program.operands().size(), 1));
  holes.set("score_is_value", flag(score_is_value));
}

void set_shape(Holes& holes, const TileShape& shape, const KernelTraits& traits) {
  holes.set("float_tiles", flag(shape.holds_floats()));
  holes.set("queries", shape.queries);
  holes.set("keys", shape.keys);
  holes.set("warps", shape.warps);
  holes.set("row_tiles", shape.row_tiles);
  holes.set("blocks", shape.blocks);
  holes.set("step", traits.step);
  holes.set("part", traits.part);
  holes.set("key_step", traits.key_step);
  holes.set("pack_gqa", flag(traits.pack_gqa));
  holes.set("teams", traits.teams);
  holes.set("value_groups", traits.value_groups);
  holes.set("producers", traits.producers);
  holes.set("stages", traits.stages);
  holes.set("persistent", flag(traits.persistent));
  holes.set("separate_dv", flag(traits.separate_dv));
  holes.set("fused", flag(traits.fused));
  holes.set("heads_take_turns", flag(traits.heads_take_turns));
  holes.set("recomputed_delta", flag(traits.recomputed_delta));
}

void set_mask(Holes& holes, const MaskKnowledge& mask) {
  static constexpr std::array<const char*, 3> kKinds{"kBandMask", "kScoreMask", "kListedMask"};
  holes.set("mask_kind", kKinds[static_cast<std::size_t>(mask.kind)]);
  holes.set("has_states", flag(mask.has_states()));
  holes.set("mask_varies_with_batch", flag(mask.varies_with_batch));
  holes.set("mask_varies_with_head", flag(mask.varies_with_head));
  holes.set("mask_varies_with_query", flag(mask.varies_with_query));
  holes.set("mask_grows_with_query", flag(mask.grows_with_query));
  holes.set("mask_keeps_prefix", flag(mask.keeps_prefix));
}

/// Fills the holes of shared/elements.cuh, the constants of a direction's kernels.
void fill_settings(Holes& holes, const compiler::CompiledProblem& compiled, const TileShape& shape,
                   const KernelTraits& traits, const MaskKnowledge& mask) {
  set_problem(holes, compiled.problem);
  set_program(holes, compiled.problem, compiled.forward.program, mask);
  set_shape(holes, shape, traits);
  holes.set("dim_v", value_dims(shape, compiled.problem.dim_v));
  holes.set("all_dim_v", compiled.problem.dim_v);
  set_mask(holes, mask);
}

using cuda::file_text;
using cuda::fill;
using cuda::OperandSizes;
using cuda::part;
using cuda::ProgramSource;

constexpr std::string_view kProgram = "backend/kernels/shared/program.cuh",
                           kDerivative = "backend/kernels/shared/derivative.cuh";

/// The cost of a node and all its inputs that is worth a table, in the milliseconds of NodeCosts: more than a read
/// takes. A backward has few registers to spare for the reads. With its bias in a table ALiBi's took 3.69 ms on an
/// H200, and 3.41 without.
constexpr double kWorthATable = 0.15, kWorthATableOfADerivative = 0.5;

/// The cost of all nodes that are evaluated for each score. Nodes that vary along one of queries and keys, or neither,
/// are evaluated for a row or once.
double cost_of_all(const Program& program, const std::vector<analysis::Dependence>& dependences, NodeId root) {
  const std::vector<Node>& nodes = program.nodes();
  std::vector<bool> needed(nodes.size());
  needed[root] = true;
  double cost = 0;
  for (NodeId id = root + 1; id-- > 0;) {
    if (!needed[id]) continue;
    if (dependences[id].on(Axis::kQuery) && dependences[id].on(Axis::kKey)) cost += node_cost(nodes[id], program);
    for (const NodeId arg : ir::args_of(nodes[id])) needed[arg] = true;
  }
  return cost;
}

/// Has a source read the tables, in a function that has p, b, h, any_q and any_kv.
void read_tables(ProgramSource& source, const PositionTables& tables) {
  for (std::size_t i = 0; i < tables.nodes.size(); ++i)
    source.replace(tables.nodes[i], concat("difference_at<", i, ">(p, b, h, any_q, any_kv)"));
}

/// Fills the holes of the tables in shared/program.cuh.
void fill_tables(Holes& holes, const AttentionProblem& problem, const Program& program, const PositionTables& tables) {
  if (tables.nodes.empty()) return holes.set("position_tables", "");
  holes.set("position_tables",
            fill(part(file_text(kProgram), "position_tables"), {{"count", tables.nodes.size()},
                                                                {"by_batch", tables.by_batch ? "true" : "false"},
                                                                {"by_head", tables.by_head ? "true" : "false"}}));
  ProgramSource source(problem, program, cuda::OperandSizes::kArguments);
  const std::string statements = source.statements(tables.nodes);
  std::string values;
  for (const NodeId node : tables.nodes) values += concat(values.empty() ? "" : ", ", ProgramSource::variable(node));
  CanonicalWriter structure;
  write_structure(structure, program);
  structure.list(tables.nodes.size());
  for (const NodeId node : tables.nodes) structure.integer(node);
  holes.set_program("position_statements", with_operands(source, statements), structure.written());
  holes.set("position_values", values);
}

/// The tables that a direction's kernels read. Decode kernels have rows of several heads in a tile, and kernels of
/// gradients alone walk once, so these read none.
PositionTables tables_of(const compiler::CompiledProblem& problem, Direction direction, bool pack_gqa, Gains gains) {
  if (pack_gqa || gains == Gains::kApart) return {};
  return position_tables(problem, direction);
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
  return fill(part(file_text(kDerivative), "gains"), {{"value", ProgramSource::variable(derivative.value())},
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
  return fill(part(file_text(kDerivative), "backward"), {{"linkage", linkage(derivative)},
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

/// The operand of the scale of this name.
std::string scale_operand(const AttentionProblem& problem, const char* name) {
  const auto number = problem::operand_number(problem.program, name);
  if (!number) fail_bug("a problem with FP8 tensors whose program does not declare '", name, "'");
  return concat("p.operands[", *number, "]");
}

/// The scales of FP8 tensors. A call has stride 0 for one of the whole tensor, as those of q are.
std::string key_factor_functions(const AttentionProblem& problem) {
  const bool of_queries = is_float8(problem.dtype);
  const auto of_head = [&](const char* name) {
    const std::string operand = scale_operand(problem, name);
    return concat("((const float*)", operand, ".data)[kv_head * ", operand, ".stride[0]]");
  };
  const auto of_tensor = [&](const char* name) {
    return concat("load_constant((const float*)", scale_operand(problem, name), ".data)");
  };
  const auto at_row = [&](const char* name, const char* tensor) {
    const std::string operand = scale_operand(problem, name);
    if (!problem::has_block_scales(problem, name))
      return concat("(const float*)", operand, ".data + kv_head * ", operand, ".stride[0]");
    return concat("row_scale_at(", operand, ", p.call.", tensor, ", p.call, b, kv_head, kv)");
  };
  std::string of_keys = "1.0f", of_values = "1.0f", of_products = "p.call.scale";
  if (problem::has_row_scales(problem)) {
    return fill(part(file_text(kProgram), "key_factors"), {{"of_keys", of_keys},
                                                           {"of_values", of_values},
                                                           {"key_scale", at_row(problem::kDescaleOfKeys, "k")},
                                                           {"value_scale", at_row(problem::kDescaleOfValues, "v")},
                                                           {"scale_of_products", of_products}});
  }
  if (problem::has_float8_keys(problem)) of_values = of_head(problem::kDescaleOfValues);
  if (of_queries)
    of_products +=
        concat(" * (", of_tensor(problem::kDescaleOfQueries), " * ", of_tensor(problem::kDescaleOfKeys), ")");
  else if (problem.dtype_kv)
    of_keys = of_head(problem::kDescaleOfKeys);
  return fill(part(file_text(kProgram), "key_factors"), {{"of_keys", of_keys},
                                                         {"of_values", of_values},
                                                         {"key_scale", "nullptr"},
                                                         {"value_scale", "nullptr"},
                                                         {"scale_of_products", of_products}});
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

void fill_forward(Holes& holes, const Work& work, std::optional<std::uint32_t> copied, const PositionTables& tables) {
  const compiler::CompiledProblem& compiled = work.problem;
  CanonicalWriter structure;
  structure.bytes(structure_of_program(compiled, work.direction, tables));
  structure.integer(copied ? static_cast<std::int64_t>(*copied) : -1);
  holes.set_program("forward", forward_function(compiled.problem, compiled.forward.program, tables, copied),
                    structure.written());
}

/// Whether the program, but for what its operands are read at, computes with a query's or a key's index.
bool computes_with_indices(const Program& program) {
  return std::ranges::any_of(program.nodes(),
                             [](const Node& node) { return node.op == Op::kQueryIdx || node.op == Op::kKeyIdx; });
}

/// Fills the holes of shared/derivative.cuh.
void fill_backward(Holes& holes, const Work& work, std::optional<std::uint32_t> copied, const PositionTables& tables,
                   Gains gains) {
  const auto& [compiled, direction, targets] = work;
  const Program& derivative = compiled.backward->program;
  const OperandText operands(compiled, targets);
  operands.fill_targets(holes);
  holes.set("computes_with_indices", flag(computes_with_indices(derivative)));
  holes.set("reads_operands", flag(!compiled.problem.program.operands().empty()));
  CanonicalWriter structure;
  structure.bytes(structure_of_program(compiled, direction, tables));
  structure.integer(copied ? static_cast<std::int64_t>(*copied) : -1).bytes(operands.structure());
  holes.set("forward", "");
  holes.set_program("backward", backward_function(compiled.problem, derivative, operands, tables, copied, gains),
                    structure.written());
}

/// The mask of an element, for kernels that make the block mask. Decode kernels evaluate it themselves, and always name
/// it.
std::string mask_text(const compiler::CompiledProblem& compiled, Direction direction, bool pack_gqa) {
  const Program& program = program_of(compiled, direction);
  const MaskKnowledge mask = mask_knowledge(compiled, direction);
  if (pack_gqa ? mask.kind == MaskKnowledge::Kind::kList : mask.has_states())
    return mask_function(compiled.problem, program, mask.terms);
  return fill(part(file_text(kProgram), "keeps"),
              {{"linkage", linkage(program)}, {"statements", ""}, {"keep", "true"}});
}

void fill_mask(Holes& holes, const compiler::CompiledProblem& compiled, Direction direction, bool pack_gqa) {
  const MaskKnowledge mask = mask_knowledge(compiled, direction);
  // The values of constants decide which terms a mask has, and the program's structure is in another hole.
  CanonicalWriter structure;
  structure.list(mask.terms.size());
  for (const NodeId term : mask.terms) structure.integer(term);
  holes.set_program("keeps", mask_text(compiled, direction, pack_gqa), structure.written());
  if (mask.has_states()) {
    holes.set_program("mask_over", mask_ranges_function(compiled.problem, program_of(compiled, direction), mask.terms),
                      structure.written());
  }
}

}  // namespace

std::int64_t PositionTables::entries(const AttentionProblem& problem, std::int64_t rows, std::int64_t keys) const {
  return (by_batch ? problem.batch : 1) * (by_head ? problem.heads_q : 1) * (rows + keys);
}

PositionTables position_tables(const Program& program) {
  const std::vector<Node>& nodes = program.nodes();
  const std::vector<bool> of_differences = analysis::of_differences(program);
  const std::vector<analysis::Dependence> dependences = analysis::dependences(program);
  std::vector<bool> needed(nodes.size());
  for (const Root& root : program.roots()) {
    if (root.kind != RootKind::kKeep) needed[root.node] = true;
  }
  const bool derivative =
      std::ranges::any_of(program.roots(), [](const Root& root) { return root.kind == RootKind::kScoreAdjoint; });
  const double worth = derivative ? kWorthATableOfADerivative : kWorthATable;
  PositionTables tables;
  for (NodeId id = static_cast<NodeId>(nodes.size()); id-- > 0;) {
    if (!needed[id]) continue;
    const analysis::Dependence& on = dependences[id];
    const bool varies = on.on(Axis::kQuery) && on.on(Axis::kKey);
    if (of_differences[id] && varies && nodes[id].type == Type::kF32) {
      if (tables.nodes.size() == kMaxPositionTables || cost_of_all(program, dependences, id) < worth) continue;
      tables.nodes.push_back(id);
      tables.by_batch = tables.by_batch || on.on(Axis::kBatch);
      tables.by_head = tables.by_head || on.on(Axis::kHead);
      continue;
    }
    for (const NodeId arg : ir::args_of(nodes[id])) needed[arg] = true;
  }
  return tables;
}

PositionTables position_tables(const compiler::CompiledProblem& problem, Direction direction) {
  return *of_structure<PositionTables>(problem, direction,
                                       [&] { return position_tables(program_of(problem, direction)); });
}

void fill_attention(Holes& holes, const Work& work, const TileShape& shape, const KernelTraits& traits, Gains gains) {
  const auto& [compiled, direction, targets] = work;
  fill_settings(holes, compiled, shape, traits, mask_knowledge(compiled, direction));
  holes.set("is_forward", flag(direction == Direction::kForward));
  holes.set("packs_tiles", flag(packs_tiles(compiled.problem, targets.empty())));
  holes.set("key_factors", key_factor_functions(compiled.problem));
  holes.set("sink", sink_function(compiled.problem));
  const PositionTables tables = tables_of(compiled, direction, traits.pack_gqa, gains);
  fill_tables(holes, compiled.problem, program_of(compiled, direction), tables);
  if (direction == Direction::kForward)
    fill_forward(holes, work, traits.loaded_bias, tables);
  else
    fill_backward(holes, work, traits.loaded_bias, tables, gains);
  fill_mask(holes, compiled, direction, traits.pack_gqa);
}

Module block_mask_files(const compiler::CompiledProblem& compiled, Direction direction) {
  if (!mask_knowledge(compiled, direction).has_states()) return {};
  return {{"backend/kernels/shared/block_mask.cuh"}};
}

KernelSource TiledVariant::source(const Work& work) const {
  const bool pack_gqa = traits().pack_gqa;
  const auto& [small_files, large_files] = files(work.direction);
  KernelSource source;
  fill_attention(source.holes, work, tile(), traits(), Gains::kBeside);
  fill(source.holes, work);
  Module small = small_files;
  const auto add = [&](const Module& more) { small.insert(small.end(), more.begin(), more.end()); };
  if (!pack_gqa) {
    add(block_mask_files(work.problem, work.direction));
    if (!tables_of(work.problem, work.direction, pack_gqa, Gains::kBeside).nodes.empty())
      add({{kProgram, {"attention_differences"}}});
  }
  if (written_tokens(work)) add({{"backend/kernels/shared/outside_rows.cuh"}});
  if (!work.targets.empty()) {
    OperandText(work.problem, work.targets).fill_totals(source.holes);
    add({{kTotalsFile}});
  }
  if (!small.empty()) source.modules.push_back(std::move(small));
  for (const ModuleFile& file : large_files) source.modules.push_back({file});
  return source;
}

}  // namespace scoremod::backend::kernels
