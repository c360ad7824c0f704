#include "passes/normalize_mask.hpp"

#include "base/fail.hpp"
#include "ir/copy_program.hpp"
#include "ir/verify.hpp"
#include "passes/conjunction.hpp"
#include "passes/hoist_mask.hpp"

namespace scoremod::passes {
namespace {

/// The pass makes up to three nodes for each; a program that comes near the builder's limit is left as it is.
constexpr std::size_t kMaxNodesToNormalize = ir::kMaxNodes / 8;

}  // namespace

Program normalize_mask(const Program& program) {
  if (ir::is_derivative(program)) fail_bug("normalize_mask takes a user's program, found a derivative");
  if (program.nodes().size() > kMaxNodesToNormalize) return program;
  ir::Builder builder;
  const std::vector<NodeId> ids = ir::copy_program(program, builder);
  const MaskedValue hoisted = hoist_mask(builder, ids[program.value()]);
  NodeId keep = program.keep() == kNoNode ? kNoNode : ids[program.keep()];
  if (hoisted.keep != kNoNode) {
    keep = keep == kNoNode ? hoisted.keep : builder.make(Op::kAnd, {keep, hoisted.keep});
  }
  if (keep != kNoNode) keep = conjunction_of(builder, conjunction_terms(builder, keep));
  return builder.finish(hoisted.value, keep);
}

}  // namespace scoremod::passes
