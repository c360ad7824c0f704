#include "support/interpreter.hpp"

#include <array>
#include <stdexcept>

#include "ir/builder.hpp"

namespace scoremod::test {
namespace {

template <class Real>
ir::Scalar<Real> number(Real value) {
  ir::Scalar<Real> out;
  out.f = value;
  return out;
}

template <class Real>
ir::Scalar<Real> index(std::int32_t value) {
  ir::Scalar<Real> out;
  out.i = value;
  return out;
}

template <class Real>
ir::Scalar<Real> read(const Element<Real>& element, const Node& node, std::span<const ir::Scalar<Real>> args) {
  if (!element.read) throw std::logic_error("the program reads an operand and the element has no reader");
  std::array<std::int32_t, kMaxArgs> indices{};
  for (std::size_t i = 0; i < args.size(); ++i) indices[i] = args[i].i;
  return element.read(node.payload, std::span(indices).first(args.size()));
}

template <class Real>
ir::Scalar<Real> evaluate(const Program& program, const Element<Real>& element, const Node& node,
                          std::span<const ir::Scalar<Real>> args) {
  switch (node.op) {
    case Op::kScore: return number(element.score);
    case Op::kUpstream: return number(element.upstream);
    case Op::kBatchIdx: return index<Real>(element.b);
    case Op::kHeadIdx: return index<Real>(element.h);
    case Op::kQueryIdx: return index<Real>(element.q);
    case Op::kKeyIdx: return index<Real>(element.kv);
    case Op::kConstant: return ir::constant_value<Real>(node);
    case Op::kOperand:
    case Op::kGather: return read(element, node, args);
    default: return ir::eval_op(node, program.nodes()[node.args[0]].type, args);
  }
}

}  // namespace

template <class Real>
std::vector<ir::Scalar<Real>> interpret(const Program& program, const Element<Real>& element) {
  std::vector<ir::Scalar<Real>> values;
  values.reserve(program.nodes().size());
  std::array<ir::Scalar<Real>, kMaxArgs> args;
  for (const Node& node : program.nodes()) {
    for (std::size_t i = 0; i < node.arg_count; ++i) args[i] = values[node.args[i]];
    values.push_back(evaluate(program, element, node, std::span<const ir::Scalar<Real>>(args.data(), node.arg_count)));
  }
  return values;
}

template std::vector<ir::Scalar<float>> interpret(const Program&, const Element<float>&);
template std::vector<ir::Scalar<double>> interpret(const Program&, const Element<double>&);

}  // namespace scoremod::test
