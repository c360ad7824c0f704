#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scoremod/dtype.hpp"
#include "scoremod/export.hpp"
#include "scoremod/program.hpp"

namespace scoremod {

/// In place of a size that a problem leaves open: each call brings it (sizes.hpp). Open may be: batch, heads, lengths,
/// tokens, pages of a paged KV cache, the width of page tables and extents of tables.
inline constexpr std::int64_t kOpenSize = -1;

/// The order of a tensor's dimensions in memory, outermost first: batch, sequence, heads, head dim. T stands for the
/// tokens of a varlen tensor: the sequences of all batches, one after the other.
enum class Layout : std::uint8_t { kBSHD, kSBHD, kBHSD, kTHD };
/// "BSHD", "SBHD", "BHSD" or "THD".
SCOREMOD_API const char* to_string(Layout layout);
/// The inverse of to_string; empty when the name is not one of them.
SCOREMOD_API std::optional<Layout> parse_layout(std::string_view name);

/// Distances between neighbours along each dimension, in elements; none is negative. The dimensions nest: sorted by
/// stride, each stride is larger than the span of the inner dimensions, so no two elements share memory. One exception:
/// a tensor that is only read may have stride 0 along batch and head, which repeats it there. These are d_o, and q, k
/// and v if no gradient has their strides. The stride of a dimension of size 1 has no meaning.
struct Strides {
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t sequence = 0;
  std::int64_t dim = 1;

  bool operator==(const Strides&) const = default;
};

/// How a query-like or key-like tensor lies in memory: densely in `layout`, unless explicit strides are given. A varlen
/// tensor has layout THD, and no other tensor has it. Its tokens are the sequence of its strides, and it has one batch.
struct TensorLayout {
  Layout layout = Layout::kBSHD;
  std::optional<Strides> strides;

  bool operator==(const TensorLayout&) const = default;
};

/// The tensor that a program's operand is bound to. Its dimensions are one per axis of the declaration in the order b,
/// h, q, kv (of the problem's sizes), or a table's own extents.
struct OperandSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  /// In elements, one per dimension; empty means dense, last dimension innermost. The rules of Strides hold; any
  /// dimension may have stride 0 where no gradient is written: unless has_gradient(), and without backward.
  std::vector<std::int64_t> strides;
  /// Whether backward calls may ask for its gradient, if its dtype is a float's. Declare false if no call asks for it:
  /// nothing is then built for it, and no workspace kept.
  bool gradient = true;

  bool has_gradient() const { return gradient && is_floating(dtype); }
  bool operator==(const OperandSpec&) const = default;
};

/// Which sequences have their own length in each batch, given with each call. A query or key at or after its batch's
/// length does not take part.
struct SequenceLengths {
  bool q = false;
  bool kv = false;

  bool operator==(const SequenceLengths&) const = default;
};

/// Keys and values in a paged KV cache. k is [blocks, block_size, heads_kv, dim_qk] and v is [blocks, block_size,
/// heads_kv, dim_v]. Each has its own layout, in which B stands for pages (blocks) and S for a position in one.
/// Position j of a sequence is in the page that its page table names at j / block_size.
struct PagedKeys {
  std::int64_t block_size = 0;
  std::int64_t blocks = 0;
  std::int64_t blocks_per_sequence = 0;  ///< at least seq_kv / block_size, rounded up

  bool operator==(const PagedKeys&) const = default;
};

/// An extra term exp(sink) in the softmax's denominator, which has no value row.
enum class Sink : std::uint8_t {
  kNone,
  kOffByOne,  ///< sink 0: the sum is one more
  kLearned,   ///< one for each query head, given with each call; it has a gradient
};
/// "none", "off_by_one" or "learned".
SCOREMOD_API const char* to_string(Sink sink);
/// The inverse of to_string; empty when the name is not one of them.
SCOREMOD_API std::optional<Sink> parse_sink(std::string_view name);

/// The topic of a problem that says how many sequences, heads and positions there are, and where sequences begin and
/// end.
struct Sequences {
  std::int64_t batch = 1;
  std::int64_t heads_q = 1;
  std::int64_t heads_kv = 1;  ///< divides heads_q
  std::int64_t seq_q = 1;
  std::int64_t seq_kv = 1;
  std::int64_t dim_qk = 64;
  std::int64_t dim_v = 64;
  /// Varlen tensors. With tokens_q, q, o and their gradients are [tokens_q, heads_q, dim] (layout THD) and the LSE is
  /// [tokens_q, heads_q]. Sequence b has the tokens from offsets_q[b] up to offsets_q[b + 1]. 'offsets_q' (cu_seqlens)
  /// is an i32 [batch + 1] operand of the call. seq_q is then the longest length that a sequence may have, and programs
  /// see the position in the sequence. tokens_kv does so for k, v and their gradients, with 'offsets_kv' and seq_kv. On
  /// the host, calls check that offsets begin at 0, never decrease and end at the tokens, and that no sequence exceeds
  /// seq_q or seq_kv. On a CUDA device nobody checks, and calls write the rows of tokens of no sequence, too: they may
  /// stand before the first offset and from the last one on. Their o and gradients are 0, their LSE and largest score
  /// -inf. So are those of a sequence's tokens beyond seq_q or seq_kv.
  std::optional<std::int64_t> tokens_q, tokens_kv;
  /// Forward only, and with lengths of keys. The page tables are operands 'page_table_k' and 'page_table_v', i32
  /// [batch, blocks_per_sequence], and may be one tensor. Entries at or after a sequence's length are not read. On the
  /// host, calls check that the others are from 0 to blocks - 1. In device memory, keys of an invalid page are masked.
  std::optional<PagedKeys> paged;
  /// The lengths are operands 'lengths_q' and 'lengths_kv', i32 [batch]. A length counts the whole sequence: shards get
  /// the same lengths and compare global indices with them. On the host, calls check that each is from 0 to the
  /// sequence's size (at least 0, in a call with index offsets). In device memory they are not checked, and a length
  /// beyond the sequence masks nothing. A query at or after its length has no key.
  SequenceLengths lengths;
  /// Whether calls may pass IndexOffsets other than zero, which every backend refuses otherwise (kInvalidArgument). The
  /// backends of CUDA devices then build kernels that take them; cudnn's then skip no tiles outside a band.
  bool index_offsets = false;

  bool operator==(const Sequences&) const = default;
};

/// The topic of a problem that says in which dtypes its tensors are stored.
struct TensorDTypes {
  /// The dtype of q, k, v and their gradients: f32, f16 or bf16; or e4m3 or e5m2, of q, k and v. An FP8 tensor is
  /// scaled: value = stored * descale_q, an f32 operand of one element, or of block scales (docs/reference/fp8.md). k
  /// and v have their own. Everything else said of a problem is said of these values, scores and gradients too. A
  /// factor of one element is positive and finite, which calls on the host check.
  DType dtype = DType::kF32;
  /// The dtype of k and v, if it differs from dtype: e4m3 or e5m2, where dtype is not FP8. Forward only, since an FP8
  /// KV cache has no gradients. value = stored * 'descale_k' for k, and 'descale_v' for v. Each is f32: one element, or
  /// one for each KV head if the operand's spec has the shape [heads_kv], or block scales.
  std::optional<DType> dtype_kv;
  /// The dtype of o and d_o, if it differs from dtype. FP8 only if dtype is FP8. Memory then holds o times operand
  /// 'scale_o', rounded to nearest even and saturated at the dtype's largest number.
  std::optional<DType> dtype_o;
  /// The dtype of d_o, if it differs from o's; only if dtype is FP8. The value of an FP8 d_o is stored * operand
  /// 'descale_d_o', which a forward call need not pass.
  std::optional<DType> dtype_d_o;
  /// The dtype of dq, dk and dv: f32, f16 or bf16. Only if dtype is FP8; bf16 if absent.
  std::optional<DType> dtype_gradients;

  bool operator==(const TensorDTypes&) const = default;
};

/// The topic of a problem that says how its tensors lie in memory.
struct TensorLayouts {
  TensorLayout q, k, v, o;
  /// d_o has o's layout, dq has q's, dk has k's and dv has v's, unless it is given its own.
  std::optional<TensorLayout> d_o, dq, dk, dv;

  bool operator==(const TensorLayouts&) const = default;
};

/// The topic of a problem that says what the softmax does beside the score function and the mask.
struct SoftmaxOptions {
  /// The factor of Q K^T; 1 / sqrt(dim_qk) when absent. A call may override it without a rebuild.
  std::optional<float> scale;
  /// With one, o = sum over keys of exp(s - lse) v, and the LSE counts the sink: log(exp(sink) + sum of exp(s)). A row
  /// without a kept key has o 0 and LSE = sink; a sink of +inf leaves all rows of its head so
  /// (docs/reference/problem.md). A learned sink is operand 'sink' of the call, f32 (f16 and bf16 do as well)
  /// [heads_q].
  Sink sink = Sink::kNone;
  /// The probability in [0, 1) with which each weight is left out of o, after the softmax. The sum over all keys still
  /// normalises, and remaining weights are multiplied by 1 / (1 - dropout). The call's seed and offset and global
  /// indices alone decide which are dropped (docs/reference/problem.md), so backward() needs those of the forward.
  float dropout = 0;
  /// Whether the dropout mask comes from operand 'dropout_keys', i32 [batch, 4], in the memory of the tensors. A device
  /// can then make it and no host has to read it; the call's seed and offset mean nothing. A batch's row has the bits
  /// of both words of Philox's key, the batch of its counters, and the offset of its heads.
  bool dropout_keys = false;

  bool operator==(const SoftmaxOptions&) const = default;
};

/// The topic of a problem that says what a forward writes beside o.
struct OutputOptions {
  /// Whether forward() writes the LSE (backward needs it): natural log of the sum of exp of the modified scores. It is
  /// f32 [batch, heads_q, seq_q], dense, or [tokens_q, heads_q] with tokens_q.
  bool stats = false;
  /// Whether forward() writes the largest modified score of each row's kept keys: f32, of the LSE's shape; -inf for a
  /// row without one. A sink is no score.
  bool max_logit = false;
  /// Whether forward() writes the largest magnitude in o, before it is multiplied by 'scale_o' and rounded: f32, a
  /// single element; NaN where o has one. Only if dtype is FP8.
  bool amax_o = false;

  bool operator==(const OutputOptions&) const = default;
};

/// The topic of a problem that says whether there is a backward, and of which kind.
struct BackwardOptions {
  /// Whether backward() will be called; a problem without it needs no derivative.
  bool backward = false;
  /// Whether a backward computes each row's delta, rowsum(o * d_o), from the given o and d_o. It must if o and the LSE
  /// cover more keys than the problem's, as in ring attention. It also must if o and d_o carry a gradient of the LSE.
  /// Otherwise a backend may compute delta from its own weights, which is more exact than from a rounded o.
  bool given_deltas = false;
  /// Whether gradients must be the same bits each time that the same call is made on one machine. The host's backends'
  /// always are, for any number of threads. On a GPU it costs time, and with cuDNN memory: docs/reference/problem.md.
  bool deterministic = false;
  /// Whether backward() writes the largest magnitudes in dq, dk and dv, each before it is rounded: f32, a single
  /// element each; NaN where a gradient has one. Only if dtype is FP8.
  bool amax_gradients = false;

  bool operator==(const BackwardOptions&) const = default;
};

/// The topic of a problem that says what is computed of each score, and with which tensors.
struct ScoreProgram {
  Program program;
  /// One for each operand of the program, in any order. The operands of other fields may be left out.
  std::vector<OperandSpec> operands;

  bool operator==(const ScoreProgram&) const = default;
};

/// Everything that decides the computation, as a plain value. Nothing in it points to data.
///
///     O = softmax(score_mod(scale * Q K^T)) V       for each batch and query head, over the keys that the mask keeps
///
/// Query head h reads KV head h / (heads_q / heads_kv). A query row without a kept key gives output 0, LSE -inf and
/// zero gradients. A key whose modified score is -inf counts as not kept; its contents, NaN included, have no
/// influence.
///
/// Its members are grouped by topic, and each topic is a base: `problem.heads_q` is a member of Sequences.
struct AttentionProblem : Sequences,
                          TensorDTypes,
                          TensorLayouts,
                          SoftmaxOptions,
                          OutputOptions,
                          BackwardOptions,
                          ScoreProgram {
  bool operator==(const AttentionProblem&) const = default;

  /// The factor of Q K^T: scale, or 1 / sqrt(dim_qk) without one.
  SCOREMOD_API float effective_scale() const;
};

/// Checks every size, stride, dtype and operand, before anything is allocated or run. Throws Error(kInvalidArgument)
/// that says what was expected, what was found and what to change. Sizes whose byte counts overflow are refused, and
/// sizes of 0, which Attention::compile() takes.
SCOREMOD_API void validate(const AttentionProblem& problem);

/// Reads a problem from JSON, described field by field in docs/reference/problem.md, and checks it as
/// Attention::compile() does. The file's
/// inputs are checked and left out; problem_file.hpp reads them. Throws Error(kInvalidArgument) that names the field.
SCOREMOD_API AttentionProblem parse_problem(std::string_view json);
/// The problem as JSON with every field spelled out, and `scale` where it is given; parse_problem(to_json(p)) == p for
/// a valid p.
SCOREMOD_API std::string to_json(const AttentionProblem& problem);

}  // namespace scoremod
