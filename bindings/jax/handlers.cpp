// The symbols that Python registers with XLA. Every handler has the attributes `problem` (JSON) and `backend` (a name,
// or empty); the backward ones also `wanted` (i64 numbers of the operands whose gradients are results).

#include <cstdint>
#include <string_view>

#include "attention_state.hpp"
#include "call_buffers.hpp"
#include "error.hpp"
#include "xla/ffi/api/ffi.h"

namespace scoremod::jax {
namespace {

namespace ffi = xla::ffi;

ffi::Error run_forward(void* stream, const AttentionState& state, const ffi::RemainingArgs& arguments,
                       const ffi::RemainingRets& results) {
  return guarded([&] {
    ForwardCall call = forward_call(state, arguments, results);
    call.args.options.stream = stream;
    state.attention->forward(call.args, call.workspace);
  });
}

ffi::Error run_backward(void* stream, const AttentionState& state, const ffi::RemainingArgs& arguments,
                        const ffi::RemainingRets& results, ffi::Dictionary attributes) {
  const auto wanted = attributes.get<ffi::Span<const std::int64_t>>("wanted");
  if (!wanted) return wanted.error();
  return guarded([&] {
    BackwardCall call = backward_call(state, arguments, results, *wanted);
    call.args.options.stream = stream;
    state.attention->backward(call.args, call.workspace);
  });
}

ffi::ErrorOr<std::unique_ptr<AttentionState>> instantiate_call(ffi::Dictionary attributes) {
  const auto problem = attributes.get<std::string_view>("problem");
  if (!problem) return ffi::Unexpected(problem.error());
  const auto backend = attributes.get<std::string_view>("backend");
  if (!backend) return ffi::Unexpected(backend.error());
  return instantiate(*problem, *backend);
}

// On the CPU there is no stream; the CUDA handlers differ in nothing else.
ffi::Error forward_on_cpu(AttentionState* state, ffi::RemainingArgs arguments, ffi::RemainingRets results,
                          ffi::Dictionary) {
  return run_forward(nullptr, *state, arguments, results);
}

ffi::Error forward_on_cuda(void* stream, AttentionState* state, ffi::RemainingArgs arguments,
                           ffi::RemainingRets results, ffi::Dictionary) {
  return run_forward(stream, *state, arguments, results);
}

ffi::Error backward_on_cpu(AttentionState* state, ffi::RemainingArgs arguments, ffi::RemainingRets results,
                           ffi::Dictionary attributes) {
  return run_backward(nullptr, *state, arguments, results, attributes);
}

ffi::Error backward_on_cuda(void* stream, AttentionState* state, ffi::RemainingArgs arguments,
                            ffi::RemainingRets results, ffi::Dictionary attributes) {
  return run_backward(stream, *state, arguments, results, attributes);
}

auto bind_on_cpu() {
  return ffi::Ffi::BindExecute().Ctx<ffi::State<AttentionState>>().RemainingArgs().RemainingRets().Attrs();
}

auto bind_on_cuda() {
  return ffi::Ffi::BindExecute()
      .Ctx<ffi::PlatformStream<void*>>()
      .Ctx<ffi::State<AttentionState>>()
      .RemainingArgs()
      .RemainingRets()
      .Attrs();
}

}  // namespace
}  // namespace scoremod::jax

// NOLINTBEGIN(readability-identifier-naming): C symbols
#define SCOREMOD_JAX_SYMBOL __attribute__((visibility("default")))

extern "C" SCOREMOD_JAX_SYMBOL XLA_FFI_TypeId* scoremod_jax_state_type_id() {
  return &scoremod::jax::AttentionState::id;
}
extern "C" SCOREMOD_JAX_SYMBOL const XLA_FFI_TypeInfo* scoremod_jax_state_type_info() {
  return &scoremod::jax::AttentionState::kInfo;
}

#define SCOREMOD_JAX_HANDLER(name, implementation, binding)               \
  extern "C" SCOREMOD_JAX_SYMBOL XLA_FFI_Error* name(XLA_FFI_CallFrame*); \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(name, scoremod::jax::implementation, binding)

SCOREMOD_JAX_HANDLER(scoremod_jax_instantiate, instantiate_call, xla::ffi::Ffi::BindInstantiate().Attrs());
SCOREMOD_JAX_HANDLER(scoremod_jax_forward_cpu, forward_on_cpu, scoremod::jax::bind_on_cpu());
SCOREMOD_JAX_HANDLER(scoremod_jax_forward_cuda, forward_on_cuda, scoremod::jax::bind_on_cuda());
SCOREMOD_JAX_HANDLER(scoremod_jax_backward_cpu, backward_on_cpu, scoremod::jax::bind_on_cpu());
SCOREMOD_JAX_HANDLER(scoremod_jax_backward_cuda, backward_on_cuda, scoremod::jax::bind_on_cuda());
// NOLINTEND(readability-identifier-naming)
