#pragma once

#include <cstddef>
#include <vector>

#include "scoremod/attention.hpp"
#include "scoremod/inputs.hpp"

#include "bench_case.hpp"

namespace scoremod::bench {

/// A case with everything that a call needs, so that run() is the call alone. A backward case has run its forward.
class AttentionRun {
 public:
  /// `backend` and `threads` as in CompileOptions.
  AttentionRun(const BenchCase& bench_case, const std::string& backend, int threads);

  void run();
  std::size_t workspace_bytes() const { return workspace_.size(); }

 private:
  void forward(Buffer workspace);

  BenchCase case_;
  Attention attention_;
  ProblemInputs inputs_;
  std::vector<std::byte> o_, dq_, dk_, dv_;
  std::vector<float> lse_;
  std::vector<std::vector<std::byte>> d_operands_;
  std::vector<std::byte> workspace_;
};

}  // namespace scoremod::bench
