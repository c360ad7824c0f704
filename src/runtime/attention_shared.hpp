#pragma once

#include <memory>

#include "scoremod/attention.hpp"

#include "planner/selection.hpp"
#include "runtime/known_structures.hpp"

namespace scoremod {

/// All that the sizes of one problem have in common, so that no new size asks for it.
struct Attention::Shared {
  std::shared_ptr<const runtime::KnownStructure> structure;  ///< null if these sizes may have another
  planner::Selection selection;
  bool serves_new_sizes = false;
};

}  // namespace scoremod
