#include <limits>
#include <utility>

#include "scoremod/zoo.hpp"

#include "base/fail.hpp"

namespace scoremod::zoo {
namespace {

void require_at_least(const char* modifier, const char* parameter, std::int64_t least, std::int64_t found) {
  if (found < least) fail_argument(modifier, ": expected ", parameter, " >= ", least, ", found ", found);
}

void require_sequences(std::int64_t seq_q, std::int64_t seq_kv) {
  require_at_least("causal_bottom_right", "seq_q", 1, seq_q);
  require_at_least("causal_bottom_right", "seq_kv", 1, seq_kv);
  constexpr std::int64_t kLargest = std::numeric_limits<std::int32_t>::max();
  if (seq_q > kLargest || seq_kv > kLargest) {
    fail_argument("causal_bottom_right: expected lengths within int32, found seq_q ", seq_q, " and seq_kv ", seq_kv);
  }
}

/// The length of a batch's sequence: its length, or that of its offsets, or the size.
class SequenceEnd {
 public:
  SequenceEnd(bool has_length, const char* length, bool has_offsets, const char* offsets, std::int64_t size)
      : has_length_(has_length),
        has_offsets_(has_offsets),
        length_(length, {Axis::kBatch}),
        offsets_(offsets),
        size_(static_cast<std::int32_t>(size)) {}

  Int of(Int batch) const {
    if (has_length_) return Int(length_);
    return has_offsets_ ? offsets_(batch + 1) - offsets_(batch) : Int(size_);
  }

 private:
  bool has_length_, has_offsets_;
  Operand<Int> length_;
  Table<Int, 1> offsets_;
  std::int32_t size_;
};

}  // namespace

MaskMod causal() {
  return [](Index i) { return i.q >= i.kv; };
}

MaskMod causal_bottom_right(std::int64_t seq_q, std::int64_t seq_kv) {
  require_sequences(seq_q, seq_kv);
  const std::int64_t shift = seq_kv - seq_q;
  return [shift](Index i) { return i.q + shift >= i.kv; };
}

MaskMod causal_bottom_right(const Sizes& sizes) {
  if (!sizes.lengths_q && !sizes.lengths_kv && !sizes.offsets_q && !sizes.offsets_kv)
    return causal_bottom_right(sizes.seq_q, sizes.seq_kv);
  require_sequences(sizes.seq_q, sizes.seq_kv);
  const SequenceEnd end_q(sizes.lengths_q, "lengths_q", sizes.offsets_q, "offsets_q", sizes.seq_q);
  const SequenceEnd end_kv(sizes.lengths_kv, "lengths_kv", sizes.offsets_kv, "offsets_kv", sizes.seq_kv);
  return [end_q, end_kv](Index i) { return i.kv - i.q <= end_kv.of(i.b) - end_q.of(i.b); };
}

MaskMod sliding_window(int window) {
  require_at_least("sliding_window", "window", 0, window);
  return [window](Index i) { return abs(i.q - i.kv) <= window; };
}

MaskMod causal_sliding_window(int window) {
  require_at_least("causal_sliding_window", "window", 1, window);
  return [window](Index i) { return i.q >= i.kv && i.q - i.kv < window; };
}

MaskMod prefix_lm(int prefix) {
  require_at_least("prefix_lm", "prefix", 0, prefix);
  return [prefix](Index i) { return i.kv < prefix || i.q >= i.kv; };
}

MaskMod prefix_lm_per_batch(std::string prefix_lengths) {
  const Operand<Int> prefix(std::move(prefix_lengths), {Axis::kBatch});
  return [prefix](Index i) { return i.kv < prefix || i.q >= i.kv; };
}

MaskMod documents(std::string query_documents, std::string key_documents) {
  if (query_documents == key_documents) {
    fail_argument("documents: expected two operand names, found '", key_documents,
                  "' twice: one has an entry for each query, the other for each key; for self-attention bind the same "
                  "data to both");
  }
  const Operand<Int> of_query(std::move(query_documents), {Axis::kBatch, Axis::kQuery});
  const Operand<Int> of_key(std::move(key_documents), {Axis::kBatch, Axis::kKey});
  return [of_query, of_key](Index) { return of_query == of_key; };
}

MaskMod padding(std::string lengths) {
  const Operand<Int> length(std::move(lengths), {Axis::kBatch});
  return [length](Index i) { return i.kv < length; };
}

MaskMod dilated_window(int window, int dilation) {
  require_at_least("dilated_window", "window", 0, window);
  require_at_least("dilated_window", "dilation", 1, dilation);
  const std::int64_t reach = std::int64_t{window} * dilation;
  if (reach > std::numeric_limits<std::int32_t>::max()) {
    fail_argument("dilated_window: expected window * dilation within int32, found ", reach);
  }
  return [reach, dilation](Index i) {
    const Int distance = i.q - i.kv;
    return abs(distance) <= reach && distance % dilation == 0;
  };
}

MaskMod neighborhood_2d(int width, int radius_x, int radius_y) {
  require_at_least("neighborhood_2d", "width", 1, width);
  require_at_least("neighborhood_2d", "radius_x", 0, radius_x);
  require_at_least("neighborhood_2d", "radius_y", 0, radius_y);
  return [=](Index i) {
    return abs(i.q % width - i.kv % width) <= radius_x &&
           abs(floor_div(i.q, width) - floor_div(i.kv, width)) <= radius_y;
  };
}

MaskMod global_window(int global_tokens, int window) {
  require_at_least("global_window", "global_tokens", 0, global_tokens);
  require_at_least("global_window", "window", 0, window);
  return [=](Index i) { return i.kv < global_tokens || i.q < global_tokens || abs(i.q - i.kv) <= window; };
}

}  // namespace scoremod::zoo
