#pragma once

#include <string>
#include <string_view>

namespace scoremod::ir {

/// " (did you mean 'select'?)" for a word of another language that has another name or symbol in program text; "" for
/// everything else.
std::string own_word(std::string_view found);

/// The hint for the name of a function that does not exist: the closest one, and where all are listed.
std::string function_hint(std::string_view found);

}  // namespace scoremod::ir
