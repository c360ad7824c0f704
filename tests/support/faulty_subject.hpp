#pragma once

#include <functional>

#include "check/check_subject.hpp"

namespace scoremod::test {

/// A subject that runs the reference backend's plans for `compiled`, which need not be the checked problem. A program
/// or derivative replaced in it is a planted fault.
checking::Subject reference_subject(const compiler::CompiledProblem& compiled);

/// The subject with something done to the outputs after it has run.
checking::Subject after_forward(checking::Subject subject, const std::function<void(const ForwardArgs&)>& fault);
checking::Subject after_backward(checking::Subject subject, const std::function<void(const BackwardArgs&)>& fault);

}  // namespace scoremod::test
