#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "scoremod/problem.hpp"

#include "backend/kernels/family.hpp"
#include "backend/kernels/shared/tiled_variant.hpp"

namespace scoremod::backend::kernels {

/// Forwards of FP8 queries, keys and values by WGMMA of e4m3, for sm_90 alone.
extern const KernelFamily kFloat8Family;

/// The shape of such a forward.
struct Float8Shape : TileShape {
  int stages = 2;  ///< of the TMA pipeline

  static constexpr int kProducers = 128;
  int threads() const { return consumer_threads() + kProducers; }
  KernelTraits traits() const;
  bool operator==(const Float8Shape&) const = default;
};

std::shared_ptr<const TiledVariant> float8_variant(const Float8Shape& shape);

/// The shape of a forward: two consumer warpgroups, tiles of 128 by 128, and as many stages as shared memory has room
/// for, up to four.
Float8Shape float8_shape(const AttentionProblem& problem);

/// The shared memory of a CTA of the forward.
std::size_t float8_shared_bytes(const Float8Shape& shape, const AttentionProblem& problem);

/// Why there is no such forward of a problem, whatever the device; empty if there is one.
std::vector<UnsupportedReason> float8_objections(const AttentionProblem& problem);

}  // namespace scoremod::backend::kernels
