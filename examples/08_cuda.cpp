// Attention on an NVIDIA GPU if there is one, and on the CPU otherwise.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include <scoremod/attention.hpp>
#include <scoremod/inputs.hpp>
#include <scoremod/staging.hpp>
#include <scoremod/zoo.hpp>

using namespace scoremod;

namespace {

/// One of the backends that take tensors in this memory is chosen.
CompileOptions in(MemoryKind memory) {
  CompileOptions options;
  options.memory = memory;
  return options;
}

/// The output of one call, from and to the host's memory.
std::vector<std::byte> run(const AttentionProblem& problem, const ProblemInputs& inputs, MemoryKind memory) {
  const Attention attention = Attention::compile(problem, in(memory));
  std::vector<std::byte> o(inputs.q.size());
  ForwardArgs args;
  args.q = {inputs.q.data(), inputs.q.size()};
  args.k = {inputs.k.data(), inputs.k.size()};
  args.v = {inputs.v.data(), inputs.v.size()};
  args.operands = inputs.operand_buffers();
  args.o = {o.data(), o.size()};
  // A program that has its tensors on the device passes their pointers itself, and its stream in args.options.stream.
  Staging staging(attention);
  attention.forward(staging.stage(args), staging.workspace(attention.forward_workspace_bytes()));
  staging.fetch();
  return o;
}

double bf16(const std::vector<std::byte>& bytes, std::size_t i) {
  const auto high = static_cast<std::uint32_t>(bytes[2 * i + 1]), low = static_cast<std::uint32_t>(bytes[2 * i]);
  const std::uint32_t exponent = (high & 0x7f) << 1 | low >> 7;
  const double value =
      std::ldexp(exponent == 0 ? low & 0x7f : (low & 0x7f) + 128, static_cast<int>(exponent == 0 ? 1 : exponent) - 134);
  return high & 0x80 ? -value : value;
}

}  // namespace

int main() {
  AttentionProblem problem;
  problem.batch = 2;
  problem.heads_q = problem.heads_kv = 4;
  problem.seq_q = problem.seq_kv = 256;
  problem.dim_qk = problem.dim_v = 64;
  problem.dtype = DType::kBF16;
  problem.program = trace(zoo::soft_cap(20), zoo::causal());

  for (const Support& answer : support(problem)) {
    std::printf("%s (%s memory): %s\n", answer.backend.c_str(), to_string(answer.memory),
                answer.supported ? "yes" : answer.reasons.front().text.c_str());
    for (const std::string& note : answer.notes) std::printf("  %s\n", note.c_str());
  }
  const ProblemInputs inputs = random_inputs(problem);
  const std::vector<std::byte> on_cpu = run(problem, inputs, MemoryKind::kHost);
  if (!std::ranges::any_of(support(problem, in(MemoryKind::kCuda)), &Support::supported)) return 0;

  const std::vector<std::byte> on_gpu = run(problem, inputs, MemoryKind::kCuda);
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < on_cpu.size() / 2; ++i) {
    const double x = bf16(on_cpu, i), y = bf16(on_gpu, i);
    difference += (x - y) * (x - y);
    norm += x * x;
  }
  std::printf("they differ by %.1e of the output's norm\n", std::sqrt(difference / norm));
  return std::sqrt(difference / norm) < 1e-2 ? 0 : 1;
}
