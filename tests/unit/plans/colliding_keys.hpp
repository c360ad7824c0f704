#pragma once

#include <span>
#include <string_view>
#include <utility>

#include "base/bytes.hpp"

namespace scoremod::plans {

/// Two keys that only a comparison in full tells apart: a published collision of 64-bit FNV-1a.
inline std::pair<Bytes, Bytes> keys_of_equal_hash() {
  const auto bytes_of = [](std::string_view text) {
    const auto view = std::as_bytes(std::span(text));
    return Bytes(view.begin(), view.end());
  };
  return {bytes_of("8yn0iYCKYHlIj4-BwPqk"), bytes_of("GReLUrM4wMqfg9yzV3KQ")};
}

}  // namespace scoremod::plans
