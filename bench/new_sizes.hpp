#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace scoremod::bench {

/// Measures the host's time of scoremod_attention_at, which gives the attention of a call's sizes. The result has
/// medians in microseconds for each of three problems: of sizes that were never called and of known ones. memory:
/// "cuda" or "host". Throws Error with the library's message where a problem does not compile.
nlohmann::ordered_json measure_new_sizes(const std::string& memory);

}  // namespace scoremod::bench
