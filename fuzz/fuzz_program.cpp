// The text of programs: whatever is read is written so that it reads back, and compiles or is refused.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "scoremod/problem.hpp"

#include "compiler/pipeline.hpp"
#include "expect.hpp"

namespace {

using scoremod::AttentionProblem;
using scoremod::Program;

/// A small problem of the program; its tables hold eight entries along each dimension.
AttentionProblem problem_of(const Program& program) {
  AttentionProblem problem;
  problem.batch = 2;
  problem.heads_q = 4;
  problem.heads_kv = 2;
  problem.seq_q = 96;
  problem.seq_kv = 160;
  problem.backward = problem.stats = true;
  problem.program = program;
  const std::int64_t sizes[] = {problem.batch, problem.heads_q, problem.seq_q, problem.seq_kv};
  for (const scoremod::OperandDecl& decl : program.operands()) {
    scoremod::OperandSpec spec;
    spec.name = decl.name;
    spec.dtype = decl.type == scoremod::Type::kF32   ? scoremod::DType::kF32
                 : decl.type == scoremod::Type::kI32 ? scoremod::DType::kI32
                                                     : scoremod::DType::kBool;
    if (decl.is_table()) spec.shape.assign(static_cast<std::size_t>(decl.table_rank), 8);
    for (std::size_t axis = 0; axis < scoremod::kAxisCount; ++axis) {
      if (decl.axes[axis]) spec.shape.push_back(sizes[axis]);
    }
    problem.operands.push_back(std::move(spec));
  }
  return problem;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Program program;
  if (!scoremod::fuzz::takes([&] { program = Program::parse(text); })) return 0;
  scoremod::fuzz::expect(Program::parse(program.to_string()) == program, "a program's text reads back as the program");
  scoremod::fuzz::takes([&] { (void)scoremod::compiler::compile(problem_of(program)); });
  return 0;
}
