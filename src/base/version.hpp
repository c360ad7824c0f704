#pragma once

namespace scoremod {

/// The library's version, such as "0.1.0".
const char* version();

}  // namespace scoremod
