#include "case_inputs.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "scoremod/error.hpp"

namespace scoremod::measure {
namespace {

bool is_operand(const std::string& name) { return name != "q" && name != "k" && name != "v" && name != "d_o"; }

std::vector<InputSpec> only(const std::vector<InputSpec>& inputs, bool operands) {
  std::vector<InputSpec> found;
  std::ranges::copy_if(inputs, std::back_inserter(found),
                       [&](const InputSpec& input) { return is_operand(input.tensor) == operands; });
  return found;
}

Fill fill_of(const InputSpec& input) {
  switch (input.kind) {
    case InputKind::kNormal: return {FillKind::kNormal, input.low, input.high};
    case InputKind::kSegments: return {FillKind::kSegments, input.low, input.high};
    default: return {FillKind::kUniform, input.low, input.high};
  }
}

void check(const InputSpec& input) {
  if (input.kind == InputKind::kNpy) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "inputs." + input.tensor + ": a benchmark takes no files; expected values, normal, uniform or segments");
  }
}

/// Values that are written out, into the memory of a dense i32 or f32 operand.
void write_values(const InputSpec& input, const AttentionProblem& problem, ProblemInputs& inputs) {
  const auto spec = std::ranges::find(problem.operands, input.tensor, &OperandSpec::name);
  const auto operand = std::ranges::find(inputs.operands, input.tensor, &OwnedOperand::name);
  const bool fits = spec != problem.operands.end() && operand != inputs.operands.end() &&
                    (spec->dtype == DType::kI32 || spec->dtype == DType::kF32) &&
                    operand->bytes.size() == input.values.size() * 4;
  if (!fits) {
    throw Error(ErrorCode::kInvalidArgument,
                "inputs." + input.tensor +
                    ": a benchmark takes values of dense i32 and f32 operands only; expected "
                    "normal, uniform or segments");
  }
  for (std::size_t i = 0; i < input.values.size(); ++i) {
    if (spec->dtype == DType::kI32) {
      const auto value = static_cast<std::int32_t>(input.values[i]);
      std::memcpy(operand->bytes.data() + 4 * i, &value, 4);
    } else {
      const auto value = static_cast<float>(input.values[i]);
      std::memcpy(operand->bytes.data() + 4 * i, &value, 4);
    }
  }
}

void copy_bytes(const std::string& from, const std::string& to, ProblemInputs& inputs) {
  const auto source = std::ranges::find(inputs.operands, from, &OwnedOperand::name);
  std::ranges::find(inputs.operands, to, &OwnedOperand::name)->bytes = source->bytes;
}

}  // namespace

InputMaker::Source InputMaker::tensors_of(const BenchCase& bench_case) {
  Source source{bench_case.problem, only(bench_case.inputs, false), {}, bench_case.seed};
  source.problem.program = AttentionProblem().program;
  source.problem.operands.clear();
  source.problem.backward = source.problem.stats = false;
  return source;
}

/// The operands' sizes do not depend on the head dims, so that the rest can be small.
InputMaker::Source InputMaker::operands_of(const BenchCase& bench_case) {
  Source source{bench_case.problem, only(bench_case.inputs, true), bench_case.same_inputs, bench_case.seed};
  AttentionProblem& problem = source.problem;
  problem.dim_qk = problem.dim_v = 1;
  problem.q = problem.k = problem.v = problem.o = {};
  problem.backward = problem.stats = false;
  return source;
}

std::shared_ptr<const ProblemInputs> InputMaker::make(const Source& source) {
  RandomInputOptions options;
  options.seed = source.seed;
  for (const InputSpec& input : source.inputs) {
    check(input);
    if (input.kind != InputKind::kValues) options.overrides.push_back({input.tensor, fill_of(input)});
  }
  auto made = std::make_shared<ProblemInputs>(random_inputs(source.problem, options));
  for (const InputSpec& input : source.inputs) {
    if (input.kind == InputKind::kValues) write_values(input, source.problem, *made);
  }
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
