#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "scoremod/attention.hpp"
#include "scoremod/export.hpp"
#include "scoremod/problem.hpp"

namespace scoremod {

// Compiled attentions are kept for the rest of the process, on every backend: docs/reference/cache.md.

/// The attention of a problem, as from Attention::compile(). Equal problems with equal options on one device share it.
/// The first call compiles; others that ask meanwhile wait for that. Beyond the limit the least recently used are
/// dropped; whoever holds one keeps it. Throws what compile() throws, which is not kept: the next call compiles again.
SCOREMOD_API std::shared_ptr<const Attention> cached_attention(const AttentionProblem& problem,
                                                               const CompileOptions& options = {});

/// Counts since the process began; entries are the current ones.
struct AttentionCacheStatistics {
  std::uint64_t hits = 0;
  std::uint64_t misses = 0;     ///< each began to compile
  std::uint64_t waits = 0;      ///< neither: waited for another thread, which was compiling it
  std::uint64_t failures = 0;   ///< ended in an error
  std::uint64_t evictions = 0;  ///< dropped because of the limit
  std::size_t entries = 0;
};
SCOREMOD_API AttentionCacheStatistics attention_cache_statistics();

/// How many are kept: 256, or SCOREMOD_CACHE_ATTENTIONS from the environment; 0 keeps none.
SCOREMOD_API std::size_t attention_cache_limit();
/// Drops at once those over the new limit.
SCOREMOD_API void set_attention_cache_limit(std::size_t attentions);
/// Drops all of them. The plans that they are made of may be kept elsewhere: clear_plan_cache().
SCOREMOD_API void clear_attention_cache();

/// Counts of all compiling since the process began: by attentions, support() and explain().
struct CompileCounts {
  /// Structures that the compiler ran for: problems that differ in sizes are one. Verification's own compiles are not
  /// counted.
  std::uint64_t problems = 0;
  std::uint64_t forwards = 0;   ///< forward directions that were planned
  std::uint64_t backwards = 0;  ///< backward directions that were planned
};
SCOREMOD_API CompileCounts compile_counts();

}  // namespace scoremod
