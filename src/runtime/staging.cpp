#include "scoremod/staging.hpp"

#include <map>
#include <utility>
#include <vector>

#include "backend/backend.hpp"

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

ForwardArgs Staging::stage(const ForwardArgs& host) {
  const backend::DeviceScope current(state_->space, state_->device);
  ForwardArgs staged{state_->in(host.q),      state_->in(host.k),    state_->in(host.v), state_->in(host.operands),
                     state_->out(host.o),     state_->out(host.lse), host.options,       state_->out(host.max_logit),
                     state_->out(host.amax_o)};
  staged.options.stream = state_->stream;
  return staged;
}

BackwardArgs Staging::stage(const BackwardArgs& host) {
  const backend::DeviceScope current(state_->space, state_->device);
  BackwardArgs staged{state_->in(host.q),
                      state_->in(host.k),
                      state_->in(host.v),
                      state_->in(host.o),
                      state_->in(host.lse),
                      state_->in(host.d_o),
                      state_->in(host.operands),
                      state_->out(host.dq),
                      state_->out(host.dk),
                      state_->out(host.dv),
                      {},
                      host.options};
  for (const OperandGradient& gradient : host.d_operands) {
    staged.d_operands.push_back({gradient.name, state_->out(gradient.buffer)});
  }
  staged.options.stream = state_->stream;
  return staged;
}

Buffer Staging::workspace(std::size_t bytes) {
  if (bytes == 0) return {};
  const backend::DeviceScope current(state_->space, state_->device);
  state_->workspaces.emplace_back(state_->space, bytes);
  return {state_->workspaces.back().data(), bytes};
}

void* Staging::stream() const { return state_->stream; }

void Staging::wait() {
  const backend::DeviceScope current(state_->space, state_->device);
  state_->space.wait(state_->stream);
}

void Staging::fetch() {
  wait();
  if (state_->on_host()) return;
  const backend::DeviceScope current(state_->space, state_->device);
  for (const auto& [host, bytes] : state_->outputs) state_->space.copy_out(host, state_->copies.at(host).data(), bytes);
}

}  // namespace scoremod
