// Are a backend's results right? check() runs it on random inputs and compares every output with a float64 oracle; the
// tolerance comes from the inputs, not from a constant.
#include <cstdio>

#include <scoremod/check.hpp>
#include <scoremod/dsl.hpp>
#include <scoremod/error.hpp>

using namespace scoremod;

int main() try {
  const Operand<Float> temperature("temperature", {Axis::kHead});
  AttentionProblem problem;
  problem.heads_q = problem.heads_kv = 4;
  problem.seq_q = problem.seq_kv = 130;
  problem.dim_qk = problem.dim_v = 32;
  problem.dtype = DType::kBF16;
  problem.program = trace([temperature](Score s, Index) { return 10.0f * tanh(s / 10.0f) / temperature; },
                          [](Index i) { return i.kv <= i.q; });
  problem.operands = {{"temperature", DType::kF32, {4}, {}}};
  problem.backward = problem.stats = true;

  CheckOptions options;
  options.seed = 42;
  const CheckReport report = check(problem, options);
  std::printf("%s, seed %llu: %s\n", report.backend.c_str(), static_cast<unsigned long long>(report.seed),
              report.passed() ? "right" : "WRONG");
  std::printf("%-14s %12s %12s\n", "output", "error", "tolerance");
  for (const OutputCheck& output : report.outputs) {
    std::printf("%-14s %12.3g %12.3g\n", output.name.c_str(), output.l2.error / output.l2.scale,
                output.l2.tolerance() / output.l2.scale);
    for (const std::string& what : output.problems) std::printf("  %s\n", what.c_str());
  }
  for (const std::string& what : report.memory_problems) std::printf("%s\n", what.c_str());
  return report.passed() ? 0 : 1;
} catch (const Error& error) {
  std::fprintf(stderr, "%s: %s\n", to_string(error.code()), error.what());
  return 1;
}
