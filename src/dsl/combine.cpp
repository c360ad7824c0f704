#include <algorithm>
#include <utility>

#include "scoremod/dsl.hpp"

#include "base/fail.hpp"

namespace scoremod {

ScoreMod compose(std::vector<ScoreMod> mods) {
  std::erase_if(mods, [](const ScoreMod& mod) { return mod.empty(); });
  if (mods.empty()) return {};
  return [mods = std::move(mods)](Score score, Index index) {
    for (const ScoreMod& mod : mods) score = mod(score, index);
    return score;
  };
}

MaskMod and_masks(std::vector<MaskMod> masks) {
  std::erase_if(masks, [](const MaskMod& mask) { return mask.empty(); });
  if (masks.empty()) return {};
  return [masks = std::move(masks)](Index index) {
    Bool keep = masks.front()(index);
    for (std::size_t i = 1; i < masks.size(); ++i) keep = keep & masks[i](index);
    return keep;
  };
}

MaskMod or_masks(std::vector<MaskMod> masks) {
  if (masks.empty()) {
    fail_argument("or_masks: expected at least one mask, found none; an empty MaskMod keeps every key");
  }
  if (std::any_of(masks.begin(), masks.end(), [](const MaskMod& mask) { return mask.empty(); })) return {};
  return [masks = std::move(masks)](Index index) {
    Bool keep = masks.front()(index);
    for (std::size_t i = 1; i < masks.size(); ++i) keep = keep | masks[i](index);
    return keep;
  };
}

MaskMod not_mask(MaskMod mask) {
  return [mask = std::move(mask)](Index index) { return !mask(index); };
}

}  // namespace scoremod
