#include "backend/cpu/backward_plan.hpp"

#include <algorithm>
#include <new>

#include "backend/cpu/backward_worker.hpp"
#include "backend/cpu/row_terms.hpp"
#include "backend/cpu/sink.hpp"
#include "backend/cpu/structure_programs.hpp"
#include "backend/cpu/tile_sizes.hpp"
#include "backend/cpu/workers.hpp"
#include "base/cpu_threads.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::cpu {
namespace {

/// dq can hold its own f32 sums when it is f32, and needs none when each block is visited once.
bool needs_dq_sums(const AttentionShape& shape, std::int64_t tiles) {
  return shape.dq.dtype() != DType::kF32 && tiles > 1;
}

class CpuBackward final : public BackwardPlan {
 public:
  CpuBackward(const compiler::CompiledProblem& compiled, const PlanOptions& options)
      : compiled_(kept_copy(compiled)),
        analyzer_(mask_analyzer(compiled_)),
        shape_(compiled.problem),
        program_(backward_program(compiled_)),
        operands_(operand_views(compiled.problem)),
        threads_(useful_threads(shape_, cpu_threads(options.threads))),
        keys_(keys_per_backward_tile(shape_)),
        tiles_((shape_.seq_kv + static_cast<std::int64_t>(keys_) - 1) / static_cast<std::int64_t>(keys_)),
        row_terms_(compiled_, *analyzer_, shape_, threads_) {
    Scratch shared;
    const OperandGradients gradients(compiled_.backward->reductions, operands_, {}, shared);
    take_shared(shared);
    shared_bytes_ = shared.used();
    // A call refers to these: they must live as long as it does.
    const BackwardTensors no_tensors;
    const CallParameters no_parameters;
    BackwardCall call = make_call(no_tensors, no_parameters, operands_, gradients, {});
    worker_bytes_ = std::max(backward_worker_bytes(call), row_terms_.worker_bytes());
    workspace_bytes_ = workspace_bytes_of("backward", compiled_.problem, shared_bytes_, worker_bytes_, threads_);
  }

  std::size_t workspace_bytes() const override { return workspace_bytes_; }

  void execute(const BackwardTensors& tensors, const CallParameters& parameters,
               std::span<std::byte> workspace) const override {
    Scratch shared(workspace.first(shared_bytes_));
    const std::vector<OperandView> operands = with_data(operands_, tensors.operands);
    const OperandGradients gradients(compiled_.backward->reductions, operands_, tensors.d_operands, shared);
    SharedMemory memory = take_shared(shared);
    for (Turn& turn : memory.turns) new (&turn) Turn;
    const std::span<std::byte> of_workers = workspace.subspan(shared_bytes_);
    make_row_terms(tensors, parameters, operands, of_workers, memory.terms);
    gradients.clear();
    BackwardCall call = make_call(tensors, parameters, operands, gradients, memory);
    run_workers(threads_, [&](int worker) {
      try {
        Scratch scratch(of_workers.subspan(static_cast<std::size_t>(worker) * worker_bytes_, worker_bytes_));
        run_backward_worker(call, scratch);
      } catch (...) {
        call.cancelled = true;  // or the others would wait for this one's units
        throw;
      }
    });
    gradients.finish();
    write_sink_gradient(compiled_.problem, shape_, operands, tensors, memory.terms);
    if (!compiled_.problem.amax_gradients) return;
    *tensors.amax_dq = call.amax_dq.value();
    *tensors.amax_dk = call.amax_dk.value();
    *tensors.amax_dv = call.amax_dv.value();
  }

 private:
  std::int64_t units() const { return shape_.batch * shape_.heads_kv * tiles_; }

  struct SharedMemory {
    float* dq_sums = nullptr;
    RowTermArrays terms;
    std::span<Turn> turns;
  };

  /// Units make deltas on the way if one tile has all keys.
  bool units_make_deltas() const { return tiles_ == 1 && row_terms_.rounds_deltas(); }

  void make_row_terms(const BackwardTensors& tensors, const CallParameters& parameters,
                      std::span<const OperandView> operands, std::span<std::byte> workspace,
                      RowTermArrays& terms) const {
    float* const deltas = terms.deltas;
    if (units_make_deltas()) terms.deltas = nullptr;
    terms = row_terms_.make(tensors, parameters, operands, workspace, worker_bytes_, terms);
    if (!units_make_deltas()) return;
    terms.deltas = deltas;
    // No unit makes one of rows whose tiles are all empty.
    std::fill_n(deltas, shape_.batch * shape_.heads_q * shape_.seq_q, 0.0f);
  }

  SharedMemory take_shared(Scratch& scratch) const {
    const auto rows = static_cast<std::size_t>(shape_.batch * shape_.heads_q * shape_.seq_q);
    SharedMemory memory;
    if (needs_dq_sums(shape_, tiles_)) memory.dq_sums = scratch.take<float>(multiply_bytes(rows, shape_.padded_qk));
    memory.terms.remainders = scratch.take<float>(rows);
    if (row_terms_.rounds_deltas()) memory.terms.deltas = scratch.take<float>(rows);
    const auto count = static_cast<std::size_t>(units());
    memory.turns = {scratch.take<Turn>(count), count};
    return memory;
  }

  BackwardCall make_call(const BackwardTensors& tensors, const CallParameters& parameters,
                         std::span<const OperandView> operands, const OperandGradients& gradients,
                         const SharedMemory& memory) const {
    return {compiled_,
            *analyzer_,
            shape_,
            *program_,
            tensors,
            parameters,
            operands,
            gradients,
            keys_,
            tiles_,
            gradients.heads_share_rows(),
            memory.dq_sums,
            memory.terms,
            units_make_deltas(),
            memory.turns};
  }

  const compiler::CompiledProblem compiled_;
  const std::shared_ptr<const masks::TileMaskAnalyzer> analyzer_;
  const AttentionShape shape_;
  const std::shared_ptr<const VectorProgram> program_;
  const std::vector<OperandView> operands_;
  const int threads_;
  const std::size_t keys_;
  const std::int64_t tiles_;
  const RowTerms row_terms_;
  std::size_t shared_bytes_ = 0, worker_bytes_ = 0, workspace_bytes_ = 0;
};

}  // namespace

std::unique_ptr<BackwardPlan> make_backward_plan(const compiler::CompiledProblem& problem, const PlanOptions& options) {
  if (!problem.backward) fail_bug("a backward plan was asked for a problem that was compiled without a derivative");
  return std::make_unique<CpuBackward>(problem, options);
}

}  // namespace scoremod::backend::cpu
