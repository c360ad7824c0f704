#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace scoremod::problem {

/// Bytes from a tensor's first element to the end of its last, for strides in elements that are not negative. Empty
/// when the number, or the number of elements times four (their size in f32, as which backends may hold them), exceeds
/// PTRDIFF_MAX.
std::optional<std::size_t> extent_bytes(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides,
                                        std::size_t element_bytes);

/// Whether no two elements share memory by the rule that dimensions nest: sorted by stride, each stride is larger than
/// the span of all inner dimensions. Dimensions of size 1 do not count, and those of stride 0 only unless
/// `may_broadcast`. Sufficient, not necessary: interleavings that happen not to collide are false too.
bool dimensions_nest(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides, bool may_broadcast);

}  // namespace scoremod::problem
