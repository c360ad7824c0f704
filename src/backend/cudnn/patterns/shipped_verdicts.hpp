#pragma once

#include <string>

namespace scoremod::backend::cudnn {

/// Whether the library ships the knowledge that a lowering with this structural key was seen to be right.
bool shipped_right(const std::string& structural_key);

}  // namespace scoremod::backend::cudnn
