#include "unit/backend/cudnn/lowering/lowered_programs.hpp"

#include <array>
#include <functional>
#include <set>

#include "compiler/pipeline.hpp"

namespace scoremod::backend::cudnn {

compiler::CompiledProblem compiled(const Program& program, Lengths lengths) {
  AttentionProblem problem;
  problem.batch = 2;
  problem.heads_q = problem.heads_kv = 4;
  problem.seq_q = lengths.q;
  problem.seq_kv = lengths.kv;
  problem.dtype = DType::kBF16;
  problem.backward = true;
  problem.program = program;
  const std::array<std::int64_t, kAxisCount> sizes{2, 4, lengths.q, lengths.kv};
  for (const OperandDecl& decl : program.operands()) {
    const DType dtype = decl.type == Type::kF32 ? DType::kF32 : decl.type == Type::kI32 ? DType::kI32 : DType::kBool;
    OperandSpec spec{decl.name, dtype, {}, {}};
    if (decl.is_table()) spec.shape.assign(static_cast<std::size_t>(decl.table_rank), 32);
    for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
      if (decl.axes[axis]) spec.shape.push_back(sizes[axis]);
    }
    problem.operands.push_back(spec);
  }
  return compiler::compile(problem);
}

bool everything(std::string_view) { return true; }

LoweringResult lowered(const std::string& program, bool backward, Lengths lengths, PatternFilter allowed,
                       int node_budget) {
  return lower(compiled(Program::parse(program), lengths), {backward, false, allowed, node_budget});
}

std::string text_of(const LoweringResult& result) {
  return result.lowered ? to_string(result.lowered->graph) : "refused: " + result.reasons.front();
}

PatternFilter right_on_h200(bool backward, RowClass rows) {
  return [table = shipped_pattern_table("sm_90", "9.19.0", rows), backward](std::string_view pattern) {
    return table.find(pattern, backward ? Direction::kBackward : Direction::kForward) == PatternVerdict::kRight;
  };
}

PatternFilter without(std::initializer_list<const char*> patterns) {
  return [left_out = std::set<std::string, std::less<>>(patterns.begin(), patterns.end())](std::string_view pattern) {
    return !left_out.contains(pattern);
  };
}

}  // namespace scoremod::backend::cudnn
