#include "backend/cpu/backward_plan.hpp"

#include <new>
#include <utility>

#include "backend/cpu/backward_worker.hpp"
#include "backend/cpu/tile_sizes.hpp"
#include "backend/cpu/workers.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::cpu {
namespace {

/// dq can hold its own f32 sums when it is f32, and needs none when each block is visited once.
bool needs_dq_sums(const AttentionShape& shape, std::int64_t tiles) { return shape.dtype != DType::kF32 && tiles > 1; }

class CpuBackward final : public BackwardPlan {
 public:
  CpuBackward(const compiler::CompiledProblem& compiled, const PlanOptions& options)
      : compiled_(compiled),
        analyzer_(compiled_.program),
        shape_(compiled.problem),
        program_(vectorize(*compiled.derivative)),
        operands_(operand_views(compiled.problem)),
        threads_(useful_threads(shape_, thread_count(options.threads))),
        keys_(keys_per_backward_tile(shape_)),
        tiles_((shape_.seq_kv + static_cast<std::int64_t>(keys_) - 1) / static_cast<std::int64_t>(keys_)) {
    Scratch shared;
    const OperandGradients gradients(compiled_.problem, operands_, {}, shared);
    take_shared(shared);
    shared_bytes_ = shared.used();
    // A call refers to these: they must live as long as it does.
    const BackwardTensors no_tensors;
    const CallParameters no_parameters;
    BackwardCall call = make_call(no_tensors, no_parameters, operands_, gradients, nullptr, {});
    worker_bytes_ = backward_worker_bytes(call);
  }

  std::size_t workspace_bytes() const override {
    return shared_bytes_ + worker_bytes_ * static_cast<std::size_t>(threads_);
  }

  void execute(const BackwardTensors& tensors, const CallParameters& parameters,
               std::span<std::byte> workspace) const override {
    Scratch shared(workspace.first(shared_bytes_));
    const std::vector<OperandView> operands = with_data(operands_, tensors.operands);
    const OperandGradients gradients(compiled_.problem, operands_, tensors.d_operands, shared);
    const auto [dq_sums, turns] = take_shared(shared);
    for (std::int64_t unit = 0; unit < units(); ++unit) new (turns + unit) Turn;
    gradients.clear();
    BackwardCall call =
        make_call(tensors, parameters, operands, gradients, dq_sums, {turns, static_cast<std::size_t>(units())});
    run_workers(threads_, [&](int worker) {
      try {
        const std::size_t first = shared_bytes_ + static_cast<std::size_t>(worker) * worker_bytes_;
        Scratch scratch(workspace.subspan(first, worker_bytes_));
        run_backward_worker(call, scratch);
      } catch (...) {
        call.cancelled = true;  // or the others would wait for this one's units
        throw;
      }
    });
    gradients.finish();
  }

 private:
  std::int64_t units() const { return shape_.batch * shape_.heads_kv * tiles_; }

  std::pair<float*, Turn*> take_shared(Scratch& scratch) const {
    const auto rows = static_cast<std::size_t>(shape_.batch * shape_.heads_q * shape_.seq_q);
    float* dq_sums = needs_dq_sums(shape_, tiles_) ? scratch.take<float>(rows * shape_.padded_qk) : nullptr;
    return {dq_sums, scratch.take<Turn>(static_cast<std::size_t>(units()))};
  }

  BackwardCall make_call(const BackwardTensors& tensors, const CallParameters& parameters,
                         std::span<const OperandView> operands, const OperandGradients& gradients, float* dq_sums,
                         std::span<Turn> passed) const {
    return {compiled_,
            analyzer_,
            shape_,
            program_,
            tensors,
            parameters,
            operands,
            gradients,
            keys_,
            tiles_,
            gradients.heads_share_rows(),
            dq_sums,
            passed};
  }

  const compiler::CompiledProblem compiled_;
  const masks::TileMaskAnalyzer analyzer_;
  const AttentionShape shape_;
  const VectorProgram program_;
  const std::vector<OperandView> operands_;
  const int threads_;
  const std::size_t keys_;
  const std::int64_t tiles_;
  std::size_t shared_bytes_ = 0, worker_bytes_ = 0;
};

}  // namespace

std::unique_ptr<BackwardPlan> make_backward_plan(const compiler::CompiledProblem& problem, const PlanOptions& options) {
  if (!problem.derivative) fail_bug("a backward plan was asked for a problem that was compiled without a derivative");
  return std::make_unique<CpuBackward>(problem, options);
}

}  // namespace scoremod::backend::cpu
