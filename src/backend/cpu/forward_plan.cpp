#include "backend/cpu/forward_plan.hpp"

#include "backend/cpu/forward_worker.hpp"
#include "backend/cpu/structure_programs.hpp"
#include "backend/cpu/tile_sizes.hpp"
#include "backend/cpu/workers.hpp"
#include "base/cpu_threads.hpp"

namespace scoremod::backend::cpu {
namespace {

class CpuForward final : public ForwardPlan {
 public:
  CpuForward(const compiler::CompiledProblem& compiled, const PlanOptions& options)
      : compiled_(kept_copy(compiled)),
        analyzer_(mask_analyzer(compiled_)),
        shape_(compiled.problem),
        program_(forward_program(compiled_)),
        operands_(operand_views(compiled.problem)),
        threads_(useful_threads(shape_, cpu_threads(options.threads))) {
    // A call refers to these: they must live as long as it does.
    const ForwardTensors no_tensors;
    const CallParameters no_parameters;
    ForwardCall call = make_call(no_tensors, no_parameters, operands_);
    worker_bytes_ = forward_worker_bytes(call);
    workspace_bytes_ = workspace_bytes_of("forward", compiled_.problem, 0, worker_bytes_, threads_);
  }

  std::size_t workspace_bytes() const override { return workspace_bytes_; }

  void execute(const ForwardTensors& tensors, const CallParameters& parameters,
               std::span<std::byte> workspace) const override {
    const std::vector<OperandView> operands = with_data(operands_, tensors.operands);
    ForwardCall call = make_call(tensors, parameters, operands);
    run_workers(threads_, [&](int worker) {
      Scratch scratch(workspace.subspan(static_cast<std::size_t>(worker) * worker_bytes_, worker_bytes_));
      run_forward_worker(call, scratch);
    });
    if (tensors.amax_o != nullptr) *tensors.amax_o = call.amax_o.value();
  }

 private:
  ForwardCall make_call(const ForwardTensors& tensors, const CallParameters& parameters,
                        std::span<const OperandView> operands) const {
    return {compiled_,
            *analyzer_,
            shape_,
            *program_,
            tensors,
            parameters,
            operands,
            queries_per_unit(shape_, threads_),
            keys_per_tile(shape_)};
  }

  const compiler::CompiledProblem compiled_;
  const std::shared_ptr<const masks::TileMaskAnalyzer> analyzer_;
  const AttentionShape shape_;
  const std::shared_ptr<const VectorProgram> program_;
  const std::vector<OperandView> operands_;
  const int threads_;
  std::size_t worker_bytes_ = 0, workspace_bytes_ = 0;
};

}  // namespace

std::unique_ptr<ForwardPlan> make_forward_plan(const compiler::CompiledProblem& problem, const PlanOptions& options) {
  return std::make_unique<CpuForward>(problem, options);
}

}  // namespace scoremod::backend::cpu
