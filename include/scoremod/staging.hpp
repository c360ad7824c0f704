#pragma once

#include <memory>

#include "scoremod/attention.hpp"
#include "scoremod/export.hpp"

namespace scoremod {

/// Makes host buffers usable with any attention: to try things, to check them, and for small problems. An attention of
/// the host gets the caller's own buffers. One of a device gets copies there, which live as long as the staging. Memory
/// that is staged twice has one copy.
class SCOREMOD_API Staging {
 public:
  explicit Staging(const Attention& attention);
  Staging(Staging&&) noexcept;
  Staging& operator=(Staging&&) noexcept;
  ~Staging();

  /// The arguments with every buffer where the attention wants it, for calls on stream(). Outputs are copied too, so
  /// that gaps between their elements stay unchanged. Throws Error(kEnvironment) when the device has no memory left.
  ForwardArgs stage(const ForwardArgs& host);
  BackwardArgs stage(const BackwardArgs& host);
  /// Scratch memory there.
  Buffer workspace(std::size_t bytes);
  /// CUDA: the cudaStream_t of the calls, one of the library's own for the thread that made the staging. The host's is
  /// null.
  void* stream();
  /// Waits for the calls made so far.
  void wait();
  /// Waits, and copies every output back into the caller's buffers.
  void fetch();

 private:
  struct State;
  State& state();
  std::unique_ptr<State> state_;
};

}  // namespace scoremod
