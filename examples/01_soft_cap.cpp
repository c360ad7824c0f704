// A score_mod is a lambda: here scores are kept within (-50, 50) before the softmax, as in Gemma 2.
#include <cmath>
#include <cstdio>
#include <vector>

#include <scoremod/attention.hpp>
#include <scoremod/dsl.hpp>

using namespace scoremod;

int main() {
  AttentionProblem problem;
  problem.batch = 1;
  problem.heads_q = problem.heads_kv = 2;
  problem.seq_q = problem.seq_kv = 16;
  problem.dim_qk = problem.dim_v = 32;
  problem.program = trace([](Score s, Index) { return 50.f * tanh(s / 50.f); });
  std::printf("%s\n", problem.program.to_string().c_str());

  // Dense tensors in the default layout: batch, sequence, heads, head dim.
  const std::size_t count = 1 * 16 * 2 * 32;
  std::vector<float> q(count), k(count), v(count), o(count);
  for (std::size_t i = 0; i < count; ++i) {
    q[i] = 20 * std::sin(0.3f * static_cast<float>(i));
    k[i] = 20 * std::cos(0.7f * static_cast<float>(i));
    v[i] = std::sin(0.05f * static_cast<float>(i));
  }
  const std::size_t bytes = count * sizeof(float);

  const Attention attention = Attention::compile(problem);
  ForwardArgs args;
  args.q = {q.data(), bytes};
  args.k = {k.data(), bytes};
  args.v = {v.data(), bytes};
  args.o = {o.data(), bytes};
  attention.forward(args);
  std::printf("computed by the %s backend; o[0..3] = %g %g %g %g\n", attention.backend().c_str(), o[0], o[1], o[2],
              o[3]);
  return std::isfinite(o[0]) ? 0 : 1;
}
