#pragma once

#include <vector>

#include <nlohmann/json.hpp>

#include "scoremod/attention.hpp"

namespace scoremod::explaining {

/// Adds "reasons", for people, and "refusals", with ids, to an object.
void add_reasons(const std::vector<UnsupportedReason>& reasons, nlohmann::ordered_json& object);

}  // namespace scoremod::explaining
