#pragma once

#include <cstdint>
#include <optional>

#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::cudnn {

/// A problem with a paged KV cache whose program masks the keys of pages that the pool does not have, which cuDNN would
/// read. The program has one operand more, i32 [b, kv_idx], behind all others. It is not 0 where both tables name a
/// page of the pool; place_sequences writes it.
compiler::CompiledProblem with_page_mask(const compiler::CompiledProblem& problem);

/// The number of that operand; nothing for a problem without a paged KV cache.
std::optional<std::uint32_t> page_mask_operand(const AttentionProblem& problem);

}  // namespace scoremod::backend::cudnn
