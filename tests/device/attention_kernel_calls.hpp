#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/inputs.hpp"

#include "backend/cuda/device/cuda_memory.hpp"
#include "backend/cuda/device/device.hpp"
#include "backend/cuda/device/own_stream.hpp"
#include "backend/kernels/backend/kernels_backend.hpp"
#include "backend/kernels/operand_gradients/operand_gradients.hpp"
#include "backend/plan.hpp"
#include "compiler/compiled_problem.hpp"
#include "device/device_fixture.hpp"
#include "support/tiled_call.hpp"

// The timed cases of the attention kernels, and the timing, if SCOREMOD_DEVICE_TIMES is set.

namespace scoremod::backend::kernels {

constexpr int kHopper = 90;  ///< the compute capability that Hopper kernels run on

struct Sizes {
  std::int64_t batch = 4, heads_q = 16, heads_kv = 16, seq_q = 4096, seq_kv = 4096, dim = 128;
  std::int64_t dim_v = 0;  ///< as many as dim if 0
};

struct Timed {
  const char* name;
  const char* program;
  Sizes sizes = {};
  DType dtype = DType::kBF16;
  bool learned = false;  ///< with the gradients of its operands, which Hopper kernels alone sum beside the others
};

constexpr const char* kPlain = "value = score";
constexpr const char* kCausal = "value = score\nkeep = kv_idx <= q_idx";
constexpr const char* kDocuments =
    "operand q_id: i32 [b, q_idx]\noperand kv_id: i32 [b, kv_idx]\nvalue = score\nkeep = q_id == kv_id";
constexpr const char* kRelativeTable =
    "table x: f32 rank 1\nvalue = score + x[max(min(kv_idx - q_idx, 128), -128) + 128]";
/// As the zoo's t5_bias has them, of one head.
constexpr const char* kBuckets =
    "table x: f32 rank 1\nvalue = score + x[select(abs(kv_idx - q_idx) < 8, abs(kv_idx - q_idx), min(15, 8 + "
    "i32(log(f32(max(abs(kv_idx - q_idx), 1)) / 8.0) / 2.7725887 * 8.0))) + select(kv_idx > q_idx, 16, 0)]";
constexpr const char* kSlopes = "operand x: f32 [h]\nvalue = score + x * f32(kv_idx - q_idx)\nkeep = kv_idx <= q_idx";
/// At the size that others' times are known at. The first two have nothing else that takes time.
std::span<const Timed> timed_problems();
const Timed& timed_problem(const std::string& name);
AttentionProblem problem_of(const Timed& timed);

/// Random tensors of one call on the device.
class Call {
 public:
  /// `inputs` of any of the timed problems; the call takes as much as it has room for. Operands are made here.
  Call(const AttentionProblem& problem, const ProblemInputs& inputs);

  ForwardTensors forward;
  BackwardTensors backward;
  CallParameters parameters;

 private:
  std::vector<cuda::DeviceMemory> memory_;
  std::vector<const void*> operands_;
  std::vector<void*> gradients_;
};

/// The call of a timed problem, whose forward has not run. Calls of one problem at a time are kept.
const Call& call_of(const Timed& timed, const AttentionProblem& problem);

/// The operands whose gradients a backward writes beside dq, dk and dv.
std::vector<OperandTarget> targets_of(const compiler::CompiledProblem& compiled, Direction direction);
/// The first of the backward's hopper_shapes() that has room for the targets' sums.
HopperShape hopper_backward_shape(const AttentionProblem& problem, std::span<const OperandTarget> targets);
/// Compiled, or from the store.
std::shared_ptr<LoadedModules> modules_of(const compiler::CompiledProblem& compiled, Direction direction,
                                          const AnyShape& shape);
/// A backward reads the forward's outputs.
void run_forward(const AttentionProblem& problem, const compiler::CompiledProblem& compiled, const Call& call);

inline constexpr int kRounds = 11;
inline double median_of(std::vector<double> times) {
  std::ranges::nth_element(times, times.begin() + kRounds / 2);
  return times[kRounds / 2];
}

/// Medians of several plans of one call, which run in turns. With `behind_another` each runs behind an untimed call, so
/// that the device is busy while the host enqueues, and the host's time is not counted.
template <class Plan, class Tensors>
std::vector<double> medians_in_turns(const std::vector<std::unique_ptr<Plan>>& plans, const Tensors& tensors,
                                     const CallParameters& parameters, bool behind_another = false) {
  std::size_t bytes = 0;
  for (const auto& plan : plans) bytes = std::max(bytes, plan->workspace_bytes());
  const cuda::DeviceMemory memory(bytes);
  const std::span<std::byte> workspace(static_cast<std::byte*>(memory.data()), memory.bytes());
  std::vector<std::vector<double>> times(plans.size());
  for (int round = -2; round < kRounds; ++round)
    for (std::size_t i = 0; i < plans.size(); ++i) {
      cuda::DeviceTimer timer(cuda::own_stream());
      if (behind_another) plans[i]->execute(tensors, parameters, workspace);
      timer.start();
      plans[i]->execute(tensors, parameters, workspace);
      const double ms = timer.stop();
      if (round >= 0) times[i].push_back(ms);
    }
  std::vector<double> medians;
  for (std::vector<double>& of_plan : times) medians.push_back(median_of(std::move(of_plan)));
  return medians;
}

/// Whether plans are to be built alone, into the store, which several processes may do at once.
bool builds_alone();
void record_time(const Timed& timed, const char* direction, const AnyShape& shape, double ms);
/// Record the median times of one direction in these shapes, which run one after the other in every round.
void time_forwards(const Timed& timed, const std::vector<AnyShape>& shapes);
void time_backwards(const Timed& timed, const std::vector<AnyShape>& shapes);

class AttentionKernelTimes : public test::OnDevice, public ::testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (!IsSkipped() && std::getenv("SCOREMOD_DEVICE_TIMES") == nullptr) GTEST_SKIP() << "no times are asked for";
  }
};

}  // namespace scoremod::backend::kernels
