#include "support/attention_kernels_cases.hpp"

#include <algorithm>

#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::test {
namespace {

struct Shape {
  std::int64_t batch, heads_q, heads_kv, seq_q, seq_kv, dim_qk, dim_v;
};

struct Case {
  const char* name;
  const char* program;
  Shape shape;
  DType dtype = DType::kBF16;
  IndexOffsets offsets = {};
  bool unaligned = false;  ///< rows begin at odd elements, so that nothing is copied 16 bytes at a time
  Sink sink = Sink::kNone;
  float dropout = 0;
  bool max_logit = false;
  void (*place)(AttentionProblem&) = nullptr;  ///< says where its tensors lie
  bool dropout_keys = false;
};

/// Some of the tokens that there is room for, so that some sequences end early or are empty.
void ragged_queries(AttentionProblem& p) {
  p.tokens_q = p.batch * p.seq_q * 3 / 5;
  p.q = p.o = {Layout::kTHD, {}};
}
void ragged_keys(AttentionProblem& p) {
  p.tokens_kv = p.batch * p.seq_kv * 3 / 5;
  p.k = p.v = {Layout::kTHD, {}};
}
void ragged(AttentionProblem& p) {
  ragged_queries(p);
  ragged_keys(p);
}
void ragged_to_float(AttentionProblem& p) {
  ragged(p);
  p.dtype_o = DType::kF32;
}
void paged(AttentionProblem& p) {
  p.backward = false;
  p.lengths.kv = true;
  p.paged = PagedKeys{24, p.batch * 6 + 3, p.seq_kv / 24 + 2};
}
/// A paged KV cache whose pages hold whole tiles of keys.
void paged_in_large_blocks(AttentionProblem& p) {
  paged(p);
  p.paged = PagedKeys{64, p.batch * 6 + 3, p.seq_kv / 64 + 2};
}
void paged_by_heads(AttentionProblem& p) {
  paged(p);
  p.k.layout = p.v.layout = Layout::kBHSD;
}
void paged_to_float(AttentionProblem& p) {
  paged(p);
  p.dtype_o = DType::kF32;
}
/// FP8 keys and values, with scales of the KV heads or of the tensors.
void float8_keys(AttentionProblem& p) {
  p.dtype_kv = DType::kE4M3;
  for (const char* name : {problem::kDescaleOfKeys, problem::kDescaleOfValues})
    p.operands.push_back({name, DType::kF32, {p.heads_kv}, {}, false});
}
void other_float8_keys(AttentionProblem& p) { p.dtype_kv = DType::kE5M2; }
void float8_pages(AttentionProblem& p) {
  paged(p);
  float8_keys(p);
}
void large_float8_pages(AttentionProblem& p) {
  paged_in_large_blocks(p);
  other_float8_keys(p);
}
void ragged_float8_keys(AttentionProblem& p) {
  ragged(p);
  float8_keys(p);
}
/// Scales of rows of keys, or of 32 of them, as they lie in memory.
void scale_rows_of(AttentionProblem& p, problem::TensorRole role, std::int64_t rows_per_scale) {
  const problem::TensorShape shape = problem::memory_shape_of(p, role);
  const std::int64_t scales = (shape.sequence + rows_per_scale - 1) / rows_per_scale;
  p.operands.push_back({problem::descale_of(role), DType::kF32, {shape.batch, shape.heads, scales, 1}, {}, false});
}
void scaled_rows(AttentionProblem& p) {
  p.dtype_kv = DType::kE4M3;
  scale_rows_of(p, problem::TensorRole::kK, 1);
  scale_rows_of(p, problem::TensorRole::kV, 1);
}
void scaled_rows_of_pages(AttentionProblem& p) {
  paged(p);
  scaled_rows(p);
}
/// Scales of 32 keys each, and of the values of each KV head.
void scaled_blocks_of_large_pages(AttentionProblem& p) {
  paged_in_large_blocks(p);
  p.dtype_kv = DType::kE5M2;
  scale_rows_of(p, problem::TensorRole::kK, 32);
  p.operands.push_back({problem::kDescaleOfValues, DType::kF32, {p.heads_kv}, {}, false});
}
void scaled_ragged_rows(AttentionProblem& p) {
  ragged(p);
  p.dtype_kv = DType::kE4M3;
  scale_rows_of(p, problem::TensorRole::kV, 1);
}
void lengths(AttentionProblem& p) { p.lengths = {true, true}; }
void to_float(AttentionProblem& p) { p.dtype_o = DType::kF32; }
void to_a_half(AttentionProblem& p) { p.dtype_o = DType::kBF16; }
void to_the_other_half(AttentionProblem& p) {
  p.dtype_o = DType::kF16;
  p.o.layout = Layout::kBHSD;
}
void gradients_elsewhere(AttentionProblem& p) {
  const auto wide = [](std::int64_t heads, std::int64_t sequence, std::int64_t dim) {
    return TensorLayout{Layout::kBSHD, Strides{heads * sequence * (dim + 8), sequence * (dim + 8), dim + 8, 1}};
  };
  p.d_o = wide(p.heads_q, p.seq_q, p.dim_v);
  p.dq = TensorLayout{Layout::kSBHD, {}};
  p.dk = TensorLayout{Layout::kBHSD, {}};
  p.dv = TensorLayout{Layout::kBSHD, Strides{p.heads_kv * p.seq_kv * p.dim_v, 1, p.heads_kv * p.dim_v, p.heads_kv}};
}

void dropout_places(AttentionProblem& p) {
  p.operands.push_back({problem::kDropoutKeys, DType::kI32, {p.batch, 10}, {}});
}

constexpr const char* kCausal = "value = score\nkeep = kv_idx <= q_idx";
constexpr const char* kDifferences =
    "table x: f32 rank 2\nvalue = score + x[max(min(kv_idx - q_idx, 20), -20) + 20, h]\nkeep = kv_idx <= q_idx + 30";
constexpr const char* kIds =
    "operand x: i32 [b, q_idx]\noperand y: i32 [b, kv_idx]\nvalue = tanh(score * 0.2) * 5.0\n"
    "keep = x == y";

const Case kCases[] = {
    {"plain", "value = score", {2, 4, 2, 200, 333, 128, 128}},
    {"plain f16", "value = score", {1, 2, 2, 129, 64, 64, 64}, DType::kF16},
    {"causal", kCausal, {2, 3, 3, 257, 257, 128, 128}},
    {"causal with offsets", kCausal, {1, 4, 1, 100, 300, 64, 64}, DType::kBF16, {1, 2, 150, 20}},
    {"window", "value = score\nkeep = kv_idx <= q_idx & kv_idx + 70 > q_idx", {1, 2, 2, 500, 500, 64, 128}},
    {"global keys and a window",
     "value = score\nkeep = kv_idx < 9 | abs(q_idx - kv_idx) <= 37 | q_idx % 90 == 13",
     {1, 2, 2, 300, 300, 64, 64}},
    {"rows without a key", "value = score\nkeep = kv_idx >= q_idx + 40", {1, 2, 1, 130, 130, 128, 64}},
    {"nothing kept", "value = score\nkeep = kv_idx < 0", {1, 2, 1, 70, 70, 64, 64}},
    {"one query", "value = score * 0.5\nkeep = kv_idx % 3 != 1", {3, 8, 2, 1, 1000, 128, 128}},
    {"one key", "value = score", {1, 2, 2, 77, 1, 64, 64}},
    {"one of each", "value = score", {1, 1, 1, 1, 1, 8, 8}, DType::kF16},
    {"documents", kIds, {3, 2, 2, 300, 280, 64, 64}},
    {"mask by head",
     "value = score\nkeep = (q_idx + h * 37) // 64 >= kv_idx // 64 & kv_idx % 5 != 2",
     {2, 4, 2, 200, 200, 64, 64}},
    {"mask by the score", "value = score\nkeep = score > -0.3", {1, 2, 2, 100, 100, 64, 64}},
    {"infinite values",
     "value = select(q_idx % 7 == 3, -inf, select(kv_idx > q_idx + 5, -inf, score * 1.5))",
     {1, 2, 2, 100, 130, 64, 64}},
    {"wide heads", kCausal, {1, 2, 1, 150, 170, 256, 256}},
    {"wide values", "value = score", {1, 2, 1, 90, 170, 64, 256}, DType::kF16},
    {"192 and 128", kCausal, {1, 2, 2, 150, 150, 192, 128}},
    {"160 and 96 f16", "value = tanh(score * 0.2) * 5.0", {2, 4, 2, 210, 140, 160, 96}, DType::kF16},
    {"192 and 72, unaligned rows", kCausal, {1, 2, 1, 100, 150, 192, 72}, DType::kBF16, {}, true},
    {"odd dims", "value = score", {1, 2, 1, 90, 100, 40, 24}},
    {"unaligned rows", kCausal, {2, 2, 1, 100, 150, 72, 33}, DType::kBF16, {}, true},
    {"bias",
     "operand x: f32 [h, q_idx, kv_idx]\noperand y: f32 [h]\nvalue = score * y + x",
     {2, 2, 2, 140, 150, 64, 64}},
    {"a long sequence", kCausal, {1, 1, 1, 1100, 1100, 128, 128}},
    {"a learned sink, dropout and the largest score",
     "value = tanh(score * 0.2) * 5.0\nkeep = kv_idx + 40 <= q_idx",
     {2, 4, 2, 200, 230, 64, 64},
     DType::kBF16,
     {},
     false,
     Sink::kLearned,
     0.3F,
     true},
    {"a sink of 0, dropout with odd offsets, scores as they are",
     "value = score\nkeep = (q_idx + kv_idx) % 7 != 3 & kv_idx > q_idx",
     {1, 2, 1, 150, 170, 64, 64},
     DType::kF16,
     {3, 1, 70, 33},
     false,
     Sink::kOffByOne,
     0.5F,
     true},
    {"dropout by keys",
     "value = score\nkeep = (q_idx + kv_idx) % 7 != 3",
     {3, 4, 2, 130, 150, 64, 64},
     DType::kBF16,
     {1, 2, 3, 4},
     false,
     Sink::kNone,
     0.4F,
     false,
     nullptr,
     true},
    {"dropout by keys and places",
     "value = score\nkeep = (q_idx + kv_idx) % 7 != 3",
     {3, 4, 2, 130, 150, 64, 64},
     DType::kBF16,
     {},
     false,
     Sink::kNone,
     0.4F,
     false,
     dropout_places,
     true},
    {"dropout with one query",
     "value = score",
     {3, 8, 2, 1, 500, 64, 64},
     DType::kBF16,
     {},
     false,
     Sink::kLearned,
     0.1F},
    {"ragged", kCausal, {3, 4, 2, 200, 200, 64, 64}, DType::kBF16, {}, {}, {}, {}, {}, ragged},
    {"ragged, many sequences", kCausal, {37, 2, 1, 40, 40, 64, 64}, DType::kBF16, {}, {}, {}, {}, {}, ragged},
    {"ragged queries",
     "operand x: f32 [b, q_idx, kv_idx]\nvalue = score + x\nkeep = kv_idx != 7",
     {3, 4, 2, 150, 130, 72, 40},
     DType::kF16,
     {},
     false,
     Sink::kOffByOne,
     0,
     true,
     ragged_queries},
    {"ragged keys with dropout",
     "value = tanh(score * 0.2) * 5.0",
     {3, 4, 2, 150, 170, 64, 128},
     DType::kBF16,
     {},
     false,
     Sink::kLearned,
     0.3F,
     true,
     ragged_keys},
    {"ragged with a mask by the score",
     "value = score\nkeep = score > -0.3",
     {3, 2, 1, 100, 130, 64, 64},
     DType::kBF16,
     {},
     false,
     Sink::kNone,
     0,
     true,
     ragged_to_float},
    {"paged", kCausal, {3, 4, 2, 100, 130, 64, 64}, DType::kBF16, {}, {}, {}, {}, {}, paged},
    {"paged by heads", "value = score", {3, 4, 1, 1, 333, 128, 72}, DType::kF16, {}, {}, {}, {}, {}, paged_by_heads},
    {"lengths", kCausal, {3, 2, 1, 130, 100, 64, 64}, DType::kF16, {}, {}, {}, {}, {}, lengths},
    {"o in f32, beside f16", kCausal, {2, 4, 2, 100, 130, 72, 64}, DType::kF16, {}, {}, {}, {}, {}, to_float},
    {"o in f32", kCausal, {2, 4, 2, 150, 130, 64, 64}, DType::kBF16, {}, {}, {}, {}, {}, to_float},
    {"o in the other half",
     "value = score",
     {2, 2, 2, 100, 100, 64, 33},
     DType::kBF16,
     {},
     {},
     {},
     {},
     {},
     to_the_other_half},
    {"gradients elsewhere",
     kCausal,
     {2, 4, 2, 150, 130, 64, 64},
     DType::kBF16,
     {},
     {},
     {},
     {},
     {},
     gradients_elsewhere},
    {"differences by head", kDifferences, {2, 4, 2, 200, 290, 128, 128}, DType::kBF16, {0, 1, 50, 20}},
    {"differences of every kind",
     "operand x: f32 [b, h]\nvalue = score * exp(x * -0.01 * f32(abs(q_idx - kv_idx))) + sqrt(f32(abs(kv_idx - "
     "q_idx)))\nkeep = kv_idx % 7 != 3",
     {2, 4, 2, 333, 130, 64, 64}},
    {"differences, ragged", kDifferences, {3, 4, 2, 200, 150, 64, 64}, DType::kF16, {}, {}, {}, {}, {}, ragged},
    // In float32, whose tiles have other shapes and whose products are sums of several.
    {"plain f32", "value = score", {2, 4, 2, 200, 333, 128, 128}, DType::kF32},
    {"causal f32", kCausal, {1, 2, 2, 257, 257, 64, 64}, DType::kF32, {0, 0, 30, 0}},
    {"documents f32", kIds, {3, 2, 2, 300, 280, 64, 128}, DType::kF32},
    {"one query f32", "value = score * 0.5\nkeep = kv_idx % 3 != 1", {3, 8, 2, 1, 500, 128, 128}, DType::kF32},
    {"mask by the score f32", "value = score\nkeep = score > -0.3", {1, 2, 2, 100, 100, 64, 64}, DType::kF32},
    {"wide heads f32", kCausal, {1, 2, 1, 150, 170, 256, 256}, DType::kF32},
    {"odd dims f32", "value = score", {1, 2, 1, 90, 100, 40, 24}, DType::kF32},
    {"unaligned rows f32", kCausal, {2, 2, 1, 100, 150, 72, 33}, DType::kF32, {}, true},
    {"bias f32",
     "operand x: f32 [h, q_idx, kv_idx]\noperand y: f32 [h]\nvalue = score * y + x",
     {2, 2, 2, 140, 150, 64, 64},
     DType::kF32},
    {"a learned sink, dropout and the largest score f32",
     "value = tanh(score * 0.2) * 5.0\nkeep = kv_idx + 40 <= q_idx",
     {2, 4, 2, 200, 230, 64, 64},
     DType::kF32,
     {},
     false,
     Sink::kLearned,
     0.3F,
     true},
    {"ragged f32", kCausal, {3, 4, 2, 200, 200, 64, 64}, DType::kF32, {}, {}, {}, {}, {}, ragged},
    {"paged f32", kCausal, {3, 4, 2, 100, 130, 64, 64}, DType::kF32, {}, {}, {}, {}, {}, paged},
    {"o in a half", kCausal, {2, 4, 2, 150, 130, 64, 64}, DType::kF32, {}, {}, {}, {}, {}, to_a_half},
};

constexpr const char* kLengths = "operand x: i32 [b]\nvalue = score * 0.7\nkeep = kv_idx < x * 40 + 60";

const Case kSplitKvCases[] = {
    {"one query of a head", "value = score", {3, 2, 2, 1, 1000, 64, 64}},
    {"one query of four heads", "value = score * 0.5", {2, 8, 2, 1, 777, 128, 128}},
    {"four queries of four heads", kCausal, {2, 8, 2, 4, 900, 128, 128}, DType::kBF16, {0, 0, 850, 0}},
    {"three queries of five heads", kCausal, {2, 10, 2, 3, 333, 40, 24}, DType::kF16, {1, 2, 200, 20}},
    {"eight queries of four heads", "value = tanh(score * 0.2) * 5.0", {2, 8, 2, 8, 600, 128, 128}},
    {"sixteen queries of four heads", kCausal, {1, 8, 2, 16, 700, 128, 128}, DType::kBF16, {0, 0, 500, 0}},
    {"sixteen queries of sixteen heads", "value = score", {1, 16, 1, 16, 400, 64, 64}},
    {"sixty-four queries", "value = score", {1, 2, 2, 64, 300, 64, 64}},
    {"a window at a position",
     "value = score\nkeep = kv_idx <= q_idx & kv_idx + 70 > q_idx",
     {2, 4, 1, 4, 900, 64, 64},
     DType::kBF16,
     {0, 0, 250, 0}},
    {"lengths", kLengths, {4, 4, 2, 2, 500, 64, 64}},
    {"decode, documents", kIds, {3, 4, 2, 7, 480, 64, 64}},
    {"decode, mask by head", "value = score\nkeep = (kv_idx + h * 50) // 100 % 2 == 0", {2, 4, 1, 3, 500, 64, 64}},
    {"global keys and a window at a position",
     "value = score\nkeep = kv_idx < 9 | abs(q_idx - kv_idx) <= 37",
     {1, 4, 2, 5, 800, 64, 64},
     DType::kBF16,
     {0, 0, 260, 0}},
    {"decode, mask by the score", "value = score\nkeep = score > -0.3", {1, 4, 2, 5, 400, 64, 64}},
    {"decode without a key", "value = score\nkeep = kv_idx >= q_idx + 327", {1, 4, 2, 5, 330, 64, 64}},
    {"decode, nothing kept", "value = score\nkeep = kv_idx < 0", {1, 4, 2, 5, 100, 64, 64}},
    {"decode, one key", "value = score", {2, 4, 2, 5, 1, 64, 64}},
    {"decode, wide heads", kCausal, {1, 4, 2, 6, 300, 256, 256}, DType::kBF16, {0, 0, 250, 0}},
    {"decode, 192 and 128", "value = score", {1, 8, 2, 5, 300, 192, 128}},
    {"decode, unaligned", kCausal, {2, 4, 2, 6, 300, 72, 33}, DType::kBF16, {0, 0, 200, 0}, true},
    {"decode, bias", "operand x: f32 [h, q_idx, kv_idx]\nvalue = score + x", {2, 4, 2, 5, 300, 64, 64}},
    {"decode, sink, dropout and largest score",
     "value = tanh(score * 0.2) * 5.0\nkeep = kv_idx % 7 != 3",
     {2, 8, 2, 5, 500, 64, 64},
     DType::kBF16,
     {},
     false,
     Sink::kLearned,
     0.3F,
     true},
    {"decode, dropout with odd offsets, scores as they are",
     "value = score",
     {1, 4, 1, 5, 370, 64, 64},
     DType::kF16,
     {3, 1, 70, 33},
     false,
     Sink::kOffByOne,
     0.5F,
     true},
    {"decode, pages",
     "value = score * 0.5",
     {3, 8, 2, 4, 300, 64, 64},
     DType::kBF16,
     {},
     {},
     {},
     {},
     {},
     paged_to_float},
    {"decode, pages by heads",
     "value = score",
     {3, 4, 1, 1, 333, 128, 72},
     DType::kF16,
     {},
     {},
     {},
     {},
     {},
     paged_by_heads},
    {"decode, large pages",
     kCausal,
     {3, 8, 2, 4, 310, 64, 64},
     DType::kBF16,
     {0, 0, 280, 0},
     {},
     {},
     {},
     {},
     paged_in_large_blocks},
    {"decode, ragged",
     "value = score",
     {3, 4, 2, 5, 170, 64, 64},
     DType::kBF16,
     {},
     {},
     Sink::kLearned,
     {},
     true,
     ragged},
    {"decode, FP8 keys", "value = score", {2, 8, 2, 3, 500, 128, 128}, DType::kBF16, {}, {}, {}, {}, {}, float8_keys},
    {"decode, FP8 keys under f16",
     kCausal,
     {2, 4, 2, 6, 300, 64, 64},
     DType::kF16,
     {0, 1, 250, 0},
     {},
     Sink::kLearned,
     0.3F,
     true,
     other_float8_keys},
    {"decode, FP8 keys of 48 dims",
     "value = tanh(score * 0.2) * 5.0",
     {2, 4, 2, 6, 300, 48, 48},
     DType::kBF16,
     {},
     {},
     {},
     {},
     true,
     float8_keys},
    {"decode, unaligned FP8 keys",
     kCausal,
     {2, 4, 2, 6, 300, 72, 33},
     DType::kF16,
     {0, 0, 200, 0},
     true,
     {},
     {},
     {},
     float8_keys},
    {"decode, narrow FP8 keys and wide values",
     "value = score",
     {1, 4, 2, 16, 300, 16, 256},
     DType::kBF16,
     {},
     {},
     {},
     {},
     {},
     float8_keys},
    {"decode, FP8 pages",
     "value = score * 0.5",
     {3, 8, 2, 4, 300, 64, 64},
     DType::kBF16,
     {},
     {},
     {},
     {},
     {},
     float8_pages},
    {"decode, large FP8 pages",
     kLengths,
     {3, 8, 2, 4, 310, 64, 64},
     DType::kBF16,
     {},
     {},
     {},
     {},
     {},
     large_float8_pages},
    {"decode, ragged FP8 keys",
     kCausal,
     {3, 8, 2, 4, 310, 64, 64},
     DType::kF16,
     {},
     {},
     {},
     {},
     {},
     ragged_float8_keys},
    {"decode, scales of FP8 rows",
     "value = tanh(score * 0.2) * 5.0",
     {2, 8, 2, 3, 500, 128, 128},
     DType::kBF16,
     {},
     {},
     Sink::kLearned,
     0.3F,
     true,
     scaled_rows},
    {"decode, scales of rows of FP8 pages",
     "value = score * 0.5",
     {3, 8, 2, 4, 300, 64, 64},
     DType::kBF16,
     {},
     {},
     {},
     {},
     {},
     scaled_rows_of_pages},
    {"decode, scales of blocks of large FP8 pages",
     kLengths,
     {3, 8, 2, 4, 310, 64, 48},
     DType::kBF16,
     {},
     {},
     {},
     {},
     {},
     scaled_blocks_of_large_pages},
    {"decode, scales of ragged FP8 values",
     kCausal,
     {3, 8, 2, 4, 310, 64, 64},
     DType::kBF16,
     {},
     {},
     {},
     {},
     {},
     scaled_ragged_rows},
    {"decode, narrow keys and wide values", "value = score", {1, 4, 2, 16, 300, 16, 256}},
};

void make_unaligned(TensorLayout& layout, std::int64_t heads, std::int64_t sequence, std::int64_t dim) {
  layout.strides = Strides{sequence * (heads * (dim + 1) + 1), dim + 1, heads * (dim + 1) + 1, 1};
}

/// Enough for a few tiles of each direction.
Shape small_of(const Case& from) {
  const Shape& s = from.shape;
  const bool wide = std::max(s.dim_qk, s.dim_v) > 128;
  const std::int64_t rows = wide ? 40 : 100, dim = wide ? 256 : 48,
                     group = std::min<std::int64_t>(s.heads_q / s.heads_kv, 2);
  return {from.place == nullptr ? 1 : std::min<std::int64_t>(s.batch, 3),
          group,
          1,
          std::min(s.seq_q, rows),
          std::min(s.seq_kv, rows + 30),
          std::min(s.dim_qk, dim),
          std::min(s.dim_v, dim)};
}

checking::CheckCase check_case(const Case& from, const Shape& s, bool backward) {
  checking::CheckCase to;
  AttentionProblem& p = to.problem;
  p.batch = s.batch;
  p.heads_q = s.heads_q;
  p.heads_kv = s.heads_kv;
  p.seq_q = s.seq_q;
  p.seq_kv = s.seq_kv;
  p.dim_qk = s.dim_qk;
  p.dim_v = s.dim_v;
  p.dtype = from.dtype;
  p.backward = backward;
  p.stats = p.index_offsets = true;
  p.program = Program::parse(from.program);
  if (from.unaligned) {
    make_unaligned(p.q, s.heads_q, s.seq_q, s.dim_qk);
    make_unaligned(p.k, s.heads_kv, s.seq_kv, s.dim_qk);
    make_unaligned(p.v, s.heads_kv, s.seq_kv, s.dim_v);
    make_unaligned(p.o, s.heads_q, s.seq_q, s.dim_v);
  }
  p.sink = from.sink;
  p.dropout = from.dropout;
  p.max_logit = from.max_logit;
  if (from.place != nullptr) {
    from.place(p);
    p.index_offsets = from.offsets != IndexOffsets{};
  }
  p.dropout_keys = from.dropout_keys;
  for (const OperandDecl& decl : p.program.operands()) {
    p.operands.push_back(problem::default_spec(p, decl));
    if (decl.is_table()) p.operands.back().shape = {41, s.heads_q};
  }
  p = problem::with_implied_operands(std::move(p));
  to.call.dropout_seed = 0x1234'5678'9abc'def0;
  to.call.dropout_offset = 5;
  to.call.offsets = from.offsets;
  to.name = from.name;
  return to;
}

}  // namespace

std::vector<checking::CheckCase> attention_kernels_cases(bool small) {
  std::vector<checking::CheckCase> cases;
  for (const Case& from : kCases) cases.push_back(check_case(from, small ? small_of(from) : from.shape, true));
  return cases;
}

std::vector<checking::CheckCase> split_kv_cases(bool small) {
  std::vector<checking::CheckCase> cases;
  for (const Case& from : kSplitKvCases) {
    Shape shape = from.shape;
    if (small) {
      shape.batch = std::min<std::int64_t>(shape.batch, 2);
      shape.seq_kv = std::min<std::int64_t>(shape.seq_kv, 330);
      // 32 lanes copy whole rows of 32 dims, as of 64 and 128, and not of 40.
      const auto small_dim = [](std::int64_t dim) { return dim > 128 ? 256 : dim >= 64 ? 32 : dim; };
      shape.dim_qk = small_dim(shape.dim_qk);
      shape.dim_v = small_dim(shape.dim_v);
    }
    cases.push_back(check_case(from, shape, false));
  }
  return cases;
}

}  // namespace scoremod::test
