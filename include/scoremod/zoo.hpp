#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "scoremod/dsl.hpp"
#include "scoremod/dtype.hpp"
#include "scoremod/export.hpp"

/// Ready-made score_mods and mask_mods. Each is a function for C++ and an entry of entries() for files and tools.
///
/// Positions are global. A distance is q - kv: positive when the key lies before the query. Every parameter is checked:
/// Error(kInvalidArgument) names the one that is wrong. If a modifier reads tensors, its last arguments are their
/// operands' names.
namespace scoremod::zoo {

struct Sizes;

// Score modifiers.

/// cap * tanh(s / cap): keeps scores within (-cap, cap). cap > 0. (Gemma 2, https://arxiv.org/abs/2408.00118.)
SCOREMOD_API ScoreMod soft_cap(float cap);
/// s + slopes[h] * (kv - q), or with `symmetric` s - slopes[h] * |q - kv|, for attention in both directions.
/// Operand: slopes f32 [heads]; alibi_slopes() has the usual ones. (Press et al. 2022,
/// https://arxiv.org/abs/2108.12409.)
SCOREMOD_API ScoreMod alibi(bool symmetric = false, std::string slopes = "slopes");
/// s + scale * (q - kv).
SCOREMOD_API ScoreMod relative_bias(float scale = 1.0f);
/// s + table[bucket(q, kv), h] with T5's buckets: see t5_bucket(). Operand: table f32 [num_buckets, heads], learned.
/// (Raffel et al. 2020, https://arxiv.org/abs/1910.10683, section 2.1.)
SCOREMOD_API ScoreMod t5_bias(bool bidirectional = true, int num_buckets = 32, int max_distance = 128,
                              std::string table = "t5_table");
/// s + bias at (b, h, q, kv), broadcast over the axes that are not in `axes`. Operand: bias f32, one dimension per
/// axis. With before_scale it is added to the product of q and k, and multiplied by the scale with it.
SCOREMOD_API ScoreMod full_bias(const std::vector<Axis>& axes = {Axis::kBatch, Axis::kHead, Axis::kQuery, Axis::kKey},
                                std::string bias = "bias", bool before_scale = false);
/// s + table[h, clip(q - kv, -max_distance, max_distance) + max_distance].
/// Operand: table f32 [heads, 2 * max_distance + 1], learned. (Shaw et al. 2018, https://arxiv.org/abs/1803.02155,
/// clips distances so; here the learned value is added to the score.)
SCOREMOD_API ScoreMod relative_table(int max_distance, std::string table = "relative_table");
/// s / temperature[h]. Operand: temperature f32 [heads].
SCOREMOD_API ScoreMod head_temperature(std::string temperature = "temperature");

// Mask modifiers, and the elements that they keep.

/// kv <= q: query 0 sees key 0 (top-left aligned).
SCOREMOD_API MaskMod causal();
/// kv <= q + (seq_kv - seq_q): the last query sees the last key (bottom-right aligned).
SCOREMOD_API MaskMod causal_bottom_right(std::int64_t seq_q, std::int64_t seq_kv);
/// kv <= q + (end_kv - end_q): the last query of a batch sees its last key. A sequence's end is its batch's length if
/// it has one, else its size. Operands: lengths_q, lengths_kv i32 [batch], for the sides that have lengths.
SCOREMOD_API MaskMod causal_bottom_right(const Sizes& sizes);
/// |q - kv| <= window, inclusive: up to 2 * window + 1 keys. window >= 0.
SCOREMOD_API MaskMod sliding_window(int window);
/// 0 <= q - kv < window: the query itself and the window - 1 keys before it. window >= 1.
SCOREMOD_API MaskMod causal_sliding_window(int window);
/// kv < prefix or kv <= q: every query sees the first `prefix` keys. prefix >= 0.
SCOREMOD_API MaskMod prefix_lm(int prefix);
/// kv < prefix_lengths[b] or kv <= q. Operand: prefix_lengths i32 [batch].
SCOREMOD_API MaskMod prefix_lm_per_batch(std::string prefix_lengths = "prefix_lengths");
/// query_documents[b, q] == key_documents[b, kv]. Operands: i32 [batch, seq_q] and i32 [batch, seq_kv]; for
/// self-attention the same data is bound to both.
SCOREMOD_API MaskMod documents(std::string query_documents = "query_documents",
                               std::string key_documents = "key_documents");
/// kv < lengths[b]: the first lengths[b] keys; a length of 0 masks every row of its batch. Operand: lengths i32
/// [batch].
SCOREMOD_API MaskMod padding(std::string lengths = "lengths");
/// |q - kv| <= window * dilation, inclusive, and q - kv is a multiple of dilation: up to `window` keys on each side and
/// the query itself. window >= 0, dilation >= 1. (Longformer, https://arxiv.org/abs/2004.05150.)
SCOREMOD_API MaskMod dilated_window(int window, int dilation);
/// Positions are pixels, row by row, of an image `width` wide: x = position % width and y = position // width. Kept are
/// |x_q - x_kv| <= radius_x and |y_q - y_kv| <= radius_y, inclusive. The window is cut, not shifted, at the image's
/// borders. width >= 1, radii >= 0.
SCOREMOD_API MaskMod neighborhood_2d(int width, int radius_x, int radius_y);
/// kv < global_tokens or q < global_tokens or |q - kv| <= window, inclusive. Both >= 0. (Longformer,
/// https://arxiv.org/abs/2004.05150.)
SCOREMOD_API MaskMod global_window(int global_tokens, int window);

// Numbers that go with them.

/// ALiBi's slopes for any number of heads >= 1, as the authors' code computes them (get_slopes in
/// https://github.com/ofirpress/attention_with_linear_biases). For n a power of two they are 2^(-8 i / n) with i =
/// 1..n. Otherwise they are those of the power of two p below, then every other one of 2 p.
SCOREMOD_API std::vector<float> alibi_slopes(int heads);
/// T5's bucket of a distance, 0 .. num_buckets - 1, from kv - q. Let d = |kv - q|, e = n / 2, and let n be num_buckets,
/// halved if bidirectional. Keys after the query then use the upper half; otherwise they share bucket 0. The bucket is
/// d below e, and from there e + floor(log(d / e) / log(max_distance / e) * (n - e)), at most n - 1.
/// (_relative_position_bucket in https://github.com/google-research/text-to-text-transfer-transformer's models.) The
/// formula is evaluated exactly, in integers: it does not depend on how a backend rounds log().
SCOREMOD_API int t5_bucket(std::int32_t key_minus_query, bool bidirectional, int num_buckets, int max_distance);

// By name.

enum class Kind : std::uint8_t { kScoreMod, kMaskMod };
/// "score_mod" or "mask_mod".
SCOREMOD_API const char* to_string(Kind kind);

enum class ParameterType : std::uint8_t {
  kInt,    ///< std::int64_t
  kFloat,  ///< double; std::int64_t is accepted
  kBool,   ///< bool
  kName,   ///< std::string: the name of an operand
  kAxes,   ///< std::string: axes among b, h, q_idx, kv_idx, separated by commas or blanks
};
/// "int", "float", "bool", "name" or "axes".
SCOREMOD_API const char* to_string(ParameterType type);

using Value = std::variant<bool, std::int64_t, double, std::string>;
using Parameters = std::map<std::string, Value, std::less<>>;

struct Parameter {
  std::string name;
  ParameterType type = ParameterType::kInt;
  std::optional<Value> default_value;  ///< without one the parameter must be given
  std::string meaning;                 ///< with the bounds
};

/// An operand that an entry's program reads.
struct OperandRule {
  std::string parameter;  ///< the parameter of type kName that holds the operand's name
  Type type = Type::kF32;
  std::string shape;  ///< in words, e.g. "[num_buckets, heads]"
  std::string meaning;
};

/// One ready-made modifier.
struct Entry {
  std::string name;
  Kind kind = Kind::kScoreMod;
  std::string summary;  ///< one line
  std::vector<Parameter> parameters;
  std::vector<OperandRule> operands;
};

/// Score modifiers first, then mask modifiers.
SCOREMOD_API std::span<const Entry> entries();
/// The entry of this name, or nullptr.
SCOREMOD_API const Entry* find(std::string_view name);

/// The sizes of the problem that a modifier is for.
struct Sizes {
  std::int64_t batch = 1;
  std::int64_t heads = 1;  ///< query heads
  std::int64_t seq_q = 1;
  std::int64_t seq_kv = 1;
  /// Whether the problem has `lengths`: a modifier that is aligned with a sequence's end then follows each batch's own.
  bool lengths_q = false;
  bool lengths_kv = false;
  /// Whether the problem has `tokens_q` and `tokens_kv`. Lengths take precedence over the ends that offsets give.
  bool offsets_q = false;
  bool offsets_kv = false;
};

/// An operand of a made modifier, with the shape it has for the given sizes.
struct OperandNeed {
  std::string name;
  DType dtype = DType::kF32;  ///< f32 (f16 and bf16 do as well) or i32
  std::vector<std::int64_t> shape;
  /// Contents within [low, high] make sense: for random tests and demonstrations. Integers include both ends.
  double low = -1;
  double high = 1;

  bool operator==(const OperandNeed&) const = default;
};

/// The result of make(): the modifier of the entry's kind, and its operands.
struct Modifier {
  Kind kind = Kind::kScoreMod;
  ScoreMod score_mod;
  MaskMod mask_mod;
  std::vector<OperandNeed> operands;
};

/// Makes an entry's modifier. Throws Error(kInvalidArgument) for an unknown name or parameter (the message lists the
/// known ones), a missing one, a wrong type, and a value out of bounds.
SCOREMOD_API Modifier make(std::string_view name, const Parameters& parameters, const Sizes& sizes);

/// Several modifiers as one program.
struct Combination {
  Program program;
  std::vector<OperandNeed> operands;  ///< in the order of program.operands()
};

/// Composes the score_mods in order (the first gets the score), and keeps the elements that every mask_mod keeps.
/// Modifiers that name the same operand share it. Throws Error(kInvalidArgument) when they need it in different dtypes
/// or shapes.
SCOREMOD_API Combination combine(std::span<const Modifier> modifiers);

}  // namespace scoremod::zoo
