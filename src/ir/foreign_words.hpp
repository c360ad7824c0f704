#pragma once

#include <string>
#include <string_view>

namespace scoremod::ir {

/// " (did you mean 'select'?)" for what other languages write for something that program text has under another name or
/// symbol; "" for everything else.
std::string own_word(std::string_view found);

/// The hint for the name of a function that does not exist: the closest one, and where all are listed.
std::string function_hint(std::string_view found);

}  // namespace scoremod::ir
