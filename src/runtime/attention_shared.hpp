#pragma once

#include "scoremod/attention.hpp"

#include "planner/selection.hpp"

namespace scoremod {

/// All that the sizes of one problem have in common, so that no new size asks for it.
struct Attention::Shared {
  planner::Selection selection;
  bool serves_new_sizes = false;
};

}  // namespace scoremod
