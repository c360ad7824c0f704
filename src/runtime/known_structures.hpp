#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "scoremod/attention.hpp"

#include "compiler/compiled_problem.hpp"
#include "compiler/pipeline.hpp"
#include "runtime/size_classes.hpp"

namespace scoremod::runtime {

/// One run of the compiler, for all problems of a structure.
struct KnownStructure {
  compiler::CompiledProblem compiled;  ///< of the sizes that came first
  Program declared;                    ///< the caller's program, which declares the operands of fields, too
  std::vector<compiler::StepReport> steps;
  mutable std::atomic<int> waits = 0;  ///< problems that waited for a plan which only their sizes have
  mutable FastestPlans fastest;
};

/// The known structure of a problem; the compiler runs if this process does not know it. Validates the problem. Throws
/// what compiler::compile() throws.
std::shared_ptr<const KnownStructure> known_structure(const AttentionProblem& problem, const CompileOptions& options);

/// The problem, compiled: its structure's, at its sizes.
compiler::CompiledProblem compiled_problem(const AttentionProblem& problem, const CompileOptions& options);

/// How many structures were compiled since the process began. Verification's own small problems are none of them.
std::uint64_t compiled_structures();

/// Forgets every structure: the next problem of each is compiled anew.
void clear_known_structures();

}  // namespace scoremod::runtime
