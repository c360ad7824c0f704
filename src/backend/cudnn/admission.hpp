#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "backend/cudnn/direction_plan.hpp"
#include "backend/cudnn/graph/device_target.hpp"

namespace scoremod::backend::cudnn {

/// When a lowering is tried on the device before it is used: the environment variable SCOREMOD_ADMISSION.
enum class AdmissionMode : std::uint8_t {
  kFirstUse,  ///< "first_use", the default: unless a stored verdict says what a trial would show
  kAlways,    ///< "always": once in each process, whatever is stored
  kNever,     ///< "never": the form table is trusted
};
/// Throws Error(kInvalidArgument) for another value of the variable.
AdmissionMode admission_mode();

/// What a stored or shipped verdict says of a lowering that is admitted; otherwise it is the reason why not.
inline constexpr std::string_view kAdmittedVerdict = "right";

/// What a trial showed.
struct AdmissionVerdict {
  bool admitted = true;
  std::string reason;  ///< why not, with the measured error and the tolerance
};

/// A problem of the same structure that is small enough for the float64 oracle: same program, dtype, head dims, layouts
/// and tables; at most two batches and key/value heads, and lengths of a few hundred that fill tiles where the
/// problem's do and else don't, long enough that the program's integer constants (windows, prefixes) lie within.
compiler::CompiledProblem trial_problem(const compiler::CompiledProblem& problem);

/// The text that two lowerings share when a trial of one speaks for the other: nodes, tensors by the axes that they
/// extend and repeat along, constants by their sign, the task, dtype, determinism, head dims, and which of batch,
/// heads and lengths are one, equal or unequal; architecture and cuDNN version.
std::string admission_key(const LoweredModifier& modifier, const AttentionProblem& problem, const PlanTask& task,
                          const DeviceTarget& target);

/// Makes a plan of the same candidate lowering for the trial problem; throws Error where that fails.
using MakeTrialPlan = std::function<std::unique_ptr<const DirectionPlan>(const compiler::CompiledProblem& trial)>;

/// Whether a lowering may be used on the current device: from this process's memory, from the verdicts that ship with
/// the library, from the store, or from a trial, whose verdict is then stored.
AdmissionVerdict admission(const compiler::CompiledProblem& problem, const PlanTask& task,
                           const LoweredModifier& modifier, const DeviceTarget& target, const MakeTrialPlan& make_plan);

}  // namespace scoremod::backend::cudnn
