#pragma once

#include <memory>

#include "scoremod/attention.hpp"
#include "scoremod/c_api.h"
#include "scoremod/open_attention.hpp"

/// The C interface's attention. Requests share it, so that it may be destroyed before they are done.
struct scoremod_attention {
  std::shared_ptr<const scoremod::Attention> attention;  ///< null where sizes are open
  std::shared_ptr<const scoremod::OpenAttention> open;   ///< null where none is
};

namespace scoremod::c_api {

/// The attention of fixed sizes. Throws Error(kInvalidArgument) for null, and for one whose sizes are open.
const std::shared_ptr<const Attention>& of_fixed_sizes(const scoremod_attention* attention);

}  // namespace scoremod::c_api
