#include "support/emulated_attention.hpp"

#include <algorithm>
#include <bit>
#include <memory>

#include "backend/kernels/backend/kernels_backend.hpp"
#include "backend/memory_space.hpp"
#include "check/check_memory.hpp"
#include "check/check_subject.hpp"
#include "compiler/pipeline.hpp"
#include "runtime/call_tensors.hpp"
#include "support/test_seed.hpp"

namespace scoremod::test {
namespace {

using backend::Direction;

/// As a float32 nearly the largest one, as a count more than there is of anything.
constexpr std::byte kLeftByAnother{0x7f};

/// The host's memory as a device's: nobody reads it before the kernels.
class UnreadMemory final : public backend::MemorySpace {
 public:
  MemoryKind kind() const override { return MemoryKind::kCuda; }
  std::size_t alignment() const override { return host_.alignment(); }
  void* allocate(std::size_t bytes, void* stream) const override { return host_.allocate(bytes, stream); }
  void release(void* data, void* stream) const noexcept override { host_.release(data, stream); }
  void copy_in(void* to, const void* from, std::size_t bytes) const override { host_.copy_in(to, from, bytes); }
  void copy_out(void* to, const void* from, std::size_t bytes) const override { host_.copy_out(to, from, bytes); }
  void wait(void* stream) const override { host_.wait(stream); }
  int current_device() const override { return host_.current_device(); }
  backend::DeviceProperties describe() const override { return host_.describe(); }
  void make_current(int device) const override { host_.make_current(device); }
  std::string objection(const void*, int) const override { return {}; }

 private:
  const backend::MemorySpace& host_ = backend::host_memory();
};

/// Both directions on the emulated device.
class EmulatedAttention {
 public:
  EmulatedAttention(const compiler::CompiledProblem& compiled, const ShapeOf& shape_of, const EmulatedFaults& faults)
      : compiled_(compiled),
        problem_(compiled.problem),
        seed_(faults.planted() ? 1 : static_cast<unsigned>(test_seed())),
        forward_(compiled, Direction::kForward, shape_of(problem_, Direction::kForward), faults.forward,
                 faults.of_both),
        backward_(compiled.backward ? std::make_unique<EmulatedKernels>(compiled, Direction::kBackward,
                                                                        shape_of(problem_, Direction::kBackward),
                                                                        faults.backward, faults.of_both)
                                    : nullptr) {}

  checking::Subject subject() {
    checking::Subject subject;
    subject.backend = "emulated kernels";
    subject.forward_rounding = backend::kernels_backend().forward_rounding(compiled_);
    subject.forward_workspace_bytes = forward_.kernels().workspace_bytes();
    subject.forward = [this](const ForwardArgs& args, Buffer workspace) { run(forward_, args, workspace); };
    if (!backward_) return subject;
    subject.backward_workspace_bytes = backward_->kernels().workspace_bytes();
    subject.backward = [this](const BackwardArgs& args, Buffer workspace) { run(*backward_, args, workspace); };
    return subject;
  }

 private:
  template <class Args>
  void run(const EmulatedKernels& kernels, const Args& args, Buffer workspace) {
    const auto call =
        runtime::check_call(problem_, args, workspace, kernels.kernels().workspace_bytes(), backend::host_memory());
    auto* at = static_cast<std::byte*>(workspace.data);
    std::fill_n(at, workspace.bytes, kLeftByAnother);
    kernels.run(kernels.kernels().arguments(call.tensors, call.parameters, at), seed_);
  }

  const compiler::CompiledProblem& compiled_;
  const AttentionProblem& problem_;
  unsigned seed_;
  EmulatedKernels forward_;
  std::unique_ptr<EmulatedKernels> backward_;
};

}  // namespace

CheckReport check_emulated(const checking::CheckCase& test, const ProblemInputs& inputs, const ShapeOf& shape_of,
                           const EmulatedFaults& faults) {
  const compiler::CompiledProblem compiled = compiler::compile(test.problem);
  EmulatedAttention emulated(compiled, shape_of, faults);
  CheckOptions options;
  options.call = test.call;
  return checking::check_subject(compiled, emulated.subject(), inputs, options);
}

std::vector<std::uint64_t> emulated_forward_bits(const checking::CheckCase& test,
                                                 const std::vector<ProblemInputs>& inputs,
                                                 const backend::kernels::AnyShape& shape, unsigned seed, int times,
                                                 const EmulatedLaunches::Fault& fault) {
  const compiler::CompiledProblem compiled = compiler::compile(test.problem);
  const EmulatedKernels kernels(compiled, Direction::kForward, shape, fault);
  const backend::OwnedMemory workspace(backend::host_memory(), kernels.kernels().workspace_bytes());
  std::vector<std::uint64_t> bits;
  for (const ProblemInputs& one : inputs) {
    checking::CheckMemory memory(test.problem, one, 0);
    const auto call = runtime::check_call(compiled.problem, memory.forward_args(test.call),
                                          {workspace.data(), workspace.bytes()}, workspace.bytes(), UnreadMemory());
    const backend::kernels::ArgumentBytes argument =
        kernels.kernels().arguments(call.tensors, call.parameters, workspace.data());
    for (int i = 0; i < times; ++i) {
      memory.o.expect_output();
      memory.send();
      kernels.run(argument, seed + static_cast<unsigned>(i));
    }
    memory.fetch();
    const auto keep = [&](const checking::GuardedBuffer& output) {
      for (const double value : output.values()) bits.push_back(std::bit_cast<std::uint64_t>(value));
    };
    for (const auto* output : {&memory.o, &memory.lse}) keep(*output);
    if (memory.max_logit) keep(*memory.max_logit);
  }
  return bits;
}

EmulatedOutputs emulated_outputs(const checking::CheckCase& test, const ProblemInputs& inputs, const ShapeOf& shape_of,
                                 const EmulatedFaults& faults) {
  const compiler::CompiledProblem compiled = compiler::compile(test.problem);
  checking::CheckMemory memory(test.problem, inputs, 0);
  const auto run = [&](Direction direction, const auto& args) {
    const EmulatedKernels kernels(compiled, direction, shape_of(compiled.problem, direction),
                                  direction == Direction::kForward ? faults.forward : faults.backward, faults.of_both);
    const backend::OwnedMemory workspace(backend::host_memory(), kernels.kernels().workspace_bytes());
    std::fill_n(workspace.data(), workspace.bytes(), kLeftByAnother);
    const auto call = runtime::check_call(compiled.problem, args, {workspace.data(), workspace.bytes()},
                                          workspace.bytes(), UnreadMemory());
    kernels.run(kernels.kernels().arguments(call.tensors, call.parameters, workspace.data()), 1);
  };
  EmulatedOutputs outputs;
  const auto keep = [&](checking::GuardedBuffer& buffer, std::vector<double>& values) {
    values = buffer.values();
    if (auto damage = buffer.damage()) outputs.damage = std::move(damage);
  };
  for (checking::GuardedBuffer* output : {&memory.o, &memory.lse}) output->expect_output();
  if (memory.max_logit) memory.max_logit->expect_output();
  run(Direction::kForward, memory.forward_args(test.call));
  keep(memory.o, outputs.o);
  keep(memory.lse, outputs.lse);
  if (memory.max_logit) keep(*memory.max_logit, outputs.max_logit);
  if (!compiled.backward) return outputs;
  for (checking::GuardedBuffer* input : {&memory.o, &memory.lse}) input->hold_as_is();
  for (checking::GuardedBuffer* output : {&memory.dq, &memory.dk, &memory.dv}) output->expect_output();
  run(Direction::kBackward, memory.backward_args(test.call));
  keep(memory.dq, outputs.dq);
  keep(memory.dk, outputs.dk);
  keep(memory.dv, outputs.dv);
  return outputs;
}

}  // namespace scoremod::test
