#include "fake_driver/fake_device.hpp"

#include <algorithm>
#include <cstdlib>
#include <future>
#include <utility>

#include "scoremod/attention_cache.hpp"
#include "scoremod/cache.hpp"

#include "backend/cuda/device/library.hpp"
#include "backend/cuda/device/retirement.hpp"
#include "base/concat.hpp"
#include "fake_driver/guarded_heap.hpp"

namespace scoremod::test {
namespace {

/// Before anything asks for a device.
class Described final : public ::testing::Environment {
 public:
  void SetUp() override {
    std::vector<std::string> files;
    for (int device = 0; device < static_cast<int>(fake_devices().size()); ++device)
      files.push_back(description_of(device));
    fake_cuda::describe_devices(files);
    // No trial: a fake device computes nothing.
    setenv("SCOREMOD_VERIFICATION", "never", 1);
  }
};
[[maybe_unused]] const auto* const described = ::testing::AddGlobalTestEnvironment(new Described);

}  // namespace

const std::vector<std::string>& fake_devices() {
  static const std::vector<std::string> names{"h200", "a100", "b200", "l40s", "rtx5090"};
  return names;
}

std::string description_of(int device) {
  return concat(SCOREMOD_DEVICES_FOLDER "/", fake_devices()[static_cast<std::size_t>(device)], ".json");
}

int fake_device(const std::string& name) {
  return static_cast<int>(std::ranges::find(fake_devices(), name) - fake_devices().begin());
}

void OnFakeDevice::SetUp() {
  ASSERT_TRUE(backend::cuda::library().available) << backend::cuda::library().reason;
  if (compiles() && backend::cuda::nvrtc_library().handle == nullptr)
    GTEST_SKIP() << "no NVRTC: " << backend::cuda::nvrtc_library().reason;
  drop_plans();  // those of tests that allow leftovers
  fake_cuda::take_launches();
  before_ = fake_cuda::live();
}

void OnFakeDevice::TearDown() {
  for (const std::string& violation : fake_cuda::take_violations()) ADD_FAILURE() << violation;
  if (IsSkipped() || leftovers_allowed_) return;
  const fake_cuda::Live leaked = left();
  EXPECT_EQ(leaked.modules, 0u);
  EXPECT_EQ(leaked.allocations, 0u);
  EXPECT_EQ(leaked.events, 0u);
  EXPECT_EQ(leaked.graphs, 0u);
  EXPECT_LE(fake_cuda::live().pools, fake_devices().size());
}

void OnFakeDevice::drop_plans() {
  clear_attention_cache();
  clear_plan_cache();
  std::promise<void> reached;
  backend::cuda::retire([&] { reached.set_value(); });
  reached.get_future().wait();
}

fake_cuda::Live OnFakeDevice::left() const {
  drop_plans();
  const fake_cuda::Live now = fake_cuda::live();
  return {now.modules - before_.modules, now.allocations - before_.allocations, now.events - before_.events, 0, 0,
          now.graphs - before_.graphs};
}

AttentionProblem small_problem(const char* program, DType dtype, std::int64_t dim) {
  AttentionProblem problem;
  problem.batch = 2;
  problem.heads_q = 4;
  problem.heads_kv = 2;
  problem.seq_q = 130;
  problem.seq_kv = 200;
  problem.dim_qk = problem.dim_v = dim;
  problem.dtype = dtype;
  problem.backward = problem.stats = true;
  problem.program = Program::parse(program);
  return problem;
}

CompileOptions kernels_on(int device) {
  CompileOptions options;
  options.backend = "kernels";
  options.device = device;
  options.new_sizes = NewSizes::kWait;  // no thread builds another plan beside
  return options;
}

DeviceCalls::DeviceCalls(const AttentionProblem& problem, int device)
    : problem_(problem),
      inputs_(random_inputs(problem)),
      attention_(Attention::compile(problem, kernels_on(device))),
      staging_(*attention_) {
  const auto sized = [&](std::size_t bytes) {
    outputs_.emplace_back(bytes);
    return Buffer{outputs_.back().data(), bytes};
  };
  const auto in = [](const auto& bytes) { return ConstBuffer{bytes.data(), bytes.size()}; };
  const std::size_t o_bytes =
      inputs_.q.size() / static_cast<std::size_t>(problem.dim_qk) * static_cast<std::size_t>(problem.dim_v);
  const std::size_t lse_bytes =
      static_cast<std::size_t>(problem.batch * problem.heads_q * problem.seq_q) * sizeof(float);
  ForwardArgs forward;
  forward.q = in(inputs_.q), forward.k = in(inputs_.k), forward.v = in(inputs_.v);
  forward.operands = inputs_.operand_buffers();
  forward.o = sized(o_bytes), forward.lse = sized(lse_bytes);
  forward_ = staging_.stage(forward);
  if (!problem.backward) return;
  BackwardArgs backward;
  backward.q = forward.q, backward.k = forward.k, backward.v = forward.v;
  backward.operands = forward.operands;
  backward.o = {forward.o.data, forward.o.bytes}, backward.lse = {forward.lse.data, forward.lse.bytes};
  backward.d_o = in(inputs_.d_o);
  backward.dq = sized(inputs_.q.size()), backward.dk = sized(inputs_.k.size()), backward.dv = sized(inputs_.v.size());
  for (const OwnedOperand& operand : inputs_.operands)
    backward.d_operands.push_back({operand.name, sized(operand.bytes.size())});
  backward_ = staging_.stage(backward);
}

void DeviceCalls::forward(void* stream, Buffer workspace) {
  if (stream != nullptr) forward_.options.stream = stream;
  const GuardedHeap guarded;
  attention_->forward(forward_, workspace);
}

void DeviceCalls::backward(void* stream, Buffer workspace) {
  if (stream != nullptr) backward_.options.stream = stream;
  const GuardedHeap guarded;
  attention_->backward(backward_, workspace);
}

void DeviceCalls::run() {
  forward();
  if (problem_.backward) backward();
  staging_.fetch();
}

Buffer DeviceCalls::workspace() {
  return staging_.workspace(std::max(attention_->forward_workspace_bytes(), attention_->backward_workspace_bytes()));
}

}  // namespace scoremod::test
