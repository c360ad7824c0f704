#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "scoremod/program.hpp"

namespace scoremod::backend::reference {

/// One node's values over a strip of keys: lane i is at data[i * step], in the member of the node's type.
struct Lanes {
  const double* f = nullptr;
  const std::int32_t* i = nullptr;
  const std::uint8_t* b = nullptr;
  std::size_t step = 1;  ///< 0 where all lanes share one value
};

/// The destination of a node's values, one a lane, in the member of its type.
struct WritableLanes {
  double* f = nullptr;
  std::int32_t* i = nullptr;
  std::uint8_t* b = nullptr;
};

/// Computes a node that has arguments, the first of which are of this type, for `count` lanes. The op is the
/// interpreter's inline function, chosen once for all lanes.
void compute_lanes(const Node& node, Type arg_type, const std::array<Lanes, kMaxArgs>& args, std::size_t count,
                   const WritableLanes& out);

}  // namespace scoremod::backend::reference
