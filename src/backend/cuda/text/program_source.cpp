#include "backend/cuda/text/program_source.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>

#include "base/fail.hpp"
#include "ir/builder.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::cuda {
namespace {

const char* c_type(Type type) {
  switch (type) {
    case Type::kF32: return "float";
    case Type::kI32: return "int";
    case Type::kBool: return "bool";
  }
  fail_bug("no such type");
}

std::string int_literal(std::int32_t value) {
  // The magnitude of the smallest i32 is no int.
  if (value == std::numeric_limits<std::int32_t>::min()) return "(-2147483647 - 1)";
  return value < 0 ? concat("(", value, ")") : concat(value);
}

std::string constant(const Node& node) {
  switch (node.type) {
    case Type::kF32: return float_literal(ir::constant_f32(node));
    case Type::kI32: return int_literal(ir::constant_i32(node));
    case Type::kBool: return ir::constant_bool(node) ? "true" : "false";
  }
  fail_bug("no such type");
}

/// C's operator for an f32 op, if it means just the same.
const char* f32_operator(Op op) {
  switch (op) {
    case Op::kAdd: return "+";
    case Op::kSub: return "-";
    case Op::kMul: return "*";
    case Op::kDiv: return "/";
    default: return nullptr;
  }
}

const char* f32_function(Op op) {
  switch (op) {
    case Op::kMod: return "f32_mod";
    case Op::kPow: return "powf";
    case Op::kAtan2: return "atan2f";
    case Op::kMin: return "f32_min";
    case Op::kMax: return "f32_max";
    case Op::kNeg: return "-";
    case Op::kAbs: return "fabsf";
    case Op::kSign: return "f32_sign";
    case Op::kFloor: return "floorf";
    case Op::kCeil: return "ceilf";
    case Op::kRound: return "nearbyintf";
    case Op::kExp: return "expf";
    case Op::kExp2: return "exp2f";
    case Op::kExpm1: return "expm1f";
    case Op::kLog: return "logf";
    case Op::kLog1p: return "log1pf";
    case Op::kSqrt: return "sqrtf";
    case Op::kRsqrt: return "1.0f / sqrtf";
    case Op::kReciprocal: return "1.0f / ";
    case Op::kSin: return "sinf";
    case Op::kCos: return "cosf";
    case Op::kTan: return "tanf";
    case Op::kAtan: return "atanf";
    case Op::kTanh: return "tanhf";
    case Op::kSigmoid: return "f32_sigmoid";
    case Op::kErf: return "erff";
    case Op::kErfc: return "erfcf";
    case Op::kSoftplus: return "f32_softplus";
    case Op::kRelu: return "f32_relu";
    case Op::kGelu: return "f32_gelu";
    case Op::kGeluTanh: return "f32_gelu_tanh";
    case Op::kSilu: return "f32_silu";
    default: fail_bug("no CUDA function for the f32 op '", ir::info(op).name, "'");
  }
}

const char* i32_function(Op op) {
  switch (op) {
    case Op::kAdd: return "i32_add";
    case Op::kSub: return "i32_sub";
    case Op::kMul: return "i32_mul";
    case Op::kFloorDiv: return "i32_floor_div";
    case Op::kMod: return "i32_mod";
    case Op::kMin: return "i32_min";
    case Op::kMax: return "i32_max";
    case Op::kNeg: return "i32_neg";
    case Op::kAbs: return "i32_abs";
    case Op::kSign: return "i32_sign";
    default: fail_bug("no CUDA function for the i32 op '", ir::info(op).name, "'");
  }
}

const char* relation(Op op) {
  switch (op) {
    case Op::kEq: return "==";
    case Op::kNe: return "!=";
    case Op::kLt: return "<";
    case Op::kLe: return "<=";
    case Op::kGt: return ">";
    case Op::kGe: return ">=";
    case Op::kAnd: return "&&";
    case Op::kOr: return "||";
    case Op::kXor: return "!=";
    default: fail_bug("'", ir::info(op).name, "' is no comparison of C++");
  }
}

/// x / y of constants that f32_divide_by() is made for; empty for others.
std::string divided_by(float y, const std::string& x) {
  const float magnitude = std::fabs(y);
  if (!(magnitude >= 0x1p-100f && magnitude <= 0x1p100f)) return {};
  return concat("f32_divide_by(", std::signbit(y) ? "-" : "", x, ", ", float_literal(magnitude), ", ",
                float_literal(1.0f / magnitude), ")");
}

/// By a constant, as div means it, and by a positive one, as floor_div and mod mean it; empty for other ops and
/// divisors.
std::string by_constant(const Node& node, const Node& divisor, const std::string& x) {
  if (node.op == Op::kDiv && divisor.op == Op::kConstant) return divided_by(ir::constant_f32(divisor), x);
  const bool quotient = node.op == Op::kFloorDiv;
  if (node.type != Type::kI32 || (!quotient && node.op != Op::kMod) || divisor.op != Op::kConstant) return {};
  const std::int32_t y = ir::constant_i32(divisor);
  if (y <= 0) return {};
  // A shift rounds down, and the lowest bits are the remainder.
  if (const auto bits = static_cast<std::uint32_t>(y); std::has_single_bit(bits))
    return quotient ? concat(x, " >> ", std::countr_zero(bits)) : concat(x, " & ", y - 1);
  return concat(quotient ? "i32_floor_div_positive(" : "i32_mod_positive(", x, ", ", y, ")");
}

std::string cast(Op op, Type from, const std::string& x) {
  if (op == Op::kToF32) return from == Type::kF32 ? x : from == Type::kI32 ? "(float)" + x : x + " ? 1.0f : 0.0f";
  if (op == Op::kToI32) return from == Type::kF32 ? "i32_of_f32(" + x + ")" : from == Type::kI32 ? x : x + " ? 1 : 0";
  return from == Type::kF32 ? x + " != 0.0f" : from == Type::kI32 ? x + " != 0" : x;
}

std::string index(Axis axis) {
  static constexpr std::array<const char*, kAxisCount> kLocal{"b", "h", "q", "kv"};
  const std::string name = kLocal[static_cast<std::size_t>(axis)];
  return name + " + offset_" + name;
}

}  // namespace

const char* loader(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "load_f32";
    case DType::kF16: return "load_f16";
    case DType::kBF16: return "load_bf16";
    case DType::kI32: return "load_i32";
    case DType::kBool: return "load_bool";
    case DType::kE4M3:
    case DType::kE5M2: break;
  }
  fail_bug("no such dtype");
}

std::string float_literal(float value) {
  if (!std::isfinite(value)) return concat("float_of_bits(", std::bit_cast<std::uint32_t>(value), "u)");
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), std::signbit(value) ? "(%af)" : "%af", static_cast<double>(value));
  return text.data();
}

std::string entry_offset(const AttentionProblem& problem, std::uint32_t operand, std::span<const std::string> indices,
                         OperandSizes sizes) {
  const OperandSpec& spec = problem::spec_of(problem, operand);
  const auto strides = problem::strides_of(spec);
  const bool table = problem.program.operands()[operand].is_table(), arguments = sizes == OperandSizes::kArguments;
  // Narrow arithmetic where no offset leaves i32.
  const bool narrow = problem::bytes_of(spec) < (std::size_t{1} << 31);
  std::string text;
  for (std::size_t d = 0; d < spec.shape.size(); ++d) {
    if (spec.shape[d] == 1 && !arguments) continue;
    const std::string entry = concat("p.operands[", operand, "].");
    const std::string extent =
        arguments ? concat(entry, "extent[", d, "]") : int_literal(static_cast<std::int32_t>(spec.shape[d]));
    const std::string stride =
        arguments ? concat(narrow ? "(int)" : "", entry, "stride[", d, "]") : concat(strides[d], narrow ? "" : "LL");
    const std::string at = table ? concat("clamp_index(", indices[d], ", ", extent, ")") : indices[d];
    text += concat(text.empty() ? "" : " + ", narrow ? "" : "(long long)", at, " * ", stride);
  }
  return text.empty() ? "0" : text;
}

ProgramSource::ProgramSource(const AttentionProblem& problem, const Program& program, OperandSizes sizes)
    : problem_(problem), program_(program), sizes_(sizes), written_(program.nodes().size()) {
  if (sizes == OperandSizes::kArguments) arguments_ = argument_constants(program);
}

std::vector<NodeId> argument_constants(const Program& program) {
  const std::vector<Node>& nodes = program.nodes();
  std::vector<bool> compiled_in(nodes.size());
  for (const Node& node : nodes) {
    if (node.op == Op::kFloorDiv || node.op == Op::kMod) compiled_in[node.args[1]] = true;
  }
  std::vector<NodeId> found;
  for (NodeId id = 0; id < nodes.size() && found.size() < kMaxArgumentConstants; ++id) {
    if (nodes[id].op != Op::kConstant || nodes[id].type != Type::kI32 || compiled_in[id]) continue;
    const std::int32_t value = ir::constant_i32(nodes[id]);
    if (value != 0 && value != 1) found.push_back(id);
  }
  return found;
}

std::string ProgramSource::variable(NodeId node) { return concat("n", node); }
std::string ProgramSource::operand_name(std::uint32_t operand) { return concat("operand_", operand); }

std::string ProgramSource::statements(std::span<const NodeId> nodes) {
  const std::vector<Node>& all = program_.nodes();
  std::vector<bool> needed(all.size());
  for (const NodeId node : nodes) needed[node] = true;
  for (std::size_t id = all.size(); id-- > 0;) {
    if (!needed[id] || written_[id] || replaced_.contains(static_cast<NodeId>(id))) continue;
    for (const NodeId arg : ir::args_of(all[id])) needed[arg] = true;
  }
  std::string text;
  for (std::size_t id = 0; id < all.size(); ++id) {
    if (!needed[id] || written_[id]) continue;
    written_[id] = true;
    const auto offered = offered_.find(static_cast<NodeId>(id));
    text += concat("const ", c_type(all[id].type), " ", variable(static_cast<NodeId>(id)), " = ",
                   offered == offered_.end() ? "" : offered->second, expression(static_cast<NodeId>(id)), ";\n");
  }
  return text;
}

std::string ProgramSource::expression(NodeId id) {
  if (const auto replaced = replaced_.find(id); replaced != replaced_.end()) return replaced->second;
  const Node& node = program_.nodes()[id];
  const auto argument = std::ranges::find(arguments_, id);
  if (argument != arguments_.end()) return concat("p.call.constants[", argument - arguments_.begin(), "]");
  const auto arg = [&](std::size_t i) { return variable(node.args[i]); };
  const auto arg_type = [&] { return program_.nodes()[node.args[0]].type; };
  switch (node.op) {
    case Op::kScore: return "score";
    case Op::kUpstream: return "upstream";
    case Op::kBatchIdx: return index(Axis::kBatch);
    case Op::kHeadIdx: return index(Axis::kHead);
    case Op::kQueryIdx: return index(Axis::kQuery);
    case Op::kKeyIdx: return index(Axis::kKey);
    case Op::kConstant: return constant(node);
    case Op::kOperand:
    case Op::kGather: return read_operand(node);
    case Op::kNot: return "!" + arg(0);
    case Op::kSurrogate: return arg(0);
    case Op::kSelect: return concat(arg(0), " ? ", arg(1), " : ", arg(2));
    case Op::kToF32:
    case Op::kToI32:
    case Op::kToBool: return cast(node.op, arg_type(), arg(0));
    default: break;
  }
  if (node.arg_count > 1) {
    std::string quotient = by_constant(node, program_.nodes()[node.args[1]], arg(0));
    if (!quotient.empty()) return quotient;
  }
  if (node.op == Op::kTanh && problem_.dtype != DType::kF32) return concat("f32_tanh_short(", arg(0), ")");
  if (node.type == Type::kBool) return concat(arg(0), " ", relation(node.op), " ", arg(1));
  if (node.type == Type::kF32 && f32_operator(node.op) != nullptr) {
    return concat(arg(0), " ", f32_operator(node.op), " ", arg(1));
  }
  const char* function = node.type == Type::kF32 ? f32_function(node.op) : i32_function(node.op);
  return concat(function, "(", arg(0), node.arg_count > 1 ? ", " + arg(1) : "", ")");
}

std::string ProgramSource::read_operand(const Node& node) {
  const std::uint32_t operand = node.payload;
  operands_.insert(operand);
  std::vector<std::string> indices;
  const OperandDecl& decl = program_.operands()[operand];
  if (decl.is_table()) {
    for (const NodeId at : ir::args_of(node)) indices.push_back(variable(at));
  } else {
    static constexpr std::array<const char*, kAxisCount> kLocal{"b", "h", "q", "kv"};
    for (std::size_t axis = 0; axis < kAxisCount; ++axis) {
      if (decl.axes[axis]) indices.emplace_back(kLocal[axis]);
    }
  }
  return concat(loader(problem::spec_of(problem_, operand).dtype), "(", operand_name(operand), ", ",
                entry_offset(problem_, operand, indices, sizes_), ")");
}

}  // namespace scoremod::backend::cuda
