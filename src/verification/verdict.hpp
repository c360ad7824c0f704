#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.hpp"
#include "base/bytes.hpp"
#include "verification/output_error.hpp"

namespace scoremod::verification {

/// When a plan is tried on the device before its like is used: the environment variable SCOREMOD_VERIFICATION.
enum class Mode : std::uint8_t {
  kFirstUse,  ///< "first_use", the default: unless a shipped or stored verdict says what a trial would show
  kAlways,    ///< "always": once in each process, whatever is stored
  kNever,     ///< "never": what an engine holds to be right is trusted
};
/// Throws Error(kInvalidArgument) for another value of the variable.
Mode verification_mode();

/// What a trial showed.
struct Verdict {
  bool right = true;
  std::string reason;  ///< why not, with the measured error and the tolerance
};

/// What a stored or shipped verdict says of a plan that is right; otherwise it is by which rule it is not, and the
/// reason.
inline constexpr std::string_view kRightVerdict = "right";

/// Right when every output is; else names the first that isn't.
Verdict verdict_of(const std::vector<OutputError>& outputs, backend::Direction direction);

/// What is to be verified.
struct Subject {
  /// Shared by what one trial speaks for and by nothing else: the engine's structural key, compared in full. Names the
  /// engine, its version, the architecture, and a revision that is raised with what a trial of the engine's says.
  Bytes key;
  // For people who look at a stored verdict.
  std::string engine;        ///< such as "cudnn 9.19.0"
  std::string architecture;  ///< such as "sm_90 NVIDIA H200"
  std::string label;         ///< such as "trial of a 3-node modifier"
  /// Whether a verdict that ships with the library says that it is right. May be empty.
  std::function<bool()> shipped_right;
};

/// Whether verify() would call `run`: nothing is known of the subject, and the mode asks for a trial.
bool needs_trial(const Subject& subject);

/// Whether plans of a subject may be used: from this process's memory, from what ships, from the store, or from `run`,
/// which makes a plan of the trial problem, verifies it and returns the verdict, to be stored. Several threads may ask
/// at once, and for one key one of them runs. What `run` throws passes through, and nothing is remembered.
Verdict verify(const Subject& subject, const std::function<Verdict()>& run);

}  // namespace scoremod::verification
