#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "scoremod/problem.hpp"

namespace scoremod::embedded {
/// The functions that generated code calls: ir/scalar_eval.hpp's meaning of each op in float32, and loads of each
/// dtype. Goes before any statements(). It is CUDA C++ for NVRTC, and C++ for a host compiler, which tests use. Both
/// must be told not to contract products and sums (--fmad=false, -ffp-contract=off).
extern const std::string_view kProgramPrelude;
}  // namespace scoremod::embedded

namespace scoremod::backend::cuda {

/// More nodes than this are not made into a kernel: compiling one takes NVRTC minutes from there on.
inline constexpr std::size_t kMaxKernelNodes = 4096;
/// The limit of operands that a kernel reads, because a kernel's parameters are limited to 4 KiB.
inline constexpr std::size_t kMaxKernelOperands = 128;

/// The source of broadcast operands' strides, tables' extents and strides, and the program's integers in generated
/// code.
enum class OperandSizes : std::uint8_t {
  kCompiledIn,  ///< they are numbers in the text
  /// The strides (elements) and extents of operand N are `p.operands[N].stride` and `.extent`, one for each dimension.
  /// The i32 constants of argument_constants() are in `p.call.constants`. So problems that differ in them alone have
  /// the same text.
  kArguments,
};

/// The nodes whose values are arguments of a kernel, in the order of `p.call.constants`. They are i32 constants such as
/// a window's length, at most kMaxArgumentConstants. 0, 1 and divisors are not among them. Other nodes' texts may
/// depend on 0 and 1, and dividing by a known number takes a fraction of the time.
std::vector<NodeId> argument_constants(const Program& program);
inline constexpr std::size_t kMaxArgumentConstants = 8;

/// Writes a program's nodes as statements of a function of one element. Their free variables are `score` and `upstream`
/// (float), `b`, `h`, `q` and `kv` (int: local indices), and the call's offsets. The offsets are `offset_b`,
/// `offset_h`, `offset_q` and `offset_kv` (int). Each operand that is read has a pointer operand_name().
class ProgramSource {
 public:
  /// `program` has the operands of the problem's; both must outlive this.
  ProgramSource(const AttentionProblem& problem, const Program& program,
                OperandSizes sizes = OperandSizes::kCompiledIn);

  /// From now on statements() take a node's value from this C++ expression, and not from its arguments.
  void replace(NodeId node, std::string expression) { replaced_[node] = std::move(expression); }

  /// From now on statements() take a node's value from this C++ expression where the constant `where` of the text is
  /// true, and elsewhere as before.
  void offer(NodeId node, std::string where, std::string expression) {
    offered_[node] = std::move(where) + " ? " + std::move(expression) + " : ";
  }

  /// Statements that define variable() of each of these nodes and of everything that they need, except variables of
  /// earlier calls.
  std::string statements(std::span<const NodeId> nodes);

  /// The variable that holds a node's value: float, int or bool.
  static std::string variable(NodeId node);
  static std::string operand_name(std::uint32_t operand);
  /// The operands that the statements so far read.
  const std::set<std::uint32_t>& operands() const { return operands_; }

 private:
  std::string expression(NodeId id);
  std::string read_operand(const Node& node);

  const AttentionProblem& problem_;
  const Program& program_;
  OperandSizes sizes_;
  std::vector<NodeId> arguments_;  ///< argument_constants(), where constants are arguments
  std::vector<bool> written_;
  std::map<NodeId, std::string> replaced_, offered_;
  std::set<std::uint32_t> operands_;
};

/// The index of an operand's entry, from one int expression for each dimension; a table's are clamped to its extents.
std::string entry_offset(const AttentionProblem& problem, std::uint32_t operand, std::span<const std::string> indices,
                         OperandSizes sizes = OperandSizes::kCompiledIn);

/// The prelude's function that loads an element of this dtype.
const char* loader(DType dtype);

/// A float that a compiler reads as exactly this value, NaN and infinities included.
std::string float_literal(float value);

}  // namespace scoremod::backend::cuda
