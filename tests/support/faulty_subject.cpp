#include "support/faulty_subject.hpp"

#include <memory>

#include "backend/reference/reference_backend.hpp"
#include "runtime/call_tensors.hpp"

namespace scoremod::test {

using checking::Subject;

Subject reference_subject(const compiler::CompiledProblem& compiled) {
  const std::shared_ptr<backend::ForwardPlan> forward = backend::reference::make_forward_plan(compiled);
  std::shared_ptr<backend::BackwardPlan> backward;
  if (compiled.backward) backward = backend::reference::make_backward_plan(compiled);
  const AttentionProblem problem = compiled.problem;
  Subject subject;
  subject.backend = "reference";
  subject.forward = [=](const ForwardArgs& args, Buffer workspace) {
    const runtime::ForwardCall call = runtime::check_call(problem, args, workspace, 0, backend::host_memory());
    forward->execute(call.tensors, call.parameters, {});
  };
  subject.backward = [=](const BackwardArgs& args, Buffer workspace) {
    const runtime::BackwardCall call = runtime::check_call(problem, args, workspace, 0, backend::host_memory());
    backward->execute(call.tensors, call.parameters, {});
  };
  return subject;
}

Subject after_forward(Subject subject, const std::function<void(const ForwardArgs&)>& fault) {
  const auto run = subject.forward;
  subject.forward = [=](const ForwardArgs& args, Buffer workspace) {
    run(args, workspace);
    fault(args);
  };
  return subject;
}

Subject after_backward(Subject subject, const std::function<void(const BackwardArgs&)>& fault) {
  const auto run = subject.backward;
  subject.backward = [=](const BackwardArgs& args, Buffer workspace) {
    run(args, workspace);
    fault(args);
  };
  return subject;
}

}  // namespace scoremod::test
