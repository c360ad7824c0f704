#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace scoremod {

/// Memory that a call reads. `bytes` must cover the tensor; it is checked.
struct ConstBuffer {
  const void* data = nullptr;
  std::size_t bytes = 0;
};

/// Memory that a call writes.
struct Buffer {
  void* data = nullptr;
  std::size_t bytes = 0;
};

/// A named operand's memory.
struct OperandBuffer {
  std::string name;
  ConstBuffer buffer;
};

/// A named operand's gradient: same dtype, shape and strides as the operand.
struct OperandGradient {
  std::string name;
  Buffer buffer;
};

/// Added to the local indices, so that a shard of a larger problem (index_offsets) sees true positions. Each is at
/// least 0, and every global index that results is below 2^30: there differences of indices cannot wrap in i32.
struct IndexOffsets {
  std::int32_t batch = 0;
  std::int32_t head = 0;
  std::int32_t query = 0;
  std::int32_t key = 0;

  bool operator==(const IndexOffsets&) const = default;
};

/// Options that may change from call to call without a rebuild.
struct CallOptions {
  std::optional<float> scale;  ///< overrides the problem's
  IndexOffsets offsets;
  /// CUDA: the cudaStream_t that the call is enqueued on; null is the default stream. The host ignores it.
  void* stream = nullptr;
  /// The seed that decides, with the offset, which weights dropout drops. Another offset drops others; backward() drops
  /// what forward() did if it gets the same two.
  std::uint64_t dropout_seed = 0;
  std::uint64_t dropout_offset = 0;
};

/// The tensors of forward(), each in its own layout. Shapes in BSHD order: q [batch, seq_q, heads_q, dim_qk], k [batch,
/// seq_kv, heads_kv, dim_qk], v [batch, seq_kv, heads_kv, dim_v], o [batch, seq_q, heads_q, dim_v].
struct ForwardArgs {
  ConstBuffer q, k, v;
  std::vector<OperandBuffer> operands;
  Buffer o;
  Buffer lse;  ///< f32 [batch, heads_q, seq_q]; needed when the problem wants stats
  CallOptions options;
  Buffer max_logit = {};  ///< f32 [batch, heads_q, seq_q]; for problems with max_logit, and for no others
  Buffer amax_o = {};     ///< f32, a single element; for problems with amax_o, and for no others
};

/// The tensors of backward(). o and lse come from forward(), and d_o = d loss / d o has o's layout. dq, dk and dv have
/// the layouts of q, k and v and are overwritten.
struct BackwardArgs {
  ConstBuffer q, k, v, o, lse, d_o;
  std::vector<OperandBuffer> operands;
  Buffer dq, dk, dv;
  /// The operand gradients wanted; f32, f16 and bf16 operands have one. They are overwritten, not added to.
  std::vector<OperandGradient> d_operands;
  CallOptions options;
  /// f32, a single element each; for problems with amax_gradients, and for no others
  Buffer amax_dq = {}, amax_dk = {}, amax_dv = {};
};

}  // namespace scoremod
