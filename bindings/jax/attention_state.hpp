#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "scoremod/attention.hpp"
#include "scoremod/capture_failed.hpp"
#include "scoremod/tensors.hpp"

namespace scoremod::jax {

/// A compiled attention, and the memory that its calls need, fixed when it was prepared.
struct Prepared {
  std::shared_ptr<const Attention> attention;
  std::size_t forward_workspace = 0, backward_workspace = 0;
};

/// The compiled attentions of one custom call of an XLA program, one for each device. Each is made before the program
/// first runs on its device, never during a run, which a CUDA graph may record.
class AttentionState {
 public:
  /// Makes the attention of options that name a device, too.
  using Make = std::function<std::shared_ptr<const Attention>(const CompileOptions& options)>;

  /// `problem` is a problem's JSON; `options` name the memory, and no device. Attentions come from the process's cache.
  AttentionState(const std::string& problem, CompileOptions options);
  /// The problem has no open sizes; `make` makes its attentions.
  AttentionState(const AttentionProblem& problem, CompileOptions options, Make make);

  /// Makes the attention on a device where it isn't yet. Throws Error, and always after run() raised CaptureFailed on
  /// the device: XLA would run a graph that it has updated in part, with wrong results.
  void prepare(int device);

  /// Prepares calls with a workspace of at most `given` bytes; `needed` names the member that counts it. XLA planned
  /// that memory by the attention's needs on another device or in another process. If the best choice needs more, one
  /// that fits is chosen; if none fits, calls allocate.
  void prepare_within(int device, std::size_t Prepared::*needed, std::size_t given);

  /// Runs call(prepared) with the attention that was prepared on a device. Throws what it throws, and Error(kBug) for
  /// another device.
  template <class Call>
  void run(int device, const Call& call) const {
    try {
      call(on(device));
    } catch (const CaptureFailed& error) {
      remember_failed_capture(device, error);
      throw;
    }
  }

  /// tensors_of() the problem, which each buffer of a call must match.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  /// gradients_of() it, likewise.
  const std::vector<TensorInfo>& gradients() const { return gradients_; }

 private:
  AttentionState(const AttentionProblem& problem, CompileOptions options);
  Prepared on(int device) const;
  void remember_failed_capture(int device, const CaptureFailed& error) const;
  Prepared made(int device, std::optional<std::size_t> max_workspace) const;

  const Make make_;
  const CompileOptions options_;
  std::vector<TensorInfo> tensors_, gradients_;
  mutable std::mutex mutex_;  ///< devices run their parts of a program in threads of their own
  std::map<int, Prepared> by_device_;
  mutable std::map<int, std::string> failed_captures_;  ///< the first message on each device
  std::set<int> within_;                                ///< devices that prepare_within() has seen
};

}  // namespace scoremod::jax
