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

/// In place of a size that a problem leaves open: each call brings it (sizes.hpp). Batch, heads, lengths, tokens,
/// blocks of a pool, the width of page tables and extents of tables may be open.
inline constexpr std::int64_t kOpenSize = -1;

/// The order of a tensor's dimensions in memory, outermost first: batch, sequence, heads, head dim. T stands for the
/// tokens of a ragged tensor: the sequences of all batches, one after the other.
enum class Layout : std::uint8_t { kBSHD, kSBHD, kBHSD, kTHD };
/// "BSHD", "SBHD", "BHSD" or "THD".
SCOREMOD_API const char* to_string(Layout layout);
/// The inverse of to_string; empty when the name is not one of them.
SCOREMOD_API std::optional<Layout> parse_layout(std::string_view name);

/// Distances between neighbours along each dimension, in elements; none is negative. The dimensions nest: sorted by
/// stride, each stride is larger than what the inner dimensions span, so that no two elements share memory. One
/// exception: a tensor that is only read (d_o; q, k and v where no gradient has their strides) may have stride 0 along
/// batch and head, which repeats it there. The stride of a dimension of size 1 has no meaning.
struct Strides {
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t sequence = 0;
  std::int64_t dim = 1;

  bool operator==(const Strides&) const = default;
};

/// How a query-like or key-like tensor lies in memory: densely in `layout`, unless explicit strides are given. A ragged
/// tensor has layout THD and no strides, and no other tensor has it.
struct TensorLayout {
  Layout layout = Layout::kBSHD;
  std::optional<Strides> strides;

  bool operator==(const TensorLayout&) const = default;
};

/// The tensor that a program's operand is bound to. Its dimensions are those of the declaration: one per axis in the
/// order b, h, q, kv (of the problem's sizes), or a table's own extents.
struct OperandSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  /// In elements, one per dimension; empty means dense, last dimension innermost. The rules of Strides hold; any
  /// dimension may have stride 0 where no gradient is written: unless has_gradient(), and without backward.
  std::vector<std::int64_t> strides;
  /// Whether backward calls may ask for its gradient, if its dtype is a float's. What no call asks for is better
  /// declared so: nothing is built for it, and no workspace kept.
  bool gradient = true;

  bool has_gradient() const { return gradient && is_floating(dtype); }
  bool operator==(const OperandSpec&) const = default;
};

/// Which sequences have a length of their own in each batch, given with each call: a query or key at or after its
/// batch's length does not take part.
struct SequenceLengths {
  bool q = false;
  bool kv = false;

  bool operator==(const SequenceLengths&) const = default;
};

/// Where keys and values lie that are kept in blocks of a pool, as in a cache that grows: k is [blocks, block_size,
/// heads_kv, dim_qk] and v [blocks, block_size, heads_kv, dim_v], each in its own layout, where B stands for blocks and
/// S for a position in one. Position j of a sequence is in the block that its page table names at j / block_size.
struct PagedKeys {
  std::int64_t block_size = 0;
  std::int64_t blocks = 0;
  std::int64_t blocks_per_sequence = 0;  ///< at least seq_kv / block_size, rounded up

  bool operator==(const PagedKeys&) const = default;
};

/// What the softmax's sum has beside the keys' terms: exp(sink), which no value goes with.
enum class Sink : std::uint8_t {
  kNone,
  kOffByOne,  ///< sink 0: the sum is one more
  kLearned,   ///< one for each query head, given with each call; it has a gradient
};
/// "none", "off_by_one" or "learned".
SCOREMOD_API const char* to_string(Sink sink);
/// The inverse of to_string; empty when the name is not one of them.
SCOREMOD_API std::optional<Sink> parse_sink(std::string_view name);

/// Everything that decides what is computed, as a plain value. Nothing in it points to data.
///
///     O = softmax(score_mod(scale * Q K^T)) V       for each batch and query head, over the keys that the mask keeps
///
/// Query head h reads key/value head h / (heads_q / heads_kv). A query row without a kept key gives output 0, LSE -inf
/// and zero gradients. A key whose modified score is -inf counts as not kept; what it holds, NaN included, has no
/// influence.
struct AttentionProblem {
  std::int64_t batch = 1;
  std::int64_t heads_q = 1;
  std::int64_t heads_kv = 1;  ///< divides heads_q
  std::int64_t seq_q = 1;
  std::int64_t seq_kv = 1;
  std::int64_t dim_qk = 64;
  std::int64_t dim_v = 64;
  /// Ragged tensors. With tokens_q, q, o and their gradients are [tokens_q, heads_q, dim] (layout THD), the LSE
  /// [tokens_q, heads_q], and sequence b has the tokens from offsets_q[b] up to offsets_q[b + 1], which calls bind as
  /// operand 'offsets_q', i32 [batch + 1]. seq_q is then the most that a sequence may have. Programs see the position
  /// in the sequence. tokens_kv does so for k, v and their gradients, with 'offsets_kv' and seq_kv. On the host, calls
  /// check that offsets begin at 0, do not descend, end at the tokens, and leave no sequence more than seq_q or seq_kv.
  std::optional<std::int64_t> tokens_q, tokens_kv;
  /// Forward only, and with lengths of keys. Calls bind the page tables as operands 'page_table_k' and 'page_table_v',
  /// i32 [batch, blocks_per_sequence], which may be the same memory. What a table holds for blocks at or after its
  /// sequence's length is not looked at; on the host, calls check that the rest is from 0 to blocks - 1;
  /// in a device's memory, keys of another block are masked.
  std::optional<PagedKeys> paged;
  /// Of q, k, v and their gradients: f32, f16 or bf16. Or e4m3 or e5m2, of q, k and v: what a tensor of eight bits
  /// holds stands for numbers, which it is those times a factor that calls bind as an operand, f32 and a single
  /// element. q is 'descale_q' times what is in memory, and k and v likewise; all else that is said of a problem is
  /// said of these numbers, scores and gradients too. Factors are positive and finite, which calls on the host check.
  DType dtype = DType::kF32;
  /// Of o and d_o, where it is not dtype. Of eight bits only if dtype is: memory then has o times operand 'scale_o',
  /// rounded to nearest even, and the largest number that the dtype has for what is beyond it.
  std::optional<DType> dtype_o;
  /// Of d_o, where it is not o's; only if dtype is of eight bits. d_o of eight bits is operand 'descale_d_o' times what
  /// is in memory; a forward call need not bind that.
  std::optional<DType> dtype_d_o;
  /// Of dq, dk and dv: f32, f16 or bf16. Only if dtype is of eight bits, and then bf16 where it is absent.
  std::optional<DType> dtype_gradients;

  TensorLayout q, k, v, o;
  /// The upstream gradient d_o lies as o does, dq as q, dk as k and dv as v, unless it has a layout of its own.
  std::optional<TensorLayout> d_o, dq, dk, dv;

  /// The factor of Q K^T; 1 / sqrt(dim_qk) when absent. A call may override it without a rebuild.
  std::optional<float> scale;

  /// Calls bind the lengths as operands: 'lengths_q' and 'lengths_kv', i32 [batch]. A length is that of the whole
  /// sequence, so that shards are given the same ones and compare global indices with them. On the host, calls check
  /// that each is from 0 to the sequence's size (at least 0, in a call with index offsets); elsewhere they are not read
  /// by the check, and a length beyond the sequence masks nothing of it. A query at or after its length has no key.
  SequenceLengths lengths;
  /// With one, o = sum over keys of exp(s - lse) v, and the LSE counts the sink: log(exp(sink) + sum of exp(s)). A row
  /// without a kept key has o 0 and LSE = sink; a sink of +inf leaves all rows of its head so
  /// (docs/reference/problem.md). Calls bind a learned one as operand 'sink', f32 (f16 and bf16 do as well) [heads_q].
  Sink sink = Sink::kNone;
  /// The probability in [0, 1) with which each weight is left out of o, after the softmax: the sum over all keys still
  /// normalises, and what is left is multiplied by 1 / (1 - dropout). Which ones is decided by the seed and offset of
  /// the call and by global indices alone (docs/reference/problem.md): backward() is given those of the forward.
  float dropout = 0;
  /// Whether calls bind what decides that as operand 'dropout_keys', i32 [batch, 4], in the memory of the tensors, so
  /// that a device's work makes it and no host has to read it; the call's seed and offset then mean nothing. A batch's
  /// row has the bits of the two words of Philox's key, the batch of its counters, and what is added to their heads.
  bool dropout_keys = false;
  /// Whether a backward takes each row's delta, the sum over d of o d_o, from the o and d_o that are bound, as they
  /// are. It has to where o and the LSE are of more keys than the problem's, as a ring's parts have them, or where o
  /// and d_o bring in a gradient of the LSE. Without it o and the LSE are this problem's own, and an engine may make
  /// deltas of its own weights, which is more exact than a rounded o.
  bool given_deltas = false;

  Program program;
  /// One for each operand of the program, in any order. Those that other fields bring may be left out.
  std::vector<OperandSpec> operands;

  /// Whether backward() will be called; a problem without it needs no derivative.
  bool backward = false;
  /// Whether forward() writes the LSE (backward needs it): natural log of the sum of exp of the modified scores,
  /// f32 [batch, heads_q, seq_q], dense; [tokens_q, heads_q] with tokens_q.
  bool stats = false;
  /// Whether forward() writes the largest modified score of each row's kept keys: f32, of the LSE's shape; -inf for a
  /// row without one. A sink is no score.
  bool max_logit = false;
  /// Whether forward() writes the largest magnitude in o, before it is multiplied by 'scale_o' and rounded: f32, a
  /// single element; NaN where o has one. Only if dtype is of eight bits.
  bool amax_o = false;
  /// Whether calls may pass IndexOffsets other than zero, which every backend refuses otherwise (kInvalidArgument). The
  /// backends of CUDA devices then build kernels that take them, of which cudnn's skip no tiles outside a band; the
  /// host's are the same.
  bool index_offsets = false;
  /// Whether gradients must be the same bits each time that the same call is made on one machine. The host's backends'
  /// always are, for any number of threads. On a GPU it costs time, and with cuDNN memory: docs/reference/problem.md.
  bool deterministic = false;

  bool operator==(const AttentionProblem&) const = default;

  /// The factor of Q K^T: scale, or 1 / sqrt(dim_qk) without one.
  SCOREMOD_API float effective_scale() const;
};

/// Checks every size, stride, dtype and operand, before anything is allocated or run. Throws Error(kInvalidArgument)
/// that says what was expected, what was found and what to change. Sizes whose byte counts overflow are refused.
SCOREMOD_API void validate(const AttentionProblem& problem);

/// Reads a problem from JSON, described field by field in docs/reference/problem.md, and validates it. What the file
/// says of inputs is checked and left out; problem_file.hpp has it. Throws Error(kInvalidArgument) that names the
/// field.
SCOREMOD_API AttentionProblem parse_problem(std::string_view json);
/// The problem as JSON with every field spelled out, and `scale` where it is given; parse_problem(to_json(p)) == p for
/// a valid p.
SCOREMOD_API std::string to_json(const AttentionProblem& problem);

}  // namespace scoremod
