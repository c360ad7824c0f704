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

/// The memory that the tensors and the workspace of a call lie in.
enum class MemoryKind : std::uint8_t {
  kHost,
  kCuda,  ///< memory of the CUDA device that the attention was compiled for
};
/// "host" or "cuda".
SCOREMOD_API const char* to_string(MemoryKind kind);

/// Decides what a call does while the fastest backend's plan still has to be built or verified and a slower one is
/// ready. Kernels of scoremod take sizes as arguments, so they are ready for new lengths.
enum class NewSizes : std::uint8_t {
  kWait,  ///< for the fastest backend's plan
  /// Run what is ready at once, and the faster plan as soon as a thread has built and verified it. Results then change
  /// by the difference of two backends. If nothing is ready, the call waits.
  kServe,
};
/// "wait" or "serve".
SCOREMOD_API const char* to_string(NewSizes new_sizes);

struct CompileOptions {
  /// The one backend that may run it: "cudnn", "kernels", "cpu", "reference"; empty for a choice among `backends`.
  std::string backend;
  /// The backends to choose from. Names alone: the first named one that supports the problem. Names with a '-' before
  /// them are left out, of the given names or of all. Without a name, the backend that is predicted to be the fastest.
  /// If empty, the environment variable SCOREMOD_BACKENDS has such a list, with commas; else all.
  std::vector<std::string> backends;
  /// The memory of the calls' tensors. If absent, the memory of the named backends, or the host's.
  std::optional<MemoryKind> memory;
  /// CUDA: the ordinal of the device that will run the calls. Absent: the calling thread's current one. The host is
  /// device 0.
  std::optional<int> device;
  /// CPU threads; 0 means OMP_NUM_THREADS, or one for each core. The environment variable SCOREMOD_THREADS is the most.
  int threads = 0;
  /// The most scratch memory that a call may need on a device, in bytes; candidates that need more are not chosen.
  /// Absent: the environment variable SCOREMOD_MAX_WORKSPACE, or 8 GiB.
  std::optional<std::size_t> max_workspace;
  /// Measure all candidates on the device at the first use of a problem and keep the fastest in the plan store.
  /// SCOREMOD_AUTOTUNE=1 does that too. Otherwise predicted times decide.
  bool autotune = false;
  /// Absent: the environment variable SCOREMOD_NEW_SIZES (`wait` or `serve`). Without it kServe, but kWait for
  /// deterministic problems and with `autotune`.
  std::optional<NewSizes> new_sizes;
  /// Compiler passes to leave out, by name (see docs); for experiments and tests.
  std::vector<std::string> disabled_passes;
};

/// Why something cannot run: docs/reference/unsupported_reasons.md has every id.
struct UnsupportedReason {
  std::string id;         ///< such as "head_dim"; never changes
  std::string direction;  ///< "forward" or "backward"; empty where both are refused for it
  std::string text;       ///< what was expected and what was found
  std::string remedy;     ///< what would make it supported

  bool operator==(const UnsupportedReason&) const = default;
};
/// "backward: the text; the remedy".
SCOREMOD_API std::string to_string(const UnsupportedReason& reason);

/// One backend's answer to a problem.
struct Support {
  std::string backend;
  bool supported = false;                  ///< every direction that the problem wants
  bool forward_supported = false;          ///< the forward, whatever the answer for the backward
  std::vector<UnsupportedReason> reasons;  ///< why not, each of them; empty when supported
  std::vector<std::string> notes;          ///< how it would run and at what cost, if that is not obvious
  MemoryKind memory = MemoryKind::kHost;
};

/// How far support() goes to find out.
enum class SupportLevel : std::uint8_t {
  /// By rules and tables alone: builds and tries nothing, and needs no device. The backend's library or verification
  /// may still refuse a problem that it allows.
  kStatic,
  kVerified,  ///< as compile(): builds plans, and verifies unverified ones on the device
};

/// Asks every backend, in the order of preference. Throws Error(kInvalidArgument) for an invalid problem.
SCOREMOD_API std::vector<Support> support(const AttentionProblem& problem, const CompileOptions& options = {},
                                          SupportLevel level = SupportLevel::kVerified);

/// A compiled problem. Calls may run at the same time from several threads, each with its own workspace and outputs.
/// One that was moved from can be destroyed and assigned to; its other functions throw Error(kInvalidArgument).
class SCOREMOD_API Attention {
 public:
  /// Validates, compiles and plans. Throws Error: kInvalidArgument, or kUnsupported with every backend's reasons when
  /// none runs the forward. If only the backward is refused, backward() throws its reasons. Batch, heads and lengths
  /// may be 0 in a problem without tokens and pages: no backend runs then, and every row is one without a key. On a
  /// device such a call is refused (kUnsupported) if it has something to write.
  static Attention compile(const AttentionProblem& problem, const CompileOptions& options = {});

  Attention(Attention&&) noexcept;
  Attention& operator=(Attention&&) noexcept;
  ~Attention();

  /// The problem. Its program declares every runtime argument of a call, including those of `lengths` and `sink`.
  const AttentionProblem& problem() const;
  /// The name of the backend that runs it now: the forward, and the backward unless backward_backend() says otherwise.
  const std::string& backend() const;
  /// The name of the backend that runs the backward; empty without one.
  const std::string& backward_backend() const;
  /// Why the backward that the problem wants is refused; empty where it runs or is not wanted.
  const std::vector<UnsupportedReason>& backward_reasons() const;
  /// The memory that calls take their tensors and workspace from. With MemoryKind::kCuda every pointer of a call is a
  /// device pointer (scalar operands too), and a call returns once its work is enqueued.
  MemoryKind memory() const;
  /// The ordinal of the device that runs it; 0 on the host. Calls go there whichever device is current.
  int device() const;
  /// Bytes that every tensor's address must be a multiple of, where its elements ask for no more.
  std::size_t alignment() const;

  /// Bytes of scratch that each call needs, aligned to 64. With NewSizes::kServe a call whose workspace is too small
  /// for the faster plan goes on with the first.
  std::size_t forward_workspace_bytes() const;
  std::size_t backward_workspace_bytes() const;

  /// Computes o, and lse when given or wanted. Without a workspace scoremod allocates one for the call, in the order of
  /// its stream. A call that a CUDA graph captures needs one from its caller. The graph may be replayed after the
  /// attention is gone: its kernels stay until the process ends. Throws Error(kInvalidArgument) before anything is
  /// written if a buffer is missing, too small, misaligned or in the wrong memory.
  void forward(const ForwardArgs& args, Buffer workspace = {}) const;
  /// Computes dq, dk, dv and the operand gradients. The problem must have backward set. Throws Error(kUnsupported) with
  /// backward_reasons() where there are some.
  void backward(const BackwardArgs& args, Buffer workspace = {}) const;

 private:
  friend class OpenAttention;
  struct Shared;
  struct State;
  explicit Attention(std::unique_ptr<State> state);
  static Attention compile(AttentionProblem problem, const CompileOptions& options, const Shared* shared, int device);
  const State& state() const;
  std::unique_ptr<State> state_;
};

}  // namespace scoremod
