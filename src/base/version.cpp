#include "base/version.hpp"

namespace scoremod {

const char* version() { return SCOREMOD_VERSION; }

}  // namespace scoremod
