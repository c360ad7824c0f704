#include "conformance/operand_faults.hpp"

#include <algorithm>

namespace scoremod::test {

bool passes(const compiler::CompiledProblem& right, const checking::Subject& subject, const ProblemInputs& inputs) {
  CheckOptions options;
  options.inputs = inputs;
  return checking::check_subject(right, subject, inputs, options).passed();
}

checking::Subject with_operand(const checking::Subject& subject, const std::string& name,
                               const std::vector<std::int32_t>& data) {
  checking::Subject faulty = subject;
  const auto replace = [name, &data](std::vector<OperandBuffer>& operands) {
    const auto operand = std::ranges::find(operands, name, &OperandBuffer::name);
    operand->buffer = {data.data(), data.size() * sizeof(std::int32_t)};
  };
  faulty.forward = [=](ForwardArgs args, Buffer workspace) {
    replace(args.operands);
    subject.forward(args, workspace);
  };
  faulty.backward = [=](BackwardArgs args, Buffer workspace) {
    replace(args.operands);
    subject.backward(args, workspace);
  };
  return faulty;
}

}  // namespace scoremod::test
