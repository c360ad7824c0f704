#include "zoo/entries.hpp"

#include <algorithm>

#include "base/fail.hpp"
#include "base/nearest_name.hpp"

namespace scoremod::zoo {
namespace {

const Recipe* find_recipe(std::string_view name) {
  for (const auto& recipes : {score_mod_recipes(), mask_mod_recipes()}) {
    for (const Recipe& recipe : recipes) {
      if (recipe.entry.name == name) return &recipe;
    }
  }
  return nullptr;
}

std::string all_names() {
  std::string names;
  for (const Entry& entry : entries()) names += concat(names.empty() ? "" : ", ", entry.name);
  return names;
}

void check(const Sizes& sizes) {
  if (std::min({sizes.batch, sizes.heads, sizes.seq_q, sizes.seq_kv}) < 1) {
    fail_argument("zoo: expected sizes of at least 1, found batch ", sizes.batch, ", heads ", sizes.heads, ", seq_q ",
                  sizes.seq_q, ", seq_kv ", sizes.seq_kv);
  }
}

std::string describe(const OperandNeed& need) {
  std::string shape;
  for (const std::int64_t extent : need.shape) shape += concat(shape.empty() ? "" : ", ", extent);
  return concat(to_string(need.dtype), " [", shape, "]");
}

/// Adds an operand, or finds the one of its name that is there.
void share(const OperandNeed& need, std::vector<OperandNeed>& operands) {
  for (OperandNeed& other : operands) {
    if (other.name != need.name) continue;
    if (other.dtype != need.dtype || other.shape != need.shape) {
      fail_argument("operand '", need.name, "' is needed as ", describe(other), " and as ", describe(need),
                    ": give one of the modifiers another operand name");
    }
    // Contents must suit both.
    other.low = std::max(other.low, need.low);
    other.high = std::max(other.low, std::min(other.high, need.high));
    return;
  }
  operands.push_back(need);
}

}  // namespace

const char* to_string(Kind kind) { return kind == Kind::kScoreMod ? "score_mod" : "mask_mod"; }

const char* to_string(ParameterType type) {
  switch (type) {
    case ParameterType::kInt: return "int";
    case ParameterType::kFloat: return "float";
    case ParameterType::kBool: return "bool";
    case ParameterType::kName: return "name";
    case ParameterType::kAxes: return "axes";
  }
  return "unknown";
}

std::span<const Entry> entries() {
  static const std::vector<Entry> kEntries = [] {
    std::vector<Entry> all;
    for (const Recipe& recipe : score_mod_recipes()) all.push_back(recipe.entry);
    for (const Recipe& recipe : mask_mod_recipes()) all.push_back(recipe.entry);
    return all;
  }();
  return kEntries;
}

const Entry* find(std::string_view name) {
  for (const Entry& entry : entries()) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

Modifier make(std::string_view name, const Parameters& parameters, const Sizes& sizes) {
  const Recipe* recipe = find_recipe(name);
  if (recipe == nullptr) {
    std::vector<std::string> known;
    for (const Entry& entry : entries()) known.push_back(entry.name);
    fail_argument("there is no ready-made modifier '", name, "'", suggestion(name, known),
                  "; there are: ", all_names());
  }
  check(sizes);
  Modifier made;
  made.kind = recipe->entry.kind;
  recipe->make(Arguments(recipe->entry, parameters), sizes, made);
  return made;
}

Combination combine(std::span<const Modifier> modifiers) {
  std::vector<ScoreMod> score_mods;
  std::vector<MaskMod> mask_mods;
  std::vector<OperandNeed> needs;
  for (const Modifier& modifier : modifiers) {
    if (modifier.kind == Kind::kScoreMod)
      score_mods.push_back(modifier.score_mod);
    else
      mask_mods.push_back(modifier.mask_mod);
    for (const OperandNeed& need : modifier.operands) share(need, needs);
  }
  Combination made;
  made.program = trace(compose(std::move(score_mods)), and_masks(std::move(mask_mods)));
  for (const OperandDecl& decl : made.program.operands()) {
    const auto need = std::find_if(needs.begin(), needs.end(), [&](const auto& n) { return n.name == decl.name; });
    if (need == needs.end()) {
      fail_argument("operand '", decl.name, "' is read by a modifier whose list of operands does not hold it; add it");
    }
    made.operands.push_back(*need);
  }
  return made;
}

}  // namespace scoremod::zoo
