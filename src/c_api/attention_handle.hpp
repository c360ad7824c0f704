#pragma once

#include <memory>

#include "scoremod/attention.hpp"
#include "scoremod/c_api.h"

/// What a pointer of the C interface points to. Requests share the attention, so that it may be destroyed before they
/// are done.
struct scoremod_attention {
  std::shared_ptr<const scoremod::Attention> attention;
};
