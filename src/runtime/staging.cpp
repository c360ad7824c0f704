#include "scoremod/staging.hpp"

#include <map>
#include <utility>
#include <vector>

#include "backend/backend.hpp"
#include "base/moved_from.hpp"

namespace scoremod {

struct Staging::State {
  const backend::MemorySpace& space;
  int device = 0;
  void* stream = nullptr;  ///< of calls
  /// By the address on the host.
  std::map<const void*, backend::OwnedMemory> copies;
  std::vector<backend::OwnedMemory> workspaces;
  std::map<void*, std::size_t> outputs;

  bool on_host() const { return space.kind() == MemoryKind::kHost; }

  void* copy(const void* data, std::size_t bytes) {
    if (on_host() || data == nullptr || bytes == 0) return const_cast<void*>(data);
    auto found = copies.find(data);
    if (found == copies.end() || found->second.bytes() < bytes) {
      found = copies.insert_or_assign(data, backend::OwnedMemory(space, bytes)).first;
      space.copy_in(found->second.data(), data, bytes);
    }
    return found->second.data();
  }

  ConstBuffer in(const ConstBuffer& buffer) { return {copy(buffer.data, buffer.bytes), buffer.bytes}; }

  Buffer out(const Buffer& buffer) {
    if (buffer.data != nullptr) outputs[buffer.data] = buffer.bytes;
    return {copy(buffer.data, buffer.bytes), buffer.bytes};
  }

  std::vector<OperandBuffer> in(const std::vector<OperandBuffer>& operands) {
    std::vector<OperandBuffer> staged;
    for (const OperandBuffer& operand : operands) staged.push_back({operand.name, in(operand.buffer)});
    return staged;
  }
};

Staging::Staging(const Attention& attention)
    : state_(new State{backend::find_backend(attention.backend()).memory(), attention.device(), nullptr, {}, {}, {}}) {
  const backend::DeviceScope current(state_->space, state_->device);
  state_->stream = state_->space.own_stream();
}
Staging::Staging(Staging&&) noexcept = default;
Staging& Staging::operator=(Staging&&) noexcept = default;
Staging::~Staging() = default;

Staging::State& Staging::state() { return held_by(state_, "Staging"); }

ForwardArgs Staging::stage(const ForwardArgs& host) {
  const backend::DeviceScope current(state().space, state().device);
  ForwardArgs staged{state().in(host.q),      state().in(host.k),    state().in(host.v), state().in(host.operands),
                     state().out(host.o),     state().out(host.lse), host.options,       state().out(host.max_logit),
                     state().out(host.amax_o)};
  staged.options.stream = state().stream;
  return staged;
}

BackwardArgs Staging::stage(const BackwardArgs& host) {
  const backend::DeviceScope current(state().space, state().device);
  BackwardArgs staged{state().in(host.q),
                      state().in(host.k),
                      state().in(host.v),
                      state().in(host.o),
                      state().in(host.lse),
                      state().in(host.d_o),
                      state().in(host.operands),
                      state().out(host.dq),
                      state().out(host.dk),
                      state().out(host.dv),
                      {},
                      host.options,
                      state().out(host.amax_dq),
                      state().out(host.amax_dk),
                      state().out(host.amax_dv)};
  for (const OperandGradient& gradient : host.d_operands) {
    staged.d_operands.push_back({gradient.name, state().out(gradient.buffer)});
  }
  staged.options.stream = state().stream;
  return staged;
}

Buffer Staging::workspace(std::size_t bytes) {
  if (bytes == 0) return {};
  const backend::DeviceScope current(state().space, state().device);
  state().workspaces.emplace_back(state().space, bytes);
  return {state().workspaces.back().data(), bytes};
}

void* Staging::stream() { return state().stream; }

void Staging::wait() {
  const backend::DeviceScope current(state().space, state().device);
  state().space.wait(state().stream);
}

void Staging::fetch() {
  wait();
  if (state().on_host()) return;
  const backend::DeviceScope current(state().space, state().device);
  for (const auto& [host, bytes] : state().outputs) state().space.copy_out(host, state().copies.at(host).data(), bytes);
}

}  // namespace scoremod
