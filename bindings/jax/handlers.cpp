// The symbols that Python registers with XLA. Every handler has the attributes `problem` (JSON) and `backends` (as
// CompileOptions has them, with commas between them). It may have `new_sizes` ("wait" or "serve") and `scale` (f32,
// which overrides the problem's). The backward ones also have `wanted` (i64 numbers of the operands whose gradients are
// results). Handlers of any size have a problem whose batch and lengths are null.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "attention_state.hpp"
#include "call_buffers.hpp"
#include "error.hpp"
#include "open_problem.hpp"
#include "platform_state.hpp"
#include "xla/ffi/api/ffi.h"

namespace scoremod::jax {
namespace {

namespace ffi = xla::ffi;

using CpuState = PlatformState<AttentionState, MemoryKind::kHost>;
using CudaState = PlatformState<AttentionState, MemoryKind::kCuda>;
using CpuAnySizeState = PlatformState<AnySizeState, MemoryKind::kHost>;
using CudaAnySizeState = PlatformState<AnySizeState, MemoryKind::kCuda>;

/// XLA numbers the devices that it makes of one CPU; to scoremod they are one.
constexpr std::int32_t kHostDevice = 0;

/// The CUDA device that instantiation makes plans for: one that this process uses. Others are prepared when a program
/// is about to run there.
std::atomic<std::int32_t> first_cuda_device = 0;

/// The device and stream of one call.
struct Place {
  std::int32_t device = kHostDevice;
  void* stream = nullptr;
};

/// Adds to the options that the call's buffers have set.
void set_options(const Place& place, const ffi::Dictionary& attributes, CallOptions& options) {
  options.stream = place.stream;
  if (!attributes.contains("scale")) return;
  const auto scale = attributes.get<float>("scale");
  if (!scale) throw Error(ErrorCode::kBug, scale.error().message());
  options.scale = *scale;
}

ffi::Error run_forward(const Place& place, const AttentionState& state, const ffi::RemainingArgs& arguments,
                       const ffi::RemainingRets& results, const ffi::Dictionary& attributes) {
  return guarded([&] {
    state.run(place.device, [&](const Prepared& prepared) {
      ForwardCall call = forward_call(prepared, state.tensors(), arguments, results);
      set_options(place, attributes, call.args.options);
      prepared.attention->forward(call.args, call.workspace);
    });
  });
}

ffi::Error run_backward(const Place& place, const AttentionState& state, const ffi::RemainingArgs& arguments,
                        const ffi::RemainingRets& results, const ffi::Dictionary& attributes) {
  const auto wanted = attributes.get<ffi::Span<const std::int64_t>>("wanted");
  if (!wanted) return wanted.error();
  return guarded([&] {
    state.run(place.device, [&](const Prepared& prepared) {
      BackwardCall call = backward_call(prepared, state.tensors(), state.gradients(), arguments, results, *wanted);
      set_options(place, attributes, call.args.options);
      prepared.attention->backward(call.args, call.workspace);
    });
  });
}

/// An attribute that is a text. Throws Error(kBug) without it.
std::string text_of(const ffi::Dictionary& attributes, const char* name) {
  const auto text = attributes.get<std::string_view>(name);
  if (!text) throw Error(ErrorCode::kBug, text.error().message());
  return std::string(*text);
}

CompileOptions compile_options(const ffi::Dictionary& attributes) {
  CompileOptions options;
  std::istringstream names(text_of(attributes, "backends"));
  for (std::string name; std::getline(names, name, ',');) options.backends.push_back(name);
  if (!attributes.contains("new_sizes")) return options;
  const std::string found = text_of(attributes, "new_sizes");
  for (const NewSizes each : {NewSizes::kWait, NewSizes::kServe}) {
    if (found == to_string(each)) options.new_sizes = each;
  }
  if (!options.new_sizes) throw Error(ErrorCode::kBug, "new_sizes: expected wait or serve, found '" + found + "'");
  return options;
}

template <class State>
ffi::ErrorOr<std::unique_ptr<State>> instantiate(ffi::Dictionary attributes, std::int32_t device) {
  std::unique_ptr<State> state;
  const ffi::Error error = guarded([&] {
    state = std::make_unique<State>(text_of(attributes, "problem"), compile_options(attributes));
    state->prepare(device);
  });
  if (error.failure()) return ffi::Unexpected(error);
  return state;
}

ffi::ErrorOr<std::unique_ptr<CpuState>> instantiate_on_cpu(ffi::Dictionary attributes) {
  return instantiate<CpuState>(attributes, kHostDevice);
}

ffi::ErrorOr<std::unique_ptr<CudaState>> instantiate_on_cuda(ffi::Dictionary attributes) {
  return instantiate<CudaState>(attributes, first_cuda_device.load());
}

/// Runs before each run of a program, outside of any capture.
template <std::size_t Prepared::*kNeeded>
ffi::Error initialize_on_cuda(std::int32_t device, CudaState* state, ffi::RemainingRets results) {
  return guarded([&] { state->prepare_within(device, kNeeded, workspace_bytes(results)); });
}
constexpr auto kInitializeForwardOnCuda = initialize_on_cuda<&Prepared::forward_workspace>;
constexpr auto kInitializeBackwardOnCuda = initialize_on_cuda<&Prepared::backward_workspace>;

ffi::Error forward_on_cpu(CpuState* state, ffi::RemainingArgs arguments, ffi::RemainingRets results,
                          ffi::Dictionary attributes) {
  return run_forward({}, *state, arguments, results, attributes);
}

ffi::Error forward_on_cuda(std::int32_t device, void* stream, CudaState* state, ffi::RemainingArgs arguments,
                           ffi::RemainingRets results, ffi::Dictionary attributes) {
  return run_forward({device, stream}, *state, arguments, results, attributes);
}

ffi::Error backward_on_cpu(CpuState* state, ffi::RemainingArgs arguments, ffi::RemainingRets results,
                           ffi::Dictionary attributes) {
  return run_backward({}, *state, arguments, results, attributes);
}

ffi::Error backward_on_cuda(std::int32_t device, void* stream, CudaState* state, ffi::RemainingArgs arguments,
                            ffi::RemainingRets results, ffi::Dictionary attributes) {
  return run_backward({device, stream}, *state, arguments, results, attributes);
}

/// Makes no attention yet: its sizes are those of the buffers.
template <class State>
ffi::ErrorOr<std::unique_ptr<State>> instantiate_any_size(ffi::Dictionary attributes) {
  std::unique_ptr<State> state;
  const ffi::Error error = guarded([&] {
    // A backward call has o, lse and d_o before the operands.
    const std::size_t first_operand = attributes.contains("wanted") ? 6 : 3;
    state = std::make_unique<State>(text_of(attributes, "problem"), compile_options(attributes), first_operand);
  });
  if (error.failure()) return ffi::Unexpected(error);
  return state;
}
constexpr auto kInstantiateAnySizeOnCpu = instantiate_any_size<CpuAnySizeState>;
constexpr auto kInstantiateAnySizeOnCuda = instantiate_any_size<CudaAnySizeState>;

ffi::Error initialize_any_size_on_cuda(std::int32_t device, CudaAnySizeState* state, ffi::RemainingArgs arguments) {
  return guarded([&] { state->prepared(arguments, device); });
}

using Run = ffi::Error (*)(const Place&, const AttentionState&, const ffi::RemainingArgs&, const ffi::RemainingRets&,
                           const ffi::Dictionary&);

ffi::Error run_any_size(Run run, const Place& place, AnySizeState& any, const ffi::RemainingArgs& arguments,
                        const ffi::RemainingRets& results, const ffi::Dictionary& attributes) {
  std::shared_ptr<const AttentionState> state;
  const ffi::Error error = guarded([&] { state = any.prepared(arguments, place.device); });
  return error.failure() ? error : run(place, *state, arguments, results, attributes);
}

template <Run kRun>
ffi::Error any_size_on_cpu(CpuAnySizeState* state, ffi::RemainingArgs arguments, ffi::RemainingRets results,
                           ffi::Dictionary attributes) {
  return run_any_size(kRun, {}, *state, arguments, results, attributes);
}
constexpr auto kForwardAnySizeOnCpu = any_size_on_cpu<run_forward>;
constexpr auto kBackwardAnySizeOnCpu = any_size_on_cpu<run_backward>;

template <Run kRun>
ffi::Error any_size_on_cuda(std::int32_t device, void* stream, CudaAnySizeState* state, ffi::RemainingArgs arguments,
                            ffi::RemainingRets results, ffi::Dictionary attributes) {
  return run_any_size(kRun, {device, stream}, *state, arguments, results, attributes);
}
constexpr auto kForwardAnySizeOnCuda = any_size_on_cuda<run_forward>;
constexpr auto kBackwardAnySizeOnCuda = any_size_on_cuda<run_backward>;

auto bind_initialize() {
  return ffi::Ffi::BindInitialize().Ctx<ffi::DeviceOrdinal>().Ctx<ffi::State<CudaState>>().RemainingRets();
}

auto bind_initialize_any_size() {
  return ffi::Ffi::BindInitialize().Ctx<ffi::DeviceOrdinal>().Ctx<ffi::State<CudaAnySizeState>>().RemainingArgs();
}

template <class State>
auto bind_on_cpu() {
  return ffi::Ffi::BindExecute().Ctx<ffi::State<State>>().RemainingArgs().RemainingRets().Attrs();
}

template <class State>
auto bind_on_cuda() {
  return ffi::Ffi::BindExecute()
      .Ctx<ffi::DeviceOrdinal>()
      .Ctx<ffi::PlatformStream<void*>>()
      .Ctx<ffi::State<State>>()
      .RemainingArgs()
      .RemainingRets()
      .Attrs();
}

}  // namespace
}  // namespace scoremod::jax

// NOLINTBEGIN(readability-identifier-naming): C symbols
#define SCOREMOD_JAX_SYMBOL __attribute__((visibility("default")))

#define SCOREMOD_JAX_STATE(kind, ending, State)                                                       \
  extern "C" SCOREMOD_JAX_SYMBOL XLA_FFI_TypeId* scoremod_jax_##kind##_type_id_##ending() {           \
    return &scoremod::jax::State::id;                                                                 \
  }                                                                                                   \
  extern "C" SCOREMOD_JAX_SYMBOL const XLA_FFI_TypeInfo* scoremod_jax_##kind##_type_info_##ending() { \
    return &scoremod::jax::State::kInfo;                                                              \
  }

SCOREMOD_JAX_STATE(state, cpu, CpuState)
SCOREMOD_JAX_STATE(state, cuda, CudaState)
SCOREMOD_JAX_STATE(state_any_size, cpu, CpuAnySizeState)
SCOREMOD_JAX_STATE(state_any_size, cuda, CudaAnySizeState)

/// Names a device of this process, by CUDA's ordinal.
extern "C" SCOREMOD_JAX_SYMBOL void scoremod_jax_use_device(std::int32_t ordinal) {
  scoremod::jax::first_cuda_device = ordinal;
}

#define SCOREMOD_JAX_HANDLER(name, implementation, ...)                   \
  extern "C" SCOREMOD_JAX_SYMBOL XLA_FFI_Error* name(XLA_FFI_CallFrame*); \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(name, scoremod::jax::implementation, __VA_ARGS__)

SCOREMOD_JAX_HANDLER(scoremod_jax_instantiate_cpu, instantiate_on_cpu, xla::ffi::Ffi::BindInstantiate().Attrs());
SCOREMOD_JAX_HANDLER(scoremod_jax_instantiate_cuda, instantiate_on_cuda, xla::ffi::Ffi::BindInstantiate().Attrs());
SCOREMOD_JAX_HANDLER(scoremod_jax_initialize_forward_cuda, kInitializeForwardOnCuda, scoremod::jax::bind_initialize());
SCOREMOD_JAX_HANDLER(scoremod_jax_initialize_backward_cuda, kInitializeBackwardOnCuda,
                     scoremod::jax::bind_initialize());
SCOREMOD_JAX_HANDLER(scoremod_jax_forward_cpu, forward_on_cpu, scoremod::jax::bind_on_cpu<scoremod::jax::CpuState>());
SCOREMOD_JAX_HANDLER(scoremod_jax_forward_cuda, forward_on_cuda,
                     scoremod::jax::bind_on_cuda<scoremod::jax::CudaState>(), {xla::ffi::Traits::kCmdBufferCompatible});
SCOREMOD_JAX_HANDLER(scoremod_jax_backward_cpu, backward_on_cpu, scoremod::jax::bind_on_cpu<scoremod::jax::CpuState>());
SCOREMOD_JAX_HANDLER(scoremod_jax_backward_cuda, backward_on_cuda,
                     scoremod::jax::bind_on_cuda<scoremod::jax::CudaState>(), {xla::ffi::Traits::kCmdBufferCompatible});

// Without the trait that lets XLA record them in a CUDA graph, where calls could not allocate their workspace.
SCOREMOD_JAX_HANDLER(scoremod_jax_instantiate_any_size_cpu, kInstantiateAnySizeOnCpu,
                     xla::ffi::Ffi::BindInstantiate().Attrs());
SCOREMOD_JAX_HANDLER(scoremod_jax_instantiate_any_size_cuda, kInstantiateAnySizeOnCuda,
                     xla::ffi::Ffi::BindInstantiate().Attrs());
SCOREMOD_JAX_HANDLER(scoremod_jax_initialize_any_size_cuda, initialize_any_size_on_cuda,
                     scoremod::jax::bind_initialize_any_size());
SCOREMOD_JAX_HANDLER(scoremod_jax_forward_any_size_cpu, kForwardAnySizeOnCpu,
                     scoremod::jax::bind_on_cpu<scoremod::jax::CpuAnySizeState>());
SCOREMOD_JAX_HANDLER(scoremod_jax_backward_any_size_cpu, kBackwardAnySizeOnCpu,
                     scoremod::jax::bind_on_cpu<scoremod::jax::CpuAnySizeState>());
SCOREMOD_JAX_HANDLER(scoremod_jax_forward_any_size_cuda, kForwardAnySizeOnCuda,
                     scoremod::jax::bind_on_cuda<scoremod::jax::CudaAnySizeState>());
SCOREMOD_JAX_HANDLER(scoremod_jax_backward_any_size_cuda, kBackwardAnySizeOnCuda,
                     scoremod::jax::bind_on_cuda<scoremod::jax::CudaAnySizeState>());
// NOLINTEND(readability-identifier-naming)
