// A compiled Attention is used again and again, with memory that the caller keeps. Offsets let a part of a larger
// problem see its true positions. Here the queries are cut in two, and each half gives the results of the whole.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

#include <scoremod/attention.hpp>
#include <scoremod/dsl.hpp>
#include <scoremod/error.hpp>

using namespace scoremod;

namespace {

constexpr int kHeads = 2, kLength = 96, kDim = 32;

/// Causal attention with a soft cap over all keys, for this many queries: all, or a part whose calls say where it
/// begins.
AttentionProblem problem_of(int queries) {
  AttentionProblem problem;
  problem.heads_q = kHeads;
  problem.heads_kv = 1;  // both query heads share one KV head
  problem.seq_q = queries;
  problem.seq_kv = kLength;
  problem.dim_qk = problem.dim_v = kDim;
  problem.index_offsets = queries < kLength;
  problem.program = trace([](Score s, Index) { return 20.0f * tanh(s / 20.0f); }, [](Index i) { return i.kv <= i.q; });
  return problem;
}

/// Memory for one call's scratch, aligned as backends want it.
class Scratch {
 public:
  explicit Scratch(std::size_t bytes) : memory_(bytes + 64), bytes_(bytes) {}
  Buffer buffer() {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    return {memory_.data() + (64 - address % 64) % 64, bytes_};
  }

 private:
  std::vector<std::byte> memory_;
  std::size_t bytes_;
};

ConstBuffer read(const float* x, std::size_t count) { return {x, count * sizeof(float)}; }
Buffer write(float* x, std::size_t count) { return {x, count * sizeof(float)}; }

}  // namespace

int main() try {
  for (const Support& answer : support(problem_of(kLength))) {
    std::printf("%s: %s\n", answer.backend.c_str(), answer.supported ? "supported" : answer.reasons.at(0).text.c_str());
  }

  std::vector<float> q(kLength * kHeads * kDim), k(kLength * kDim), v(k.size()), whole(q.size()), halves(q.size());
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = std::sin(0.3f * static_cast<float>(i));
  for (std::size_t i = 0; i < k.size(); ++i) {
    k[i] = std::cos(0.7f * static_cast<float>(i));
    v[i] = std::sin(0.05f * static_cast<float>(i * i % 1000));
  }

  const Attention attention = Attention::compile(problem_of(kLength));
  attention.forward({read(q.data(), q.size()),
                     read(k.data(), k.size()),
                     read(v.data(), v.size()),
                     {},
                     write(whole.data(), whole.size()),
                     {},
                     {}});

  // One plan and one scratch for both halves. In layout BSHD half the queries are half the memory.
  const Attention half = Attention::compile(problem_of(kLength / 2));
  Scratch scratch(half.forward_workspace_bytes());
  const std::size_t count = q.size() / 2;
  for (int part = 0; part < 2; ++part) {
    ForwardArgs args;
    args.q = read(q.data() + static_cast<std::size_t>(part) * count, count);
    args.k = read(k.data(), k.size());
    args.v = read(v.data(), v.size());
    args.o = write(halves.data() + static_cast<std::size_t>(part) * count, count);
    args.options.offsets.query = part * kLength / 2;
    half.forward(args, scratch.buffer());
  }

  float largest = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) largest = std::max(largest, std::abs(whole[i] - halves[i]));
  std::printf("largest difference between the whole and its halves: %g\n", static_cast<double>(largest));
  return largest < 1e-5f ? 0 : 1;
} catch (const Error& error) {
  std::fprintf(stderr, "%s: %s\n", to_string(error.code()), error.what());
  return 1;
}
