#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "scoremod/export.hpp"
#include "scoremod/problem.hpp"

namespace scoremod {

/// Where the tensors and the workspace of a call lie.
enum class MemoryKind : std::uint8_t {
  kHost,
  kCuda,  ///< memory of the CUDA device that the attention was compiled for
};
/// "host" or "cuda".
SCOREMOD_API const char* to_string(MemoryKind kind);

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

/// Added to the local indices, so that a shard of a larger problem sees true positions. Each is at least 0, and every
/// global index that results is below 2^30: there differences of indices cannot wrap in i32.
struct IndexOffsets {
  std::int32_t batch = 0;
  std::int32_t head = 0;
  std::int32_t query = 0;
  std::int32_t key = 0;

  bool operator==(const IndexOffsets&) const = default;
};

/// What may change from call to call without a rebuild.
struct CallOptions {
  std::optional<float> scale;  ///< overrides the problem's
  IndexOffsets offsets;
  /// CUDA: the cudaStream_t that the call is enqueued on; null is the default stream. The host ignores it.
  void* stream = nullptr;
};

/// What forward() reads and writes. Shapes in the order BSHD, each tensor in its own layout: q [batch, seq_q, heads_q,
/// dim_qk], k [batch, seq_kv, heads_kv, dim_qk], v [batch, seq_kv, heads_kv, dim_v], o [batch, seq_q, heads_q, dim_v].
struct ForwardArgs {
  ConstBuffer q, k, v;
  std::vector<OperandBuffer> operands;
  Buffer o;
  Buffer lse;  ///< f32 [batch, heads_q, seq_q]; needed when the problem wants stats
  CallOptions options;
};

/// What backward() reads and writes: o and lse as forward() left them, and d_o = d loss / d o, which lies as o does.
/// dq, dk and dv lie as q, k and v do, and are overwritten.
struct BackwardArgs {
  ConstBuffer q, k, v, o, lse, d_o;
  std::vector<OperandBuffer> operands;
  Buffer dq, dk, dv;
  /// The operand gradients wanted; f32, f16 and bf16 operands have one. They are overwritten, not added to.
  std::vector<OperandGradient> d_operands;
  CallOptions options;
};

struct CompileOptions {
  /// "cudnn", "cpu", "reference", or empty for the first backend with the wanted memory that supports the problem.
  std::string backend;
  /// Where the calls' tensors will lie. Absent: in the memory of the named backend, or on the host.
  std::optional<MemoryKind> memory;
  /// CUDA: the ordinal of the device that will run the calls. Absent: the calling thread's current one. The host is
  /// device 0.
  std::optional<int> device;
  /// CPU threads; 0 means one for each core.
  int threads = 0;
  /// Compiler passes to leave out, by name (see docs); for experiments and tests.
  std::vector<std::string> disabled_passes;
};

/// One backend's answer to a problem.
struct Support {
  std::string backend;
  bool supported = false;
  std::vector<std::string> reasons;  ///< why not; empty when supported
  std::vector<std::string> notes;    ///< how it would run and what that costs, where that is not plain
  MemoryKind memory = MemoryKind::kHost;
};

/// Asks every backend, in the order of preference. Throws Error(kInvalidArgument) for an invalid problem.
SCOREMOD_API std::vector<Support> support(const AttentionProblem& problem, const CompileOptions& options = {});

/// A compiled problem. Calls may run at the same time from several threads, each with its own workspace and outputs.
class SCOREMOD_API Attention {
 public:
  /// Validates, compiles and plans. Throws Error: kInvalidArgument, or kUnsupported with every backend's reasons.
  static Attention compile(const AttentionProblem& problem, const CompileOptions& options = {});

  Attention(Attention&&) noexcept;
  Attention& operator=(Attention&&) noexcept;
  ~Attention();

  const AttentionProblem& problem() const;
  /// The name of the backend that runs it.
  const std::string& backend() const;
  /// Where calls take their tensors and workspace from. With MemoryKind::kCuda every pointer of a call is a device
  /// pointer (scalar operands too), and a call returns once its work is enqueued.
  MemoryKind memory() const;
  /// The ordinal of the device that runs it; 0 on the host. Calls go there whichever device is current.
  int device() const;
  /// Bytes that every tensor's address must be a multiple of, where its elements ask for no more.
  std::size_t alignment() const;

  /// Bytes of scratch that each call needs, aligned to 64.
  std::size_t forward_workspace_bytes() const;
  std::size_t backward_workspace_bytes() const;

  /// Computes o, and lse when given or wanted. Without a workspace scoremod allocates one for the call, which on a
  /// device makes the call wait for its work. Throws Error(kInvalidArgument) before anything is written when a buffer
  /// is missing, too small, misaligned or in the wrong memory.
  void forward(const ForwardArgs& args, Buffer workspace = {}) const;
  /// Computes dq, dk, dv and the operand gradients. The problem must have backward set.
  void backward(const BackwardArgs& args, Buffer workspace = {}) const;

 private:
  struct State;
  explicit Attention(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace scoremod
