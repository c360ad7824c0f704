#include "property/c_api/drawn_call.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "scoremod/problem_buffers.hpp"
#include "scoremod/tensors.hpp"

#include "problem/open_sizes.hpp"
#include "support/protected_memory.hpp"

namespace scoremod::test {
namespace {

constexpr std::size_t kMostBelieved = 4096;  // the library believes no larger struct_size
constexpr std::size_t kStructAlignment = 8;
constexpr std::size_t kWorkspaceAlignment = 64;

/// The bytes of a struct in memory.
std::size_t held(const DrawnSize& size, std::size_t known) {
  const std::size_t claimed = size.claimed.value_or(known);
  return claimed > kMostBelieved ? known : std::max(claimed, sizeof(std::size_t));
}

std::size_t up_to(std::size_t bytes, std::size_t alignment) { return (alignment - bytes % alignment) % alignment; }

template <class Element>
std::span<const std::byte> bytes_of(const std::vector<Element>& elements) {
  return std::as_bytes(std::span(elements));
}

/// The structs, arrays, names and tensors of one call, each in pages of its own.
class CallMemory {
 public:
  void* add(std::span<const std::byte> contents, bool is_written, std::size_t behind) {
    ProtectedMemory& block = blocks_.emplace_back(contents, behind);
    if (!is_written) block.forbid_writes();
    return block.data();
  }

  /// The struct as a caller has it whose header says so many bytes.
  template <class Struct>
  Struct* add_sized(Struct made, const DrawnSize& size, bool is_written = false) {
    made.struct_size = size.claimed.value_or(sizeof made);
    std::vector<std::byte> contents(held(size, sizeof made), size.unknown);
    std::memcpy(contents.data(), &made, std::min(contents.size(), sizeof made));
    return static_cast<Struct*>(add(contents, is_written, up_to(contents.size(), kStructAlignment)));
  }

  template <class Element>
  Element* add_array(const std::vector<Element>& elements, bool is_written = false) {
    return elements.empty() ? nullptr : static_cast<Element*>(add(bytes_of(elements), is_written, 0));
  }

  const char* add_text(const std::optional<std::string>& text) {
    if (!text) return nullptr;
    return static_cast<const char*>(add(std::as_bytes(std::span(text->c_str(), text->size() + 1)), false, 0));
  }

 private:
  std::deque<ProtectedMemory> blocks_;
};

/// A member of a call's arguments that is a tensor: a scoremod_buffer, or a scoremod_const_buffer, which lies alike.
struct Member {
  const char* name;
  std::size_t offset;
};
constexpr Member kForwardMembers[] = {
    {"q", offsetof(scoremod_forward_args, q)},          {"k", offsetof(scoremod_forward_args, k)},
    {"v", offsetof(scoremod_forward_args, v)},          {"o", offsetof(scoremod_forward_args, o)},
    {"lse", offsetof(scoremod_forward_args, lse)},      {"max_logit", offsetof(scoremod_forward_args, max_logit)},
    {"amax_o", offsetof(scoremod_forward_args, amax_o)}};
constexpr Member kBackwardMembers[] = {{"q", offsetof(scoremod_backward_args, q)},
                                       {"k", offsetof(scoremod_backward_args, k)},
                                       {"v", offsetof(scoremod_backward_args, v)},
                                       {"o", offsetof(scoremod_backward_args, o)},
                                       {"lse", offsetof(scoremod_backward_args, lse)},
                                       {"d_o", offsetof(scoremod_backward_args, d_o)},
                                       {"dq", offsetof(scoremod_backward_args, dq)},
                                       {"dk", offsetof(scoremod_backward_args, dk)},
                                       {"dv", offsetof(scoremod_backward_args, dv)},
                                       {"amax_dq", offsetof(scoremod_backward_args, amax_dq)},
                                       {"amax_dk", offsetof(scoremod_backward_args, amax_dk)},
                                       {"amax_dv", offsetof(scoremod_backward_args, amax_dv)}};

std::size_t offset_of(const std::string& name, bool is_backward) {
  const std::span<const Member> members = is_backward ? std::span<const Member>(kBackwardMembers) : kForwardMembers;
  return std::ranges::find(members, name, &Member::name)->offset;
}

bool is_prepared(Road road) { return road == Road::kPrepared || road == Road::kPreparedAtSizes; }

/// A call whose structs, arrays, names and tensors are in memory of their own.
class MadeCall {
 public:
  explicit MadeCall(const DrawnCall& call) : call_(call) {
    if (call.is_backward)
      backward_ = args<scoremod_backward_args>();
    else
      forward_ = args<scoremod_forward_args>();
  }

  scoremod_status run(const scoremod_attention* fixed, const scoremod_attention* open, char** message) {
    if (call_.road == Road::kFixed) return run_on(fixed, message);
    if (is_prepared(call_.road)) {
      const bool is_fixed = call_.road == Road::kPrepared;
      scoremod_prepared_call prepared{};
      prepared.attention = is_fixed ? fixed : open;
      prepared.forward = forward_;
      prepared.backward = backward_;
      prepared.buffers = memory_.add_array(buffers_);
      prepared.addresses = memory_.add_array(addresses_);
      prepared.bytes = memory_.add_array(bytes_);
      prepared.count = buffers_.size();
      prepared.sizes = is_fixed ? nullptr : sizes();
      return scoremod_attention_call(memory_.add_sized(prepared, call_.call_size), message);
    }
    scoremod_attention* at = nullptr;
    const scoremod_status status = scoremod_attention_at(open, sizes(), &at, message);
    if (status != SCOREMOD_OK) return status;
    const scoremod_status outcome = run_on(at, message);
    scoremod_attention_destroy(at);
    return outcome;
  }

  std::vector<std::vector<std::byte>> outputs() const {
    std::vector<std::vector<std::byte>> all;
    for (const std::span<const std::byte> output : outputs_) all.emplace_back(output.begin(), output.end());
    return all;
  }

 private:
  scoremod_status run_on(const scoremod_attention* attention, char** message) const {
    return call_.is_backward ? scoremod_attention_backward(attention, backward_, message)
                             : scoremod_attention_forward(attention, forward_, message);
  }

  void* memory_of(const DrawnBuffer& buffer, bool is_output) {
    void* data = buffer.is_null ? nullptr : memory_.add(buffer.contents, is_output, buffer.behind);
    if (is_output)
      outputs_.emplace_back(static_cast<const std::byte*>(data), data == nullptr ? 0 : buffer.contents.size());
    return data;
  }

  /// Puts a buffer where a call reads it; for a prepared call, which puts it there itself, into that call's arrays.
  void place(std::byte* where, void* data, std::size_t bytes) {
    const scoremod_buffer buffer{data, bytes};
    if (!is_prepared(call_.road)) {
      std::memcpy(where, &buffer, sizeof buffer);
      return;
    }
    buffers_.push_back(reinterpret_cast<scoremod_buffer*>(where));
    addresses_.push_back(data);
    bytes_.push_back(bytes);
  }

  template <class Operand>
  Operand* operands(const DrawnArray<DrawnOperand>& drawn, bool is_output) {
    std::vector<Operand> made(drawn.elements.size());
    for (std::size_t i = 0; i < made.size(); ++i) made[i].name = memory_.add_text(drawn.elements[i].name);
    Operand* placed = memory_.add_array(made, true);
    for (std::size_t i = 0; i < made.size(); ++i) {
      const DrawnBuffer& buffer = drawn.elements[i].buffer;
      place(reinterpret_cast<std::byte*>(&placed[i].buffer), memory_of(buffer, is_output), buffer.bytes);
    }
    return drawn.is_null ? nullptr : placed;
  }

  template <class Args>
  const Args* args() {
    Args made{};
    made.operands = operands<scoremod_operand>(call_.operands, false);
    made.operand_count = call_.operands.count();
    if constexpr (std::is_same_v<Args, scoremod_backward_args>) {
      made.d_operands = operands<scoremod_operand_gradient>(call_.d_operands, true);
      made.d_operand_count = call_.d_operands.count();
    }
    if (call_.has_options) made.options = memory_.add_sized(call_.options, call_.options_size);
    const DrawnBuffer& workspace = call_.workspace;
    made.workspace = {workspace.is_null ? nullptr : memory_.add(workspace.contents, true, workspace.behind),
                      workspace.bytes};
    const std::size_t there = held(call_.args_size, sizeof made);
    Args* placed = memory_.add_sized(made, call_.args_size, true);
    for (const DrawnTensor& tensor : call_.tensors) {
      void* data = memory_of(tensor.buffer, tensor.is_output);
      const std::size_t offset = offset_of(tensor.name, call_.is_backward);
      // An older header lacks the member.
      if (offset + sizeof(scoremod_buffer) > there) continue;
      place(reinterpret_cast<std::byte*>(placed) + offset, data, tensor.buffer.bytes);
    }
    return placed;
  }

  const scoremod_strides* strides(const std::optional<Strides>& given) {
    if (!given) return nullptr;
    return memory_.add_array(std::vector{scoremod_strides{given->batch, given->head, given->sequence, given->dim}});
  }

  const scoremod_sizes* sizes() {
    const Sizes& s = call_.sizes;
    std::vector<scoremod_operand_sizes> operands;
    for (const OperandSizes& operand : s.operands) {
      // One rank counts for both arrays.
      std::vector<std::int64_t> shape = operand.shape, strides = operand.strides;
      const std::size_t rank = std::max(shape.size(), strides.size());
      if (!shape.empty()) shape.resize(rank);
      if (!strides.empty()) strides.resize(rank);
      operands.push_back({memory_.add_text(operand.name), rank, memory_.add_array(shape), memory_.add_array(strides)});
    }
    const scoremod_sizes made{0,
                              s.batch,
                              s.heads_q,
                              s.heads_kv,
                              s.seq_q,
                              s.seq_kv,
                              s.tokens_q,
                              s.tokens_kv,
                              s.blocks,
                              s.blocks_per_sequence,
                              strides(s.q),
                              strides(s.k),
                              strides(s.v),
                              strides(s.o),
                              strides(s.d_o),
                              strides(s.dq),
                              strides(s.dk),
                              strides(s.dv),
                              memory_.add_array(operands),
                              operands.size(),
                              s.takes_zeros ? 1 : 0};
    return memory_.add_sized(made, call_.sizes_size);
  }

  const DrawnCall& call_;
  CallMemory memory_;
  const scoremod_forward_args* forward_ = nullptr;
  const scoremod_backward_args* backward_ = nullptr;
  std::vector<std::span<const std::byte>> outputs_;
  std::vector<scoremod_buffer*> buffers_;
  std::vector<void*> addresses_;
  std::vector<std::size_t> bytes_;
};

DrawnBuffer buffer_of(std::span<const std::byte> contents) {
  return {{contents.begin(), contents.end()}, false, contents.size()};
}

DrawnBuffer buffer_of(ConstBuffer buffer) {
  return buffer_of(std::span(static_cast<const std::byte*>(buffer.data), buffer.bytes));
}

void create(const AttentionProblem& problem, const char* backend, scoremod_attention** attention) {
  scoremod_compile_options options{};
  options.struct_size = sizeof options;
  options.backend = backend;
  options.threads = 1;
  char* message = nullptr;
  if (scoremod_attention_create(to_json(problem).c_str(), &options, attention, &message) == SCOREMOD_OK) return;
  const std::string text = message == nullptr ? "no memory" : message;
  scoremod_text_free(message);
  throw std::runtime_error(text);
}

}  // namespace

DrawnCall right_call(const AttentionProblem& problem, const ProblemInputs& inputs, const CallOptions& options,
                     const DrawnForward* forward) {
  DrawnCall call;
  call.is_backward = forward != nullptr;
  const auto read = [&](const char* name, std::span<const std::byte> contents) {
    call.tensors.push_back({name, false, buffer_of(contents)});
  };
  read("q", inputs.q);
  read("k", inputs.k);
  read("v", inputs.v);
  if (forward != nullptr) {
    read("o", forward->o);
    read("lse", forward->lse);
    read("d_o", inputs.d_o);
  }
  for (const OperandBuffer& operand : inputs.operand_buffers())
    call.operands.elements.push_back({operand.name, buffer_of(operand.buffer)});
  const ProblemBuffers buffers(problem, buffers_of(inputs));
  for (const OutputTensor& output : buffers.outputs()) {
    const bool is_forward = std::ranges::find(kForwardMembers, output.name, &Member::name) != std::end(kForwardMembers);
    if (is_forward == call.is_backward) continue;
    const bool is_member =
        is_forward || std::ranges::find(kBackwardMembers, output.name, &Member::name) != std::end(kBackwardMembers);
    if (is_member)
      call.tensors.push_back({output.name, true, buffer_of(output.bytes)});
    else
      call.d_operands.elements.push_back({output.name.substr(2), buffer_of(output.bytes)});
  }
  call.options.has_scale = options.scale ? 1 : 0;
  call.options.scale = options.scale.value_or(0);
  call.options.batch_offset = options.offsets.batch;
  call.options.head_offset = options.offsets.head;
  call.options.query_offset = options.offsets.query;
  call.options.key_offset = options.offsets.key;
  call.options.dropout_seed = options.dropout_seed;
  call.options.dropout_offset = options.dropout_offset;
  call.workspace.is_null = true;
  call.sizes = problem::with_all_sizes_open(problem).sizes;
  return call;
}

std::size_t struct_size_of(bool is_backward) {
  return is_backward ? sizeof(scoremod_backward_args) : sizeof(scoremod_forward_args);
}

CompiledTwice::CompiledTwice(const AttentionProblem& problem, const char* backend) {
  create(problem, backend, &fixed_);
  create(problem::with_all_sizes_open(problem).problem, backend, &open_);
}

CompiledTwice::~CompiledTwice() {
  scoremod_attention_destroy(fixed_);
  scoremod_attention_destroy(open_);
}

Outcome CompiledTwice::run(const DrawnCall& call) const {
  MadeCall made(call);
  char* message = nullptr;
  Outcome outcome;
  outcome.status = made.run(fixed_, open_, &message);
  if (message != nullptr) outcome.message = message;
  scoremod_text_free(message);
  outcome.outputs = made.outputs();
  return outcome;
}

}  // namespace scoremod::test
