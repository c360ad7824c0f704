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

/// When a plan is verified on the device: the environment variable SCOREMOD_VERIFICATION.
enum class Mode : std::uint8_t {
  kFirstUse,  ///< "first_use", the default: unless there is a shipped or stored verdict
  kAlways,    ///< "always": once in each process, whatever is stored
  kNever,     ///< "never": the backend's own knowledge is trusted
};
/// Throws Error(kInvalidArgument) for another value of the variable.
Mode verification_mode();

/// The result of a trial.
struct Verdict {
  bool right = true;
  std::string reason;  ///< why not, with the measured error and the tolerance
  bool shown = true;   ///< false if the trial kept no key; such a verdict is not stored
};

/// The text of a stored or shipped verdict of a right plan; a wrong one has the rule that it broke, and the reason.
inline constexpr std::string_view kRightVerdict = "right";

/// Right when every output is; else names the first that isn't.
Verdict verdict_of(const std::vector<OutputError>& outputs, backend::Direction direction);

/// The plan to verify.
struct Subject {
  /// Shared by the subjects of one trial and by nothing else: the backend's structural key, compared in full. It names
  /// the backend, its version, the architecture, and a revision that is raised when trials of the backend change.
  Bytes key;
  /// The engine that the backend's library chose by the sizes; each is tried by itself. Empty before it is known, and
  /// where nothing is chosen so.
  std::string library_engine = {};
  // For people who look at a stored verdict.
  std::string engine;        ///< such as "cudnn 9.19.0"
  std::string architecture;  ///< such as "sm_90 NVIDIA H200"
  std::string label;         ///< such as "trial of a 3-node modifier"
  /// Whether a verdict that ships with the library says that it is right. May be empty.
  std::function<bool()> shipped_right;
};

/// Whether verify() would call `run`: nothing is known of the subject, and the mode asks for a trial. Before a
/// library's engine is known, a verdict of any one counts.
bool needs_trial(const Subject& subject);

/// Whether plans of a subject may be used: from this process's memory, from what ships, from the store, or from `run`.
/// `run` makes a plan of the trial problem, verifies it and returns the verdict, to be stored. Several threads may ask
/// at once; one of them runs for each key. An exception of `run` passes through, and nothing is remembered.
Verdict verify(const Subject& subject, const std::function<Verdict()>& run);

}  // namespace scoremod::verification
