#include "c_structs/drawn_call.hpp"

#include <limits>

namespace scoremod::fuzz {
namespace {

// TensorField's offsets, and those of all fields that a header may have ended before.
#define SCOREMOD_FORWARD(field) \
  { #field, offsetof(scoremod_forward_args, field) }
#define SCOREMOD_BACKWARD(field) \
  { #field, offsetof(scoremod_backward_args, field) }
constexpr TensorField kForward[] = {SCOREMOD_FORWARD(q),         SCOREMOD_FORWARD(k),     SCOREMOD_FORWARD(v),
                                    SCOREMOD_FORWARD(o),         SCOREMOD_FORWARD(lse),   SCOREMOD_FORWARD(workspace),
                                    SCOREMOD_FORWARD(max_logit), SCOREMOD_FORWARD(amax_o)};
constexpr TensorField kBackward[] = {
    SCOREMOD_BACKWARD(q),      SCOREMOD_BACKWARD(k),         SCOREMOD_BACKWARD(v),       SCOREMOD_BACKWARD(o),
    SCOREMOD_BACKWARD(lse),    SCOREMOD_BACKWARD(d_o),       SCOREMOD_BACKWARD(dq),      SCOREMOD_BACKWARD(dk),
    SCOREMOD_BACKWARD(dv),     SCOREMOD_BACKWARD(workspace), SCOREMOD_BACKWARD(amax_dq), SCOREMOD_BACKWARD(amax_dk),
    SCOREMOD_BACKWARD(amax_dv)};
#undef SCOREMOD_FORWARD
#undef SCOREMOD_BACKWARD
constexpr std::size_t kForwardEnds[] = {
    offsetof(scoremod_forward_args, max_logit), offsetof(scoremod_forward_args, amax_o),
    offsetof(scoremod_forward_args, options),   offsetof(scoremod_forward_args, workspace),
    offsetof(scoremod_forward_args, lse),       offsetof(scoremod_forward_args, operand_count),
    offsetof(scoremod_forward_args, q),
};
constexpr std::size_t kBackwardEnds[] = {
    offsetof(scoremod_backward_args, amax_dq),
    offsetof(scoremod_backward_args, options),
    offsetof(scoremod_backward_args, workspace),
    offsetof(scoremod_backward_args, d_operands),
    offsetof(scoremod_backward_args, d_operand_count),
    offsetof(scoremod_backward_args, dq),
    offsetof(scoremod_backward_args, q),
};
constexpr std::size_t kOptionsEnds[] = {
    offsetof(scoremod_call_options, dropout_seed),
    offsetof(scoremod_call_options, key_offset),
    offsetof(scoremod_call_options, scale),
    offsetof(scoremod_call_options, stream),
};

std::string tensor_of(const TensorField& field, bool is_backward) {
  const std::string name = field.tensor;
  return name != "workspace" ? name : is_backward ? "backward workspace" : "forward workspace";
}

/// A workspace may be left out.
bool is_left_out(Choices& choices, const TensorField& field) {
  return std::string_view(field.tensor) == "workspace" && choices.byte() % 4 == 0;
}

/// All operands that the problem has, or gradients of all that have one, with few mistakes.
DrawnArray draw_array(Choices& choices, const CallMemory& memory, const std::string& prefix) {
  DrawnArray array;
  for (std::size_t i = 0; i < memory.operands(); ++i) {
    const std::string& name = memory.operand(i).name();
    const std::string block = prefix + name;
    if (!prefix.empty() && memory.find(block) == nullptr && !choices.rarely()) continue;
    const auto mistake = choices.byte();
    if (mistake == 1) continue;
    for (int copies = mistake == 2 ? 2 : 1; copies > 0; --copies) {
      array.names.push_back(mistake == 3 ? std::nullopt : std::optional(mistake == 4 ? "no such operand" : name));
      array.places.push_back(draw_place(choices, memory, block));
    }
  }
  array.count = array.names.size();
  const auto mistake = choices.byte();
  if (mistake == 1) array.count /= 2;
  array.is_null = mistake == 2 || mistake == 3;
  if (mistake == 2) array.count = choices.among<std::size_t>({0, 1, std::numeric_limits<std::size_t>::max()});
  return array;
}

scoremod_call_options draw_options(Choices& choices) {
  constexpr std::int32_t kLargest = std::numeric_limits<std::int32_t>::max(), kBeyond = 1 << 30;
  scoremod_call_options options{};
  options.has_scale = choices.among({0, 1, -1});
  options.scale = choices.among({0.5F, 0.0F, -2.0F, std::numeric_limits<float>::infinity(), -0.0F, 1e-40F,
                                 std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::max()});
  for (std::int32_t* offset : {&options.batch_offset, &options.head_offset, &options.query_offset, &options.key_offset})
    *offset = choices.right_or(0, {1, 3, 40, -1, kBeyond - 1, kBeyond, kLargest, -kLargest - 1});
  options.dropout_seed = choices.among<std::uint64_t>({0, 1, ~std::uint64_t{0}});
  options.dropout_offset = choices.among<std::uint64_t>({0, 1, ~std::uint64_t{0}});
  return options;
}

std::vector<scoremod_operand> made(const DrawnArray& array, const CallMemory& memory, const scoremod_operand*) {
  std::vector<scoremod_operand> operands;
  for (std::size_t i = 0; i < array.names.size(); ++i) {
    const Place& place = array.places[i];
    operands.push_back({array.names[i] ? array.names[i]->c_str() : nullptr, {memory.address(place), place.bytes}});
  }
  return operands;
}

std::vector<scoremod_operand_gradient> made(const DrawnArray& array, const CallMemory& memory,
                                            const scoremod_operand_gradient*) {
  std::vector<scoremod_operand_gradient> gradients;
  for (std::size_t i = 0; i < array.names.size(); ++i) {
    const Place& place = array.places[i];
    gradients.push_back({array.names[i] ? array.names[i]->c_str() : nullptr, {memory.address(place), place.bytes}});
  }
  return gradients;
}

void set_gradients(scoremod_forward_args&, const scoremod_operand_gradient*, std::size_t) {}
void set_gradients(scoremod_backward_args& args, const scoremod_operand_gradient* gradients, std::size_t count) {
  args.d_operands = gradients;
  args.d_operand_count = count;
}

template <class Made, class Element>
std::vector<Made> plain_array(const Element* elements, std::size_t count) {
  if (count > 0 && elements == nullptr) refuse("an array that is NULL");
  std::vector<Made> plain;
  for (std::size_t i = 0; i < count; ++i) {
    if (elements[i].name == nullptr) refuse("a name that is NULL");
    plain.push_back({elements[i].name, {elements[i].buffer.data, elements[i].buffer.bytes}});
  }
  return plain;
}

ConstBuffer plain(const scoremod_const_buffer& buffer) { return {buffer.data, buffer.bytes}; }
Buffer plain(const scoremod_buffer& buffer) { return {buffer.data, buffer.bytes}; }

template <class Args>
GivenStruct<Args> struct_of(const DrawnCall& drawn, const CallMemory& memory,
                            const std::vector<scoremod_operand>& operands,
                            const std::vector<scoremod_operand_gradient>& gradients,
                            const scoremod_call_options* options) {
  Args args{};
  for (std::size_t i = 0; i < drawn.tensors.size(); ++i) {
    const scoremod_buffer buffer{memory.address(drawn.tensors[i]), drawn.tensors[i].bytes};
    std::memcpy(reinterpret_cast<std::byte*>(&args) + fields<Args>()[i].offset, &buffer, sizeof buffer);
  }
  args.operands = drawn.operands.is_null ? nullptr : operands.data();
  args.operand_count = drawn.operands.count;
  set_gradients(args, drawn.gradients.is_null ? nullptr : gradients.data(), drawn.gradients.count);
  args.options = options;
  return {args, drawn.size};
}

}  // namespace

template <>
std::span<const TensorField> fields<scoremod_forward_args>() {
  return kForward;
}
template <>
std::span<const TensorField> fields<scoremod_backward_args>() {
  return kBackward;
}

DrawnCall draw_call(Choices& choices, const CallMemory& memory, bool is_backward) {
  DrawnCall drawn;
  drawn.is_backward = is_backward;
  const auto fields = is_backward ? std::span(kBackward) : std::span<const TensorField>(kForward);
  for (const TensorField& field : fields) {
    if (is_left_out(choices, field)) {
      drawn.tensors.push_back({0, 0, 0, true});
    } else {
      drawn.tensors.push_back(draw_place(choices, memory, tensor_of(field, is_backward)));
    }
  }
  drawn.operands = draw_array(choices, memory, "");
  if (is_backward) drawn.gradients = draw_array(choices, memory, "d_");
  drawn.size = is_backward ? draw_size(choices, sizeof(scoremod_backward_args), kBackwardEnds)
                           : draw_size(choices, sizeof(scoremod_forward_args), kForwardEnds);
  if (choices.byte() % 3 == 1) drawn.options = draw_options(choices);
  drawn.options_size = draw_size(choices, sizeof(scoremod_call_options), kOptionsEnds);
  return drawn;
}

template <class Args>
MadeCall<Args>::MadeCall(const DrawnCall& drawn, const CallMemory& memory)
    : operands_(made(drawn.operands, memory, static_cast<scoremod_operand*>(nullptr))),
      gradients_(made(drawn.gradients, memory, static_cast<scoremod_operand_gradient*>(nullptr))),
      options_(drawn.options ? std::optional<GivenStruct<scoremod_call_options>>({*drawn.options, drawn.options_size})
                             : std::nullopt),
      args_(struct_of<Args>(drawn, memory, operands_, gradients_, options_ ? options_->get() : nullptr)) {}

template <class Args>
Buffer MadeCall<Args>::workspace() const {
  return fuzz::plain(args_.understood().workspace);
}

template class MadeCall<scoremod_forward_args>;
template class MadeCall<scoremod_backward_args>;

CallOptions plain_options(const scoremod_call_options& options) {
  CallOptions made;
  if (options.has_scale != 0) made.scale = options.scale;
  made.offsets = {options.batch_offset, options.head_offset, options.query_offset, options.key_offset};
  made.stream = options.stream;
  made.dropout_seed = options.dropout_seed;
  made.dropout_offset = options.dropout_offset;
  return made;
}

ForwardArgs plain_args(const scoremod_forward_args& args, const CallOptions& options) {
  return {
      plain(args.q),     plain(args.k),   plain(args.v), plain_array<OperandBuffer>(args.operands, args.operand_count),
      plain(args.o),     plain(args.lse), options,       plain(args.max_logit),
      plain(args.amax_o)};
}

BackwardArgs plain_args(const scoremod_backward_args& args, const CallOptions& options) {
  return {plain(args.q),
          plain(args.k),
          plain(args.v),
          plain(args.o),
          plain(args.lse),
          plain(args.d_o),
          plain_array<OperandBuffer>(args.operands, args.operand_count),
          plain(args.dq),
          plain(args.dk),
          plain(args.dv),
          plain_array<OperandGradient>(args.d_operands, args.d_operand_count),
          options,
          plain(args.amax_dq),
          plain(args.amax_dk),
          plain(args.amax_dv)};
}

}  // namespace scoremod::fuzz
