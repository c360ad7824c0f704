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

/// What to do where the fastest engine's plan has to be built or tried first, and another's is at hand. scoremod's own
/// kernels take sizes as arguments, so that they are at hand for lengths that were never seen.
enum class NewSizes : std::uint8_t {
  kWait,  ///< for the fastest engine's plan
  /// Run at once what is at hand, and the faster plan from when it is built and verified, which a thread does beside.
  /// Results change then by what two engines differ by. Where nothing is at hand, as kWait.
  kServe,
};
/// "wait" or "serve".
SCOREMOD_API const char* to_string(NewSizes new_sizes);

struct CompileOptions {
  /// The one backend that may run it: "cudnn", "kernels", "cpu", "reference"; empty for a choice among `backends`.
  std::string backend;
  /// Whom to choose from. Names: these alone, the first that supports the problem. Names with a '-' before them are
  /// left out, of the names given or of all. Without a name the backend that is predicted to be the fastest is taken.
  /// Empty: what the environment variable SCOREMOD_BACKENDS says in the same words, between commas; else all.
  std::vector<std::string> backends;
  /// Where the calls' tensors will lie. Absent: in the memory of the named backends if they have one, or on the host.
  std::optional<MemoryKind> memory;
  /// CUDA: the ordinal of the device that will run the calls. Absent: the calling thread's current one. The host is
  /// device 0.
  std::optional<int> device;
  /// CPU threads; 0 means OMP_NUM_THREADS, or one for each core. The environment variable SCOREMOD_THREADS is the most.
  int threads = 0;
  /// The most scratch memory that a call may need on a device, in bytes: what needs more is not chosen. Absent: the
  /// environment variable SCOREMOD_MAX_WORKSPACE, or 8 GiB.
  std::optional<std::size_t> max_workspace;
  /// Measure what may run on the device at the first use of a problem, take the fastest, and remember it in the plan
  /// store; the environment variable SCOREMOD_AUTOTUNE=1 asks for it too. Otherwise predicted times decide.
  bool autotune = false;
  /// Absent: what the environment variable SCOREMOD_NEW_SIZES says, `wait` or `serve`; else kServe, but kWait for
  /// problems that are deterministic and where `autotune` is asked for.
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
  bool forward_supported = false;          ///< the forward, whatever is said of the backward
  std::vector<UnsupportedReason> reasons;  ///< why not, each of them; empty when supported
  std::vector<std::string> notes;          ///< how it would run and what that costs, where that is not plain
  MemoryKind memory = MemoryKind::kHost;
};

/// How far support() goes to find out.
enum class SupportLevel : std::uint8_t {
  /// By rules and tables alone: builds and tries nothing, and needs no device. What it allows may still be refused by
  /// the engine's library or by the run that verifies it.
  kStatic,
  kVerified,  ///< what compile() would do: builds plans, and runs what was never seen to be right on the device
};

/// Asks every backend, in the order of preference. Throws Error(kInvalidArgument) for an invalid problem.
SCOREMOD_API std::vector<Support> support(const AttentionProblem& problem, const CompileOptions& options = {},
                                          SupportLevel level = SupportLevel::kVerified);

/// A compiled problem. Calls may run at the same time from several threads, each with its own workspace and outputs.
/// One that was moved from can be destroyed and assigned to; its other functions throw Error(kInvalidArgument).
class SCOREMOD_API Attention {
 public:
  /// Validates, compiles and plans. Throws Error: kInvalidArgument, or kUnsupported with every backend's reasons when
  /// none runs the forward. Where the backward alone is refused, backward() throws its reasons.
  static Attention compile(const AttentionProblem& problem, const CompileOptions& options = {});

  Attention(Attention&&) noexcept;
  Attention& operator=(Attention&&) noexcept;
  ~Attention();

  /// The problem, whose program declares all that calls bind: what `lengths` and `sink` bring, too.
  const AttentionProblem& problem() const;
  /// The name of the backend that runs it now: the forward, and the backward unless backward_backend() says otherwise.
  const std::string& backend() const;
  /// The name of the backend that runs the backward; empty without one.
  const std::string& backward_backend() const;
  /// Why the backward that the problem wants is refused; empty where it runs or is not wanted.
  const std::vector<UnsupportedReason>& backward_reasons() const;
  /// Where calls take their tensors and workspace from. With MemoryKind::kCuda every pointer of a call is a device
  /// pointer (scalar operands too), and a call returns once its work is enqueued.
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
  /// its stream; a call that a CUDA graph captures needs one from its caller. The graph may be replayed after the
  /// attention is gone: what it runs stays until the process ends. Throws Error(kInvalidArgument) before anything is
  /// written when a buffer is missing, too small, misaligned or in the wrong memory.
  void forward(const ForwardArgs& args, Buffer workspace = {}) const;
  /// Computes dq, dk, dv and the operand gradients. The problem must have backward set. Throws Error(kUnsupported) with
  /// backward_reasons() where there are some.
  void backward(const BackwardArgs& args, Buffer workspace = {}) const;

 private:
  struct State;
  explicit Attention(std::unique_ptr<State> state);
  const State& state() const;
  std::unique_ptr<State> state_;
};

}  // namespace scoremod
