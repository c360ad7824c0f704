#pragma once

#include <optional>
#include <string>

namespace scoremod::backend::cudnn {

/// The engine, by EnginePlan::engine()'s name, with which a lowering with this structural key was seen to be right.
/// Nothing where the library ships no such knowledge.
std::optional<std::string> shipped_engine(const std::string& structural_key);

}  // namespace scoremod::backend::cudnn
