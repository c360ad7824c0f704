#include "scoremod/open_attention.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <utility>

#include "backend/backend.hpp"
#include "base/bytes.hpp"
#include "base/moved_from.hpp"
#include "planner/plan_problem.hpp"
#include "planner/selection.hpp"
#include "plans/erased_plan_cache.hpp"
#include "problem/open_sizes.hpp"
#include "runtime/attention_shared.hpp"
#include "runtime/known_structures.hpp"
#include "runtime/later_plans.hpp"

namespace scoremod {
namespace {

constexpr std::size_t kMostSizes = 1024;
/// A key of a few operands does not grow beyond it.
constexpr std::size_t kUsualKeyBytes = 512;

void add(Bytes& key, std::span<const std::byte> bytes) {
  const std::size_t end = key.size();
  key.resize(end + bytes.size());
  std::ranges::copy(bytes, key.begin() + static_cast<std::ptrdiff_t>(end));
}
void add(Bytes& key, std::span<const std::int64_t> numbers) { add(key, std::as_bytes(numbers)); }

/// Counts come before what they count, so that no other sizes have these bytes. The key stays in memory.
Bytes key_of(const Sizes& sizes, int device) {
  const auto& [batch, heads_q, heads_kv, seq_q, seq_kv, tokens_q, tokens_kv, blocks, blocks_per_sequence, q, k, v, o,
               d_o, dq, dk, dv, operands, takes_zeros] = sizes;
  const std::array all_strides{&q, &k, &v, &o, &d_o, &dq, &dk, &dv};
  std::int64_t flags = takes_zeros ? 1 : 0;
  for (const std::optional<Strides>* strides : all_strides) flags = 2 * flags + (strides->has_value() ? 1 : 0);
  Bytes key;
  key.reserve(kUsualKeyBytes);
  add(key, std::array<std::int64_t, 12>{device, flags, batch, heads_q, heads_kv, seq_q, seq_kv, tokens_q, tokens_kv,
                                        blocks, blocks_per_sequence, std::ssize(operands)});
  for (const std::optional<Strides>* given : all_strides) {
    if (!*given) continue;
    const auto& [along_batch, along_heads, along_sequence, along_dim] = **given;
    add(key, std::array<std::int64_t, 4>{along_batch, along_heads, along_sequence, along_dim});
  }
  for (const auto& [name, shape, strides] : operands) {
    add(key, std::array<std::int64_t, 3>{std::ssize(name), std::ssize(shape), std::ssize(strides)});
    add(key, std::as_bytes(std::span(name)));
    add(key, shape);
    add(key, strides);
  }
  return key;
}

/// A gradient has a layout of its own once it has strides, and some tables' formats are in their shapes.
bool may_change_structure(const Sizes& sizes) {
  return sizes.d_o || sizes.dq || sizes.dk || sizes.dv || !sizes.operands.empty();
}

/// The options with what the environment says where they say nothing, which then no size asks again.
CompileOptions resolved(CompileOptions options, const AttentionProblem& problem, MemoryKind memory) {
  options.new_sizes = runtime::serves_new_sizes(problem, options) ? NewSizes::kServe : NewSizes::kWait;
  // The host's plans have no limit.
  if (memory != MemoryKind::kHost) options.max_workspace = planner::workspace_limit(options);
  return options;
}

}  // namespace

struct OpenAttention::State {
  AttentionProblem problem;
  CompileOptions options;
  Attention::Shared shared;
  /// The memory whose current device a call runs on; null if the options name the device, or nothing can run.
  const backend::MemorySpace* memory = nullptr;
  mutable plans::ErasedPlanCache sizes{"sizes", {kMostSizes, SIZE_MAX}};
};

OpenAttention OpenAttention::compile(const AttentionProblem& problem, const CompileOptions& options) {
  auto structure = runtime::known_structure(problem::with_sizes(problem, problem::any_sizes(problem)), options);
  auto state = std::make_unique<State>();
  state->problem = problem;
  planner::Selection selection = planner::select(options);
  if (!options.device && !selection.backends.empty()) state->memory = &selection.backends.front()->memory();
  state->options = resolved(options, problem, selection.memory);
  state->shared = {std::move(structure), std::move(selection), state->options.new_sizes == NewSizes::kServe};
  return OpenAttention(std::move(state));
}

OpenAttention::OpenAttention(std::unique_ptr<State> state) : state_(std::move(state)) {}
OpenAttention::OpenAttention(OpenAttention&&) noexcept = default;
OpenAttention& OpenAttention::operator=(OpenAttention&&) noexcept = default;
OpenAttention::~OpenAttention() = default;

const OpenAttention::State& OpenAttention::state() const { return held_by(state_, "OpenAttention"); }

const AttentionProblem& OpenAttention::problem() const { return state().problem; }

std::shared_ptr<const Attention> OpenAttention::at(const Sizes& sizes) const {
  const State& own = state();
  const int device = own.memory == nullptr ? own.options.device.value_or(0) : own.memory->current_device();
  const plans::ErasedPlan found = own.sizes.get(key_of(sizes, device), [&] {
    std::optional<Attention::Shared> without_structure;
    if (may_change_structure(sizes)) {
      without_structure = own.shared;
      without_structure->structure = nullptr;
    }
    const Attention::Shared& shared = without_structure ? *without_structure : own.shared;
    return plans::ErasedPlan{std::make_shared<const Attention>(Attention::compile(
                                 problem::with_sizes(own.problem, sizes), own.options, &shared, device)),
                             0, ""};
  });
  return std::static_pointer_cast<const Attention>(found.plan);
}

void OpenAttention::forward(const Sizes& sizes, const ForwardArgs& args, Buffer workspace) const {
  at(sizes)->forward(args, workspace);
}

void OpenAttention::backward(const Sizes& sizes, const BackwardArgs& args, Buffer workspace) const {
  at(sizes)->backward(args, workspace);
}

}  // namespace scoremod
