#pragma once

#include <functional>

#include "scoremod/check.hpp"

#include "backend/forward_rounding.hpp"
#include "backend/memory_space.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::checking {

/// The subject of a check: something that runs a problem. Tests check subjects with planted faults.
struct Subject {
  std::string backend;
  std::string backward_backend = {};                             ///< where there is a backward
  const backend::MemorySpace* memory = &backend::host_memory();  ///< where it wants its tensors
  double function_error = 0;                                     ///< as Backend::function_error()
  backend::ForwardRounding forward_rounding = {};                ///< as Backend::forward_rounding()
  bool backward_reads_lse = true;                                ///< as Backend::backward_reads_lse()
  std::size_t forward_workspace_bytes = 0;
  std::size_t backward_workspace_bytes = 0;
  std::function<void(const ForwardArgs&, Buffer workspace)> forward;
  std::function<void(const BackwardArgs&, Buffer workspace)> backward;
};

/// The subject that an Attention of this problem is; it must outlive the subject.
Subject subject_of(const Attention& attention, const compiler::CompiledProblem& compiled);

/// check() of scoremod/check.hpp, for any subject and inputs.
CheckReport check_subject(const compiler::CompiledProblem& compiled, const Subject& subject,
                          const ProblemInputs& inputs, const CheckOptions& options);

}  // namespace scoremod::checking
