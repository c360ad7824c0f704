#include <array>
#include <cstdint>

#include "zoo/entries.hpp"

namespace scoremod::zoo {
namespace {

using enum ParameterType;

Parameter operand_name(const char* name, const char* default_name) {
  return {name, kName, Value(std::string(default_name)), "the operand's name"};
}

OperandNeed learned(const Arguments& arguments, const char* parameter, std::vector<std::int64_t> shape) {
  return {arguments.text(parameter), DType::kF32, std::move(shape), -1, 1};
}

std::int64_t extent(Axis axis, const Sizes& sizes) {
  switch (axis) {
    case Axis::kBatch: return sizes.batch;
    case Axis::kHead: return sizes.heads;
    case Axis::kQuery: return sizes.seq_q;
    case Axis::kKey: return sizes.seq_kv;
  }
  return 0;
}

Recipe soft_cap_recipe() {
  return {{"soft_cap",
           Kind::kScoreMod,
           "keeps scores within (-cap, cap): cap * tanh(s / cap)",
           {{"cap", kFloat, {}, "the bound, > 0"}},
           {}},
          [](const Arguments& a, const Sizes&, Modifier& made) { made.score_mod = soft_cap(a.number("cap")); }};
}

Recipe alibi_recipe() {
  return {{"alibi",
           Kind::kScoreMod,
           "a linear bias by distance: s + slopes[h] * (kv - q)",
           {{"symmetric", kBool, Value(false), "s - slopes[h] * |q - kv| instead, for attention in both directions"},
            operand_name("slopes", "slopes")},
           {{"slopes", Type::kF32, "[heads]", "the slope of each head"}}},
          [](const Arguments& a, const Sizes& sizes, Modifier& made) {
            made.score_mod = alibi(a.flag("symmetric"), a.text("slopes"));
            made.operands = {{a.text("slopes"), DType::kF32, {sizes.heads}, 0, 1}};
          }};
}

Recipe relative_bias_recipe() {
  return {{"relative_bias",
           Kind::kScoreMod,
           "adds the distance: s + scale * (q - kv)",
           {{"scale", kFloat, Value(1.0), "the factor, finite"}},
           {}},
          [](const Arguments& a, const Sizes&, Modifier& made) { made.score_mod = relative_bias(a.number("scale")); }};
}

Recipe t5_bias_recipe() {
  return {{"t5_bias",
           Kind::kScoreMod,
           "T5's learned bias by distance bucket: s + table[bucket(q, kv), h]",
           {{"bidirectional", kBool, Value(true), "true: keys after the query have buckets of their own (encoder)"},
            {"num_buckets", kInt, Value(std::int64_t{32}), "4 to 256, even; one-directional: 2 to 256"},
            {"max_distance", kInt, Value(std::int64_t{128}), "from here on all share the last bucket"},
            operand_name("table", "t5_table")},
           {{"table", Type::kF32, "[num_buckets, heads]", "the bias of each bucket and head, learned"}}},
          [](const Arguments& a, const Sizes& sizes, Modifier& made) {
            const int buckets = a.integer("num_buckets");
            made.score_mod = t5_bias(a.flag("bidirectional"), buckets, a.integer("max_distance"), a.text("table"));
            made.operands = {learned(a, "table", {buckets, sizes.heads})};
          }};
}

Recipe full_bias_recipe() {
  return {{"full_bias",
           Kind::kScoreMod,
           "adds a tensor: s + bias, broadcast over the axes that it does not have",
           {{"axes", kAxes, Value(std::string("b, h, q_idx, kv_idx")), "the tensor's dimensions, in this order"},
            {"before_scale", kBool, Value(false), "added to the product of q and k, before the scale multiplies it"},
            operand_name("bias", "bias")},
           {{"bias", Type::kF32, "[one for each axis]", "what is added"}}},
          [](const Arguments& a, const Sizes& sizes, Modifier& made) {
            const std::vector<Axis> axes = a.axes("axes");
            std::vector<std::int64_t> shape;
            for (const Axis axis : axes) shape.push_back(extent(axis, sizes));
            made.score_mod = full_bias(axes, a.text("bias"), a.flag("before_scale"));
            made.operands = {learned(a, "bias", std::move(shape))};
          }};
}

Recipe relative_table_recipe() {
  return {{"relative_table",
           Kind::kScoreMod,
           "a learned bias by distance: s + table[h, clip(q - kv, -max_distance, max_distance) + max_distance]",
           {{"max_distance", kInt, {}, "distances beyond it share the last entry, 0 to 16777216"},
            operand_name("table", "relative_table")},
           {{"table", Type::kF32, "[heads, 2 * max_distance + 1]", "the bias of each head and distance, learned"}}},
          [](const Arguments& a, const Sizes& sizes, Modifier& made) {
            const int max_distance = a.integer("max_distance");
            made.score_mod = relative_table(max_distance, a.text("table"));
            made.operands = {learned(a, "table", {sizes.heads, 2 * std::int64_t{max_distance} + 1})};
          }};
}

Recipe head_temperature_recipe() {
  return {{"head_temperature",
           Kind::kScoreMod,
           "divides by a temperature of each head: s / temperature[h]",
           {operand_name("temperature", "temperature")},
           {{"temperature", Type::kF32, "[heads]", "the temperature of each head, not 0"}}},
          [](const Arguments& a, const Sizes& sizes, Modifier& made) {
            made.score_mod = head_temperature(a.text("temperature"));
            made.operands = {{a.text("temperature"), DType::kF32, {sizes.heads}, 0.5, 2}};
          }};
}

}  // namespace

std::span<const Recipe> score_mod_recipes() {
  static const std::array kRecipes{soft_cap_recipe(),        alibi_recipe(),     relative_bias_recipe(),
                                   t5_bias_recipe(),         full_bias_recipe(), relative_table_recipe(),
                                   head_temperature_recipe()};
  return kRecipes;
}

}  // namespace scoremod::zoo
