#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "scoremod/call.hpp"
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
