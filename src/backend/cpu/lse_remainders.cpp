#include "backend/cpu/lse_remainders.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "backend/cpu/tile_sizes.hpp"
#include "backend/cpu/workers.hpp"

namespace scoremod::backend::cpu {

float lse_remainder(float lse, float largest, float sum) {
  if (!leaves_remainder(lse)) return 0;
  const float remainder = (largest - lse) + std::log(sum);
  int exponent = 0;
  std::frexp(lse, &exponent);
  const float spacing = std::ldexp(1.0f, exponent - std::numeric_limits<float>::digits);
  return std::abs(remainder) <= spacing ? remainder : 0;
}

LseRemainders::LseRemainders(const compiler::CompiledProblem& compiled, const masks::TileMaskAnalyzer& analyzer,
                             const AttentionShape& shape, int threads)
    : compiled_(compiled),
      analyzer_(analyzer),
      shape_(shape),
      program_(vectorize(compiled.forward.program)),
      threads_(threads) {
  const std::vector<OperandView> operands = operand_views(compiled.problem);
  // A call refers to these: they must live as long as it does.
  const ForwardTensors no_tensors;
  const CallParameters no_parameters;
  float no_remainder = 0;
  ForwardCall call = make_call(no_tensors, no_parameters, operands, nullptr, &no_remainder);
  worker_bytes_ = forward_worker_bytes(call);
}

bool LseRemainders::make(const BackwardTensors& tensors, const CallParameters& parameters,
                         std::span<const OperandView> operands, std::span<std::byte> workspace,
                         std::size_t worker_stride, float* remainders) const {
  if (std::none_of(tensors.lse, tensors.lse + shape_.lse_rows(), leaves_remainder)) return false;
  const ForwardTensors inputs{tensors.q, tensors.k, tensors.v, tensors.operands};
  ForwardCall call = make_call(inputs, parameters, operands, tensors.lse, remainders);
  run_workers(threads_, [&](int worker) {
    Scratch scratch(workspace.subspan(static_cast<std::size_t>(worker) * worker_stride, worker_bytes_));
    run_forward_worker(call, scratch);
  });
  return true;
}

ForwardCall LseRemainders::make_call(const ForwardTensors& tensors, const CallParameters& parameters,
                                     std::span<const OperandView> operands, const float* lse, float* remainders) const {
  return {compiled_,
          analyzer_,
          shape_,
          program_,
          tensors,
          parameters,
          operands,
          queries_per_unit(shape_, threads_),
          keys_per_tile(shape_),
          lse,
          remainders};
}

}  // namespace scoremod::backend::cpu
