#include <array>
#include <cstdint>

#include "zoo/entries.hpp"

namespace scoremod::zoo {
namespace {

using enum ParameterType;

Parameter operand_name(const char* name, const char* default_name) {
  return {name, kName, Value(std::string(default_name)), "the operand's name"};
}

/// Document ids for random contents: few, so that queries find keys of theirs.
constexpr double kLastDocument = 3;

Recipe causal_recipe() {
  return {{"causal", Kind::kMaskMod, "keeps kv <= q (top-left: query 0 sees key 0)", {}, {}},
          [](const Arguments&, const Sizes&, Modifier& made) { made.mask_mod = causal(); }};
}

Recipe causal_bottom_right_recipe() {
  return {{"causal_bottom_right",
           Kind::kMaskMod,
           "keeps kv <= q + (seq_kv - seq_q) (bottom-right: the last query sees the last key), of each batch's lengths "
           "or offsets where the problem has them",
           {},
           {}},
          [](const Arguments&, const Sizes& sizes, Modifier& made) {
            made.mask_mod = causal_bottom_right(sizes);
            const auto need = [&](const char* name, std::int64_t size) {
              made.operands.push_back({name, DType::kI32, {sizes.batch}, 0, static_cast<double>(size)});
            };
            if (sizes.lengths_q) need("lengths_q", sizes.seq_q);
            if (sizes.lengths_kv) need("lengths_kv", sizes.seq_kv);
            const auto need_offsets = [&](const char* name, std::int64_t size) {
              made.operands.push_back({name, DType::kI32, {sizes.batch + 1}, 0, static_cast<double>(size)});
            };
            if (sizes.offsets_q && !sizes.lengths_q) need_offsets("offsets_q", sizes.seq_q);
            if (sizes.offsets_kv && !sizes.lengths_kv) need_offsets("offsets_kv", sizes.seq_kv);
          }};
}

Recipe sliding_window_recipe() {
  return {
      {"sliding_window",
       Kind::kMaskMod,
       "keeps |q - kv| <= window, inclusive",
       {{"window", kInt, {}, "keys on each side, >= 0"}},
       {}},
      [](const Arguments& a, const Sizes&, Modifier& made) { made.mask_mod = sliding_window(a.integer("window")); }};
}

Recipe causal_sliding_window_recipe() {
  return {{"causal_sliding_window",
           Kind::kMaskMod,
           "keeps 0 <= q - kv < window: the query's own position and the window - 1 before it",
           {{"window", kInt, {}, "keys in all, >= 1"}},
           {}},
          [](const Arguments& a, const Sizes&, Modifier& made) {
            made.mask_mod = causal_sliding_window(a.integer("window"));
          }};
}

Recipe prefix_lm_recipe() {
  return {{"prefix_lm",
           Kind::kMaskMod,
           "keeps kv < prefix or kv <= q",
           {{"prefix", kInt, {}, "keys that every query sees, >= 0"}},
           {}},
          [](const Arguments& a, const Sizes&, Modifier& made) { made.mask_mod = prefix_lm(a.integer("prefix")); }};
}

Recipe prefix_lm_per_batch_recipe() {
  return {
      {"prefix_lm_per_batch",
       Kind::kMaskMod,
       "keeps kv < prefix_lengths[b] or kv <= q",
       {operand_name("prefix_lengths", "prefix_lengths")},
       {{"prefix_lengths", Type::kI32, "[batch]", "keys that every query sees"}}},
      [](const Arguments& a, const Sizes& sizes, Modifier& made) {
        made.mask_mod = prefix_lm_per_batch(a.text("prefix_lengths"));
        made.operands = {{a.text("prefix_lengths"), DType::kI32, {sizes.batch}, 0, static_cast<double>(sizes.seq_kv)}};
      }};
}

Recipe documents_recipe() {
  return {{"documents",
           Kind::kMaskMod,
           "keeps keys of the query's own document, by id",
           {operand_name("query_documents", "query_documents"), operand_name("key_documents", "key_documents")},
           {{"query_documents", Type::kI32, "[batch, seq_q]", "the document of each query"},
            {"key_documents", Type::kI32, "[batch, seq_kv]", "the document of each key"}}},
          [](const Arguments& a, const Sizes& sizes, Modifier& made) {
            const std::string& of_query = a.text("query_documents");
            const std::string& of_key = a.text("key_documents");
            made.mask_mod = documents(of_query, of_key);
            made.operands = {{of_query, DType::kI32, {sizes.batch, sizes.seq_q}, 0, kLastDocument},
                             {of_key, DType::kI32, {sizes.batch, sizes.seq_kv}, 0, kLastDocument}};
          }};
}

Recipe padding_recipe() {
  return {{"padding",
           Kind::kMaskMod,
           "keeps kv < lengths[b]",
           {operand_name("lengths", "lengths")},
           {{"lengths", Type::kI32, "[batch]", "valid keys; 0 masks the batch entirely"}}},
          [](const Arguments& a, const Sizes& sizes, Modifier& made) {
            made.mask_mod = padding(a.text("lengths"));
            made.operands = {{a.text("lengths"), DType::kI32, {sizes.batch}, 0, static_cast<double>(sizes.seq_kv)}};
          }};
}

Recipe dilated_window_recipe() {
  return {{"dilated_window",
           Kind::kMaskMod,
           "keeps |q - kv| <= window * dilation, inclusive, where q - kv is a multiple of dilation",
           {{"window", kInt, {}, "keys on each side, >= 0"}, {"dilation", kInt, {}, "the step between them, >= 1"}},
           {}},
          [](const Arguments& a, const Sizes&, Modifier& made) {
            made.mask_mod = dilated_window(a.integer("window"), a.integer("dilation"));
          }};
}

Recipe neighborhood_2d_recipe() {
  return {
      {"neighborhood_2d",
       Kind::kMaskMod,
       "keeps |x_q - x_kv| <= radius_x and |y_q - y_kv| <= radius_y, inclusive; positions are pixels, row by row",
       {{"width", kInt, {}, "pixels in a row, >= 1"}, {"radius_x", kInt, {}, ">= 0"}, {"radius_y", kInt, {}, ">= 0"}},
       {}},
      [](const Arguments& a, const Sizes&, Modifier& made) {
        made.mask_mod = neighborhood_2d(a.integer("width"), a.integer("radius_x"), a.integer("radius_y"));
      }};
}

Recipe global_window_recipe() {
  return {{"global_window",
           Kind::kMaskMod,
           "keeps kv < global_tokens or q < global_tokens or |q - kv| <= window",
           {{"global_tokens", kInt, {}, "first positions that see and are seen by all, >= 0"},
            {"window", kInt, {}, "keys on each side, inclusive, >= 0"}},
           {}},
          [](const Arguments& a, const Sizes&, Modifier& made) {
            made.mask_mod = global_window(a.integer("global_tokens"), a.integer("window"));
          }};
}

}  // namespace

std::span<const Recipe> mask_mod_recipes() {
  static const std::array kRecipes{
      causal_recipe(),         causal_bottom_right_recipe(), sliding_window_recipe(), causal_sliding_window_recipe(),
      prefix_lm_recipe(),      prefix_lm_per_batch_recipe(), documents_recipe(),      padding_recipe(),
      dilated_window_recipe(), neighborhood_2d_recipe(),     global_window_recipe()};
  return kRecipes;
}

}  // namespace scoremod::zoo
