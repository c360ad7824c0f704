#include "case_inputs.hpp"

#include <algorithm>
#include <iterator>

#include "npy.hpp"

namespace scoremod::measure {
namespace {

bool is_operand(const std::string& name) { return name != "q" && name != "k" && name != "v" && name != "d_o"; }

std::vector<InputSpec> only(const std::vector<InputSpec>& inputs, bool operands) {
  std::vector<InputSpec> found;
  std::ranges::copy_if(inputs, std::back_inserter(found),
                       [&](const InputSpec& input) { return is_operand(input.tensor) == operands; });
  return found;
}

void copy_bytes(const std::string& from, const std::string& to, ProblemInputs& inputs) {
  const auto source = std::ranges::find(inputs.operands, from, &OwnedOperand::name);
  std::ranges::find(inputs.operands, to, &OwnedOperand::name)->bytes = source->bytes;
}

}  // namespace

InputMaker::Source InputMaker::tensors_of(const BenchCase& bench_case) {
  Source source{bench_case.problem, only(bench_case.inputs, false), {}, bench_case.folder, bench_case.seed};
  source.problem.program = AttentionProblem().program;
  source.problem.operands.clear();
  source.problem.backward = source.problem.stats = false;
  return source;
}

/// The operands' sizes do not depend on the head dims, so that the rest can be small.
InputMaker::Source InputMaker::operands_of(const BenchCase& bench_case) {
  Source source{bench_case.problem, only(bench_case.inputs, true), bench_case.same_inputs, bench_case.folder,
                bench_case.seed};
  AttentionProblem& problem = source.problem;
  problem.dim_qk = problem.dim_v = 1;
  problem.q = problem.k = problem.v = problem.o = {};
  // A backward reads one operand more if d_o is FP8.
  problem.backward = problem.backward && is_float8(problem.dtype);
  problem.stats = false;
  return source;
}

std::shared_ptr<const ProblemInputs> InputMaker::make(const Source& source) {
  auto made = std::make_shared<ProblemInputs>(
      make_inputs(source.problem, source.inputs, source.seed, input::npy_files(source.folder)));
  for (const auto& [to, from] : source.same_inputs) copy_bytes(from, to, *made);
  return made;
}

void InputMaker::renew(std::shared_ptr<const ProblemInputs>& part, Source& of, Source wanted) {
  if (part != nullptr && of == wanted) return;
  part = nullptr;  // gives its memory back first
  part = make(wanted);
  of = std::move(wanted);
}

CaseInputs InputMaker::make(const BenchCase& bench_case) {
  renew(last_.tensors, tensors_, tensors_of(bench_case));
  renew(last_.operands, operands_, operands_of(bench_case));
  return last_;
}

}  // namespace scoremod::measure
