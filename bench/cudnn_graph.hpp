#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "reference_form.hpp"

namespace scoremod::bench {

/// A case's attention, written by hand with cudnn-frontend and built by cuDNN.
class CudnnGraph {
 public:
  /// Builds for the current device or, where `device_properties` is not empty, for the device that it describes, which
  /// need not be there. Throws Error: kUnsupported with cuDNN's words, kEnvironment when cuDNN is not there.
  static std::unique_ptr<CudnnGraph> build(const BenchCase& bench_case, const ReferenceForm& form,
                                           const std::string& device_properties = "");
  virtual ~CudnnGraph() = default;

  virtual std::size_t workspace_bytes() const = 0;
  /// The tensors of execute()'s pointers, in order: "q", "k", "v", "o", "lse", "d_o", "dq", "dk", "dv", the name of an
  /// operand, or "d_" and that.
  virtual const std::vector<std::string>& tensors() const = 0;
  /// The cudaStream_t for execute() of all graphs. Throws Error(kEnvironment).
  virtual void use_stream(void* stream) const = 0;
  /// Enqueues on it. Throws Error(kEnvironment).
  virtual void execute(std::span<void* const> pointers, void* workspace) const = 0;
};

/// "9.19.0" and "1.23.0": of cuDNN, or "none", and of the cudnn-frontend that this is compiled with.
std::string cudnn_version();
std::string cudnn_frontend_version();

}  // namespace scoremod::bench
