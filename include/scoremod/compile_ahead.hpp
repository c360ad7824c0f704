#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "scoremod/attention.hpp"
#include "scoremod/export.hpp"
#include "scoremod/problem.hpp"

namespace scoremod {

/// One plan of compile_ahead(), or why there is none.
struct AheadResult {
  std::string direction;  ///< "forward" or "backward"
  std::string backend;    ///< whose plan it is; empty where there is none
  bool trial = false;     ///< a small problem's, whose run on the device decides whether the plan before it is used
  bool stored = false;
  std::vector<std::string> reasons;  ///< when not stored: why; when stored: why a faster pattern was passed over
  std::vector<std::string> notes;    ///< the parts of the plan, and its unknowns
  std::string label;                 ///< as `scoremod cache list` shows it
  std::size_t plan_bytes = 0;        ///< of the file's contents
  std::size_t workspace_bytes = 0;   ///< device memory that cuDNN's plan needs
  double milliseconds = 0;           ///< of building
};

/// Builds the plans of a problem ahead of time into a folder that is or becomes a plan store (SCOREMOD_CACHE_DIR). A
/// process on the device finds them there and builds nothing. Neither a device nor a driver is needed here, only cuDNN
/// and the CUDA runtime in the versions that the other process will load. Without a driver, this process gets a stub
/// driver and can run nothing on a device: call this before anything else looks for a device. docs/reference/plans.md
/// says more.
///
/// `device_properties` is the text that device_properties() gives on a machine with the device.
///
/// A direction that cuDNN does not support is no error: its reasons say why. Throws Error(kInvalidArgument) for an
/// invalid problem or text, and if no chosen backend keeps plans. Throws kUnsupported if this build has no backend that
/// plans ahead, and kEnvironment if a library is missing or the folder cannot be written.
SCOREMOD_API std::vector<AheadResult> compile_ahead(const AttentionProblem& problem, std::string_view device_properties,
                                                    const std::string& directory, const CompileOptions& options = {});

/// As support(), of backends of a device for the one with these properties, which need not be here, and of the host's
/// backends for this machine. SupportLevel::kVerified builds plans for the device, as compile_ahead() does and under
/// its conditions, and tries none; kStatic builds nothing. Throws Error(kInvalidArgument) for another text too.
SCOREMOD_API std::vector<Support> support_elsewhere(const AttentionProblem& problem, std::string_view device_properties,
                                                    const CompileOptions& options = {},
                                                    SupportLevel level = SupportLevel::kVerified);

/// The properties of the calling thread's current CUDA device as JSON, for the functions above elsewhere. Throws
/// Error(kEnvironment) when there is no device.
SCOREMOD_API std::string device_properties();

}  // namespace scoremod
