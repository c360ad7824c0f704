#pragma once

#include "backend/device_rates.hpp"

namespace scoremod::backend {

/// The problem whose measured times predictions are scaled from. It has batch 4, 16 heads, 4096 queries and keys, and
/// head dims of 128, on an H200.
inline constexpr double kMeasuredHeads = 64;
inline constexpr double kMeasuredRows = kMeasuredHeads * 4096;
inline constexpr double kMeasuredPairs = kMeasuredRows * 4096;
inline constexpr double kMeasuredDims = 256;  ///< of keys and values together
inline constexpr DeviceRates kMeasuredOn;

}  // namespace scoremod::backend
