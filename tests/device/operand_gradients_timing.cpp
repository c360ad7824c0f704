// Measures, where it is asked to, how long the pass of operand gradients takes; no test depends on the time.

#include <algorithm>
#include <cstdlib>
#include <random>

#include <nlohmann/json.hpp>

#include "backend/cuda/device/cuda_memory.hpp"
#include "backend/cuda/device/own_stream.hpp"
#include "backend/cuda/operand_gradients/operand_gradients.hpp"
#include "base/float16.hpp"
#include "compiler/pipeline.hpp"
#include "device/device_cases.hpp"
#include "device/device_fixture.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::cuda {
namespace {

constexpr int kRepeats = 7;

/// bf16 numbers within [-1, 1), by a generator that is quick enough for a few hundred megabytes.
DeviceMemory random_bf16(std::size_t bytes) {
  std::vector<std::uint16_t> values(bytes / 2);
  std::uint32_t state = 1;
  for (std::uint16_t& value : values) {
    state = state * 1664525u + 1013904223u;
    value = encode_bf16(static_cast<double>(state >> 8) / (1 << 23) - 1);
  }
  DeviceMemory memory(bytes);
  memory.upload(values.data(), bytes);
  return memory;
}

double milliseconds(const AttentionProblem& p, OperandGradientCost& cost) {
  const compiler::CompiledProblem compiled = compiler::compile(p);
  const std::vector<std::uint32_t> operands = problem::operands_with_gradient(p);
  cost = OperandGradients::cost(compiled, operands);
  const auto pass = OperandGradients::build(compiled, operands);
  const std::size_t tensor = problem::bytes_of(p, problem::TensorRole::kQ);
  const DeviceMemory q = random_bf16(tensor), operand = random_bf16(problem::bytes_of(p.operands[0]));
  DeviceMemory gradient(operand.bytes()), workspace(pass->workspace_bytes());
  const std::vector<float> lse(static_cast<std::size_t>(p.batch * p.heads_q * p.seq_q), 9.0f);
  DeviceMemory lse_memory(lse.size() * sizeof(float));
  lse_memory.upload(lse.data(), lse_memory.bytes());
  const std::vector<const void*> data{operand.data()};
  const std::vector<void*> gradients{gradient.data()};
  BackwardTensors tensors;
  tensors.q = tensors.k = tensors.v = tensors.o = tensors.d_o = q.data();
  tensors.lse = static_cast<const float*>(lse_memory.data());
  tensors.operands = data;
  tensors.d_operands = gradients;
  const CallParameters parameters{p.effective_scale(), {}, own_stream()};
  std::vector<double> times;
  DeviceTimer timer(cuda::own_stream());
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    timer.start();
    pass->execute(tensors, parameters, {static_cast<std::byte*>(workspace.data()), workspace.bytes()});
    times.push_back(timer.stop());
  }
  std::ranges::sort(times);
  return times[times.size() / 2];
}

class OperandGradientTimes : public test::OnDevice {};

TEST_F(OperandGradientTimes, AreMeasured) {
  if (std::getenv("SCOREMOD_DEVICE_TIMES") == nullptr) GTEST_SKIP() << "set SCOREMOD_DEVICE_TIMES to measure";
  for (const checking::CheckCase& timed : test::timed_problems()) {
    OperandGradientCost cost;
    const double time = milliseconds(timed.problem, cost);
    const std::string line = nlohmann::ordered_json{{"kind", "time"},
                                                    {"case", timed.name},
                                                    {"problem", "batch 4, heads 16, seq 4096, head dim 128, bf16"},
                                                    {"ms", time},
                                                    {"products", cost.products},
                                                    {"workspace_mib", cost.workspace_bytes >> 20}}
                                 .dump();
    test::record_line(line);
    std::cout << line << "\n";
  }
}

}  // namespace
}  // namespace scoremod::backend::cuda
