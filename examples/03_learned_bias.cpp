// The backward pass is derived, also for the tensors that a score_mod reads. Here it is a learned bias for each head
// and distance between query and key.
#include <cmath>
#include <cstdio>
#include <vector>

#include <scoremod/attention.hpp>
#include <scoremod/dsl.hpp>

using namespace scoremod;

int main() {
  constexpr int kHeads = 2, kLength = 8, kDim = 16, kDistances = 2 * kLength - 1;
  const Table<Float, 2> bias("bias");

  AttentionProblem problem;
  problem.heads_q = problem.heads_kv = kHeads;
  problem.seq_q = problem.seq_kv = kLength;
  problem.dim_qk = problem.dim_v = kDim;
  problem.program = trace([bias](Score s, Index i) { return s + bias(i.h, i.q - i.kv + (kLength - 1)); },
                          [](Index i) { return i.q >= i.kv; });
  problem.operands = {{"bias", DType::kF32, {kHeads, kDistances}, {}}};
  problem.backward = problem.stats = true;

  std::vector<float> q(kLength * kHeads * kDim), k(q.size()), v(q.size()), o(q.size()), d_o(q.size(), 1.0f);
  for (std::size_t i = 0; i < q.size(); ++i) {
    const float x = static_cast<float>(i);
    q[i] = std::sin(0.3f * x), k[i] = std::cos(0.7f * x), v[i] = std::sin(0.05f * x * x);
  }
  std::vector<float> table(kHeads * kDistances, 0.1f), lse(kHeads * kLength);
  std::vector<float> dq(q.size()), dk(q.size()), dv(q.size()), d_table(table.size());
  const auto read = [](const std::vector<float>& x) { return ConstBuffer{x.data(), x.size() * sizeof(float)}; };
  const auto write = [](std::vector<float>& x) { return Buffer{x.data(), x.size() * sizeof(float)}; };

  const Attention attention = Attention::compile(problem);
  ForwardArgs forward;
  forward.q = read(q), forward.k = read(k), forward.v = read(v);
  forward.operands = {{"bias", read(table)}};
  forward.o = write(o), forward.lse = write(lse);
  attention.forward(forward);

  BackwardArgs backward;
  backward.q = read(q), backward.k = read(k), backward.v = read(v);
  backward.o = read(o), backward.lse = read(lse), backward.d_o = read(d_o);
  backward.operands = forward.operands;
  backward.dq = write(dq), backward.dk = write(dk), backward.dv = write(dv);
  backward.d_operands = {{"bias", write(d_table)}};
  attention.backward(backward);

  // A constant added to every score changes nothing, so the gradients of each head's biases add up to zero.
  for (int h = 0; h < kHeads; ++h) {
    float sum = 0;
    std::printf("head %d: d loss / d bias at distances 0 to 3:", h);
    for (int d = 0; d < kDistances; ++d) {
      const float gradient = d_table[static_cast<std::size_t>(h * kDistances + d)];
      if (d >= kLength - 1 && d < kLength + 3) std::printf(" %9.5f", gradient);
      sum += gradient;
    }
    std::printf("   sum of all: %g\n", sum);
    if (!(std::abs(sum) < 1e-4f)) return 1;
  }
  return 0;
}
