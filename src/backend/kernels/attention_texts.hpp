#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backend/kernels/tile_shape.hpp"
#include "backend/plan.hpp"

// The kernels' texts, which do not follow from a problem: which of them a shape's kernels are.

namespace scoremod::backend::kernels {

/// The backward's kernels of queries, and those of keys.
std::string text_of_queries(const TileShape& shape);
std::string text_of_keys(const TileShape& shape);
/// text_of_keys() as texts that can be compiled side by side, each with the functions that its kernel calls.
std::vector<std::string> texts_of_keys(const TileShape& shape);
/// The text of rows' terms, which both read, and the kernel that computes them.
std::string text_of_rows(const TileShape& shape);
std::string_view text_of_row_kernel();
/// All kernels of a direction.
std::string text_of_kernels(Direction direction, const TileShape& shape);

/// Another number where any text is another.
std::uint64_t revision_of_texts();

}  // namespace scoremod::backend::kernels
