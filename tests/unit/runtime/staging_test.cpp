#include "scoremod/staging.hpp"

#include <vector>

#include <gtest/gtest.h>

#include "scoremod/error.hpp"
#include "scoremod/inputs.hpp"

#include "backend/backend.hpp"
#include "runtime/buffer_check.hpp"
#include "support/refusal.hpp"

namespace scoremod {
namespace {

/// Host memory that says it is a device's: a missing copy shows.
class PretendedDevice final : public backend::MemorySpace {
 public:
  MemoryKind kind() const override { return MemoryKind::kCuda; }
  std::size_t alignment() const override { return 16; }
  void* allocate(std::size_t bytes, void* stream) const override {
    return backend::host_memory().allocate(bytes, stream);
  }
  void release(void* data, void* stream) const noexcept override { backend::host_memory().release(data, stream); }
  void copy_in(void* to, const void* host, std::size_t bytes) const override {
    backend::host_memory().copy_in(to, host, bytes);
  }
  void copy_out(void* host, const void* from, std::size_t bytes) const override {
    backend::host_memory().copy_out(host, from, bytes);
  }
  void wait(void*) const override {}
  int current_device() const override { return 0; }
  backend::DeviceProperties describe() const override { return {}; }
  void make_current(int) const override {}
  std::string objection(const void* data, int) const override { return data == forbidden ? "memory of the host" : ""; }

  const void* forbidden = nullptr;
};

runtime::TensorUse use_of(const std::vector<float>& memory, std::size_t first) {
  return {"q", memory.data() + first, (memory.size() - first) * sizeof(float), false, 4, 4, 1, {2}, {1}};
}

TEST(BufferCheck, HoldsTensorsToTheMemoryThatTheBackendTakes) {
  PretendedDevice device;
  alignas(64) static const std::vector<float> memory(64);
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::size_t aligned = (16 - begin % 16) % 16 / sizeof(float);
  const std::vector good{use_of(memory, aligned)};
  const std::vector misaligned{use_of(memory, aligned + 1)};
  EXPECT_NO_THROW(runtime::check_buffers(good, device));
  EXPECT_NO_THROW(runtime::check_buffers(misaligned, backend::host_memory()));
  EXPECT_THROW(runtime::check_buffers(misaligned, device), Error);
  device.forbidden = good[0].data;
  test::expect_refusal("expected cuda memory, found memory of the host", [&] { runtime::check_buffers(good, device); });
}

AttentionProblem small_problem() {
  AttentionProblem problem;
  problem.seq_q = 5;
  problem.seq_kv = 7;
  problem.dim_qk = problem.dim_v = 8;
  problem.backward = true;
  return problem;
}

TEST(Staging, GivesAHostAttentionTheCallersOwnBuffers) {
  const AttentionProblem problem = small_problem();
  const Attention attention = Attention::compile(problem);
  const ProblemInputs inputs = random_inputs(problem);
  std::vector<float> o(5 * 8), lse(5);
  ForwardArgs args;
  args.q = {inputs.q.data(), inputs.q.size()};
  args.k = {inputs.k.data(), inputs.k.size()};
  args.v = {inputs.v.data(), inputs.v.size()};
  args.o = {o.data(), o.size() * sizeof(float)};
  args.lse = {lse.data(), lse.size() * sizeof(float)};
  Staging staging(attention);
  const ForwardArgs staged = staging.stage(args);
  EXPECT_EQ(staged.q.data, args.q.data);
  EXPECT_EQ(staged.o.data, args.o.data);
  attention.forward(staged, staging.workspace(attention.forward_workspace_bytes()));
  staging.fetch();
  EXPECT_NE(o[0], 0.0f);
}

TEST(CompileOptions, TheMemoryDecidesWhichBackendsAreAsked) {
  CompileOptions options;
  options.backend = "cpu";
  options.memory = MemoryKind::kCuda;
  EXPECT_THROW(Attention::compile(small_problem(), options), Error);
  options.memory = MemoryKind::kHost;
  EXPECT_EQ(Attention::compile(small_problem(), options).memory(), MemoryKind::kHost);
  options.backend.clear();
  for (const Support& answer : support(small_problem(), options)) {
    EXPECT_EQ(answer.memory, MemoryKind::kHost) << answer.backend;
  }
}

}  // namespace
}  // namespace scoremod
