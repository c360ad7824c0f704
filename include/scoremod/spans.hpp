#pragma once

#include <ranges>
#include <type_traits>

#include "scoremod/call.hpp"

namespace scoremod {

/// Elements that lie one after the other: a std::span, a vector, an array. Their memory must outlive what is made of
/// them, so that a temporary container is refused.
template <class Range>
concept Elements = std::ranges::contiguous_range<Range> && std::ranges::sized_range<Range> &&
    std::ranges::borrowed_range<Range> && std::is_trivially_copyable_v<std::ranges::range_value_t<Range>>;

/// Elements that may be written.
template <class Range>
concept WritableElements =
    Elements<Range> && !std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<Range>>>;

/// The memory of all elements, for a call to read. It counts bytes.
template <Elements Range>
ConstBuffer const_buffer_of(Range&& elements) {
  return {std::ranges::data(elements), std::ranges::size(elements) * sizeof(std::ranges::range_value_t<Range>)};
}

/// The memory of all elements, for a call to write. It counts bytes.
template <WritableElements Range>
Buffer buffer_of(Range&& elements) {
  return {std::ranges::data(elements), std::ranges::size(elements) * sizeof(std::ranges::range_value_t<Range>)};
}

}  // namespace scoremod
