#include "backend/cpu/row_terms.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "backend/cpu/structure_programs.hpp"
#include "backend/cpu/tile_sizes.hpp"
#include "backend/cpu/workers.hpp"
#include "backend/few_rows.hpp"

namespace scoremod::backend::cpu {

float lse_remainder(float lse, float largest, float sum) {
  if (!leaves_remainder(lse)) return 0;
  const float remainder = (largest - lse) + std::log(sum);
  int exponent = 0;
  std::frexp(lse, &exponent);
  const float spacing = std::ldexp(1.0f, exponent - std::numeric_limits<float>::digits);
  return std::abs(remainder) <= spacing ? remainder : 0;
}

RowTerms::RowTerms(const compiler::CompiledProblem& compiled, const masks::TileMaskAnalyzer& analyzer,
                   const AttentionShape& shape, int threads)
    : compiled_(compiled), analyzer_(analyzer), shape_(shape), program_(forward_program(compiled)), threads_(threads) {
  const std::vector<OperandView> operands = operand_views(compiled.problem);
  // A call refers to these: they must live as long as it does.
  const ForwardTensors no_tensors;
  const CallParameters no_parameters;
  float no_term = 0;
  ForwardCall call = make_call(no_tensors, no_parameters, operands, {.arrays = {&no_term, &no_term}});
  worker_bytes_ = forward_worker_bytes(call);
}

bool RowTerms::rounds_deltas() const { return !compiled_.problem.given_deltas && shape_.o.dtype() != DType::kF32; }

bool RowTerms::is_worth_deltas(const BackwardTensors& tensors) const {
  return has_few_rows(compiled_.problem) ||
         std::ranges::any_of(tensors.d_operands, [](const void* gradient) { return gradient != nullptr; });
}

RowTermArrays RowTerms::make(const BackwardTensors& tensors, const CallParameters& parameters,
                             std::span<const OperandView> operands, std::span<std::byte> workspace,
                             std::size_t worker_stride, const RowTermArrays& room) const {
  RowTermArrays made;
  if (std::any_of(tensors.lse, tensors.lse + shape_.lse_rows(), leaves_remainder)) made.remainders = room.remainders;
  if (room.deltas != nullptr && rounds_deltas() && is_worth_deltas(tensors)) made.deltas = room.deltas;
  if (made.remainders == nullptr && made.deltas == nullptr) return made;
  const ForwardTensors inputs{tensors.q, tensors.k, tensors.v, tensors.operands};
  ForwardCall call = make_call(inputs, parameters, operands, {tensors.lse, tensors.d_o, made});
  run_workers(threads_, [&](int worker) {
    Scratch scratch(workspace.subspan(static_cast<std::size_t>(worker) * worker_stride, worker_bytes_));
    run_forward_worker(call, scratch);
  });
  return made;
}

ForwardCall RowTerms::make_call(const ForwardTensors& tensors, const CallParameters& parameters,
                                std::span<const OperandView> operands, const RowTermCall& terms) const {
  return {compiled_,
          analyzer_,
          shape_,
          *program_,
          tensors,
          parameters,
          operands,
          queries_per_unit(shape_, threads_),
          keys_per_tile(shape_),
          terms};
}

}  // namespace scoremod::backend::cpu
