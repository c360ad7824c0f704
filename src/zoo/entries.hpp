#pragma once

#include <span>

#include "scoremod/zoo.hpp"

#include "zoo/arguments.hpp"

namespace scoremod::zoo {

/// An entry and how it is made. `make` fills in the modifier and its operands; the kind is the entry's.
struct Recipe {
  Entry entry;
  void (*make)(const Arguments& arguments, const Sizes& sizes, Modifier& modifier);
};

std::span<const Recipe> score_mod_recipes();
std::span<const Recipe> mask_mod_recipes();

}  // namespace scoremod::zoo
