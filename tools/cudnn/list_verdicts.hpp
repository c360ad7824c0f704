#pragma once

#include <string>

namespace scoremod::explorer {

/// Writes the verdicts of a plan store's trial runs in the format of src/backend/cudnn/patterns/verdicts/. They are
/// those that were right for an architecture ("sm_90") and a cuDNN version ("9.19.0"), in the order of their keys.
/// Returns how many. Throws Error(kEnvironment) for a folder or file that can't be read or written, and
/// Error(kInvalidArgument) for a damaged record.
int list_verdicts(const std::string& store, const std::string& architecture, const std::string& cudnn,
                  const std::string& machine, const std::string& commit, const std::string& output);

}  // namespace scoremod::explorer
