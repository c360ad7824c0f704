#pragma once

#include "ir/builder.hpp"

namespace scoremod::passes {

/// A value that is `value` where keep holds and -inf elsewhere. `value` may be anything if keep is false.
struct MaskedValue {
  NodeId value = kNoNode;
  NodeId keep = kNoNode;  ///< kNoNode: always
};

/// Finds where the f32 node is -inf because a select says so, and takes that out of it. Makes new nodes in the builder.
MaskedValue hoist_mask(ir::Builder& builder, NodeId node);

}  // namespace scoremod::passes
