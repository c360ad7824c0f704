#include "backend/cudnn/lowering/page_mask.hpp"

#include <string>
#include <utility>
#include <vector>

#include "compiler/pipeline.hpp"
#include "ir/copy_program.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::cudnn {
namespace {

/// A name that no operand of the program has.
std::string free_name(const Program& program) {
  std::string name = "names_pages";
  while (problem::operand_number(program, name)) name += "_";
  return name;
}

Program masked(const Program& program, const OperandDecl& names_pages) {
  ir::Builder builder;
  const std::vector<NodeId> ids = ir::copy_program(program, builder);
  const std::uint32_t operand = builder.declare(names_pages);
  const NodeId is_there = builder.make(Op::kNe, {builder.operand(operand), builder.constant(std::int32_t{0})});
  const bool keeps_all = program.keep() == kNoNode;
  const NodeId keep = keeps_all ? is_there : builder.make(Op::kAnd, {ids[program.keep()], is_there});
  return builder.finish(ids[program.value()], keep);
}

}  // namespace

compiler::CompiledProblem with_page_mask(const compiler::CompiledProblem& problem) {
  AttentionProblem paged = problem.problem;
  const OperandDecl decl{free_name(paged.program), Type::kI32, {true, false, false, true}, 0};
  paged.operands.push_back(problem::default_spec(paged, decl));
  paged.program = masked(paged.program, decl);
  // They are in the mask, and a valid problem with pages has them beside it, too.
  paged.lengths.kv = true;
  return compiler::compile(paged);
}

std::optional<std::uint32_t> page_mask_operand(const AttentionProblem& problem) {
  if (!problem.paged) return std::nullopt;
  return static_cast<std::uint32_t>(problem.program.operands().size() - 1);
}

}  // namespace scoremod::backend::cudnn
