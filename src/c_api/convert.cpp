#include "c_api/convert.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "base/fail.hpp"
#include "c_api/guard.hpp"

namespace scoremod::c_api {
namespace {

// Fields are only ever added at the end: compiled callers depend on these places.
static_assert(sizeof(scoremod_status) == 4);
static_assert(sizeof(void*) != 8 || offsetof(scoremod_compile_options, memory) == 48);
static_assert(sizeof(void*) != 8 || offsetof(scoremod_compile_options, support_level) == 84);
static_assert(sizeof(void*) != 8 || offsetof(scoremod_compile_options, new_sizes) == 88);
static_assert(sizeof(void*) != 8 || offsetof(scoremod_compile_options, device_properties) == 96);
static_assert(sizeof(void*) != 8 || offsetof(scoremod_call_options, key_offset) == 36);
static_assert(sizeof(void*) != 8 || offsetof(scoremod_forward_args, options) == 120);
static_assert(sizeof(void*) != 8 || offsetof(scoremod_call_options, dropout_offset) == 48);
static_assert(sizeof(void*) != 8 || offsetof(scoremod_forward_args, max_logit) == 128);
static_assert(sizeof(void*) != 8 || offsetof(scoremod_forward_args, amax_o) == 144);
static_assert(sizeof(void*) != 8 || offsetof(scoremod_backward_args, options) == 200);
static_assert(sizeof(void*) != 8 || offsetof(scoremod_backward_args, amax_dv) == 240);
static_assert(sizeof(void*) != 8 || sizeof(scoremod_operand) == 24);
static_assert(sizeof(scoremod_strides) == 32);
static_assert(sizeof(void*) != 8 || sizeof(scoremod_operand_sizes) == 32);
static_assert(sizeof(void*) != 8 || offsetof(scoremod_sizes, operand_count) == 152);
static_assert(sizeof(void*) != 8 || offsetof(scoremod_sizes, takes_zeros) == 160);
static_assert(sizeof(void*) != 8 || offsetof(scoremod_request_queue_options, threads) == 20);
static_assert(sizeof(void*) != 8 || offsetof(scoremod_prepared_call, count) == 56);
static_assert(sizeof(void*) != 8 || offsetof(scoremod_prepared_call, sizes) == 64);

/// No caller's struct is larger; a larger struct_size is memory that was never set.
constexpr std::size_t kMaxStructSize = 4096;

/// The caller's struct as this library's header has it, whichever header the caller was compiled with.
template <class Struct>
Struct read_struct(const Struct* given, const char* name) {
  std::size_t size = 0;
  std::memcpy(&size, given, sizeof size);
  if (size < sizeof size || size > kMaxStructSize) {
    fail_argument(name, ".struct_size: expected sizeof(", name, "), ", sizeof(Struct), " bytes, found ", size,
                  "; set it before the call");
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  const std::size_t known = std::min(size, sizeof(Struct));
  if (std::any_of(bytes + known, bytes + size, [](unsigned char byte) { return byte != 0; })) {
    fail_argument(name,
                  ": a field is set that this version of scoremod does not have; use a newer library, or leave out ",
                  "what is new in the header");
  }
  Struct made{};
  std::memcpy(&made, given, known);
  return made;
}

ConstBuffer convert(const scoremod_const_buffer& buffer) { return {buffer.data, buffer.bytes}; }
Buffer convert(const scoremod_buffer& buffer) { return {buffer.data, buffer.bytes}; }

/// Reads an array of `count` elements, where null is fine only for none.
template <class Element, class Action>
void for_each(const Element* elements, std::size_t count, const char* name, const Action& action) {
  if (count > 0) require(elements, name);
  for (std::size_t i = 0; i < count; ++i) action(elements[i], concat(name, "[", i, "]"));
}

std::vector<OperandBuffer> convert(const scoremod_operand* operands, std::size_t count) {
  std::vector<OperandBuffer> made;
  for_each(operands, count, "operands", [&](const scoremod_operand& operand, const std::string& path) {
    require(operand.name, (path + ".name").c_str());
    made.push_back({operand.name, convert(operand.buffer)});
  });
  return made;
}

std::vector<OperandGradient> convert(const scoremod_operand_gradient* gradients, std::size_t count) {
  std::vector<OperandGradient> made;
  for_each(gradients, count, "d_operands", [&](const scoremod_operand_gradient& gradient, const std::string& path) {
    require(gradient.name, (path + ".name").c_str());
    made.push_back({gradient.name, convert(gradient.buffer)});
  });
  return made;
}

std::optional<Strides> convert(const scoremod_strides* strides) {
  if (strides == nullptr) return std::nullopt;
  return Strides{strides->batch, strides->head, strides->sequence, strides->dim};
}

std::vector<OperandSizes> convert(const scoremod_operand_sizes* operands, std::size_t count) {
  std::vector<OperandSizes> made;
  for_each(operands, count, "operands", [&](const scoremod_operand_sizes& operand, const std::string& path) {
    require(operand.name, (path + ".name").c_str());
    if (operand.rank > static_cast<std::size_t>(kMaxTableRank))
      fail_argument(path, ".rank: expected at most ", kMaxTableRank, ", found ", operand.rank);
    OperandSizes& sizes = made.emplace_back();
    sizes.name = operand.name;
    if (operand.shape != nullptr) sizes.shape.assign(operand.shape, operand.shape + operand.rank);
    if (operand.strides != nullptr) sizes.strides.assign(operand.strides, operand.strides + operand.rank);
  });
  return made;
}

MemoryKind parse_memory_kind(const std::string& name) {
  for (const MemoryKind kind : {MemoryKind::kHost, MemoryKind::kCuda}) {
    if (name == to_string(kind)) return kind;
  }
  fail_argument("options.memory: expected \"host\" or \"cuda\", found \"", name, "\"");
}

std::optional<NewSizes> convert_new_sizes(std::int32_t number) {
  if (number == 0) return std::nullopt;
  if (number != 1 && number != 2)
    fail_argument("options.new_sizes: expected 0 (what SCOREMOD_NEW_SIZES says), 1 (wait) or 2 (serve), found ",
                  number);
  return number == 1 ? NewSizes::kWait : NewSizes::kServe;
}

CallOptions convert(const scoremod_call_options* given) {
  CallOptions made;
  if (given == nullptr) return made;
  const scoremod_call_options options = read_struct(given, "scoremod_call_options");
  if (options.has_scale != 0) made.scale = options.scale;
  made.offsets = {options.batch_offset, options.head_offset, options.query_offset, options.key_offset};
  made.stream = options.stream;
  made.dropout_seed = options.dropout_seed;
  made.dropout_offset = options.dropout_offset;
  return made;
}

/// All that concerns compiling.
CompileOptions compile_options_of(const scoremod_compile_options& options) {
  CompileOptions made;
  if (options.backend != nullptr) made.backend = options.backend;
  made.threads = options.threads;
  if (options.has_device != 0) made.device = options.device;
  if (options.memory != nullptr && *options.memory != '\0') made.memory = parse_memory_kind(options.memory);
  for_each(options.disabled_passes, options.disabled_pass_count, "disabled_passes",
           [&](const char* pass, const std::string& path) {
             require(pass, path.c_str());
             made.disabled_passes.emplace_back(pass);
           });
  for_each(options.backends, options.backend_count, "backends", [&](const char* backend, const std::string& path) {
    require(backend, path.c_str());
    made.backends.emplace_back(backend);
  });
  if (options.max_workspace != 0) made.max_workspace = options.max_workspace;
  made.autotune = options.autotune != 0;
  made.new_sizes = convert_new_sizes(options.new_sizes);
  return made;
}

SupportLevel convert_support_level(std::int32_t level) {
  if (level != 0 && level != 1) fail_argument("options.support_level: expected 0 or 1, found ", level);
  return level == 0 ? SupportLevel::kVerified : SupportLevel::kStatic;
}

}  // namespace

CompileOptions convert(const scoremod_compile_options* given) {
  if (given == nullptr) return {};
  const scoremod_compile_options options = read_struct(given, "scoremod_compile_options");
  if (options.device_properties != nullptr) {
    fail_argument("options.device_properties: expected NULL, found a text: only scoremod_support and scoremod_explain ",
                  "answer for a device elsewhere; name a device that is here with `device`");
  }
  return compile_options_of(options);
}

Query convert_query(const scoremod_compile_options* given) {
  if (given == nullptr) return {};
  const scoremod_compile_options options = read_struct(given, "scoremod_compile_options");
  Query query{compile_options_of(options), convert_support_level(options.support_level), std::nullopt};
  if (options.device_properties != nullptr) query.device_properties = options.device_properties;
  return query;
}

RequestQueueOptions convert(const scoremod_request_queue_options* given) {
  RequestQueueOptions made;
  if (given == nullptr) return made;
  const scoremod_request_queue_options options = read_struct(given, "scoremod_request_queue_options");
  if (options.capacity != 0) made.capacity = options.capacity;
  if (options.threads != 0) made.threads = options.threads;
  made.refuse_when_full = options.refuse_when_full != 0;
  return made;
}

Sizes convert(const scoremod_sizes* sizes) {
  require(sizes, "sizes");
  const scoremod_sizes s = read_struct(sizes, "scoremod_sizes");
  return {s.batch,           s.heads_q,      s.heads_kv,
          s.seq_q,           s.seq_kv,       s.tokens_q,
          s.tokens_kv,       s.blocks,       s.blocks_per_sequence,
          convert(s.q),      convert(s.k),   convert(s.v),
          convert(s.o),      convert(s.d_o), convert(s.dq),
          convert(s.dk),     convert(s.dv),  convert(s.operands, s.operand_count),
          s.takes_zeros != 0};
}

scoremod_prepared_call convert(const scoremod_prepared_call* given) {
  require(given, "call");
  const scoremod_prepared_call call = read_struct(given, "scoremod_prepared_call");
  if (call.count > 0) {
    require(call.buffers, "call.buffers");
    require(call.addresses, "call.addresses");
    require(call.bytes, "call.bytes");
  }
  return call;
}

ForwardCall convert(const scoremod_forward_args* given) {
  require(given, "args");
  const scoremod_forward_args args = read_struct(given, "scoremod_forward_args");
  ForwardCall call;
  call.args.q = convert(args.q);
  call.args.k = convert(args.k);
  call.args.v = convert(args.v);
  call.args.operands = convert(args.operands, args.operand_count);
  call.args.o = convert(args.o);
  call.args.lse = convert(args.lse);
  call.args.options = convert(args.options);
  call.args.max_logit = convert(args.max_logit);
  call.args.amax_o = convert(args.amax_o);
  call.workspace = convert(args.workspace);
  return call;
}

BackwardCall convert(const scoremod_backward_args* given) {
  require(given, "args");
  const scoremod_backward_args args = read_struct(given, "scoremod_backward_args");
  BackwardCall call;
  call.args.q = convert(args.q);
  call.args.k = convert(args.k);
  call.args.v = convert(args.v);
  call.args.o = convert(args.o);
  call.args.lse = convert(args.lse);
  call.args.d_o = convert(args.d_o);
  call.args.operands = convert(args.operands, args.operand_count);
  call.args.dq = convert(args.dq);
  call.args.dk = convert(args.dk);
  call.args.dv = convert(args.dv);
  call.args.d_operands = convert(args.d_operands, args.d_operand_count);
  call.args.options = convert(args.options);
  call.args.amax_dq = convert(args.amax_dq);
  call.args.amax_dk = convert(args.amax_dk);
  call.args.amax_dv = convert(args.amax_dv);
  call.workspace = convert(args.workspace);
  return call;
}

}  // namespace scoremod::c_api
