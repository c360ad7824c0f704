#include "support/program_outcome.hpp"

#include <algorithm>
#include <array>

#include "support/interpreter.hpp"

namespace scoremod::test {
namespace {

double read_broadcast(const OperandDecl& decl, const OperandData& data, const Position& at) {
  const std::array<std::int32_t, kAxisCount> index{at.b, at.h, at.q, at.kv};
  std::int64_t offset = 0;
  std::size_t dimension = 0;
  for (std::size_t axis = 0; axis < kAxisCount; ++axis) {
    if (decl.axes[axis]) offset = offset * data.shape.at(dimension++) + index[axis];
  }
  return data.values.at(static_cast<std::size_t>(offset));
}

double read_table(const OperandData& data, std::span<const std::int32_t> indices) {
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::int64_t extent = data.shape.at(i);
    offset = offset * extent + std::clamp<std::int64_t>(indices[i], 0, extent - 1);
  }
  return data.values.at(static_cast<std::size_t>(offset));
}

ir::Scalar<double> scalar(Type type, double value) {
  ir::Scalar<double> out;
  switch (type) {
    case Type::kF32: out.f = value; break;
    case Type::kI32: out.i = static_cast<std::int32_t>(value); break;
    case Type::kBool: out.b = value != 0; break;
  }
  return out;
}

}  // namespace

Outcome outcome(const Program& program, const Position& at, const OperandValues& operands) {
  Element<double> element{at.score, 0, at.b, at.h, at.q, at.kv, {}};
  element.read = [&](std::uint32_t number, std::span<const std::int32_t> indices) {
    const OperandDecl& decl = program.operands()[number];
    const OperandData& data = operands.at(decl.name);
    return scalar(decl.type, decl.is_table() ? read_table(data, indices) : read_broadcast(decl, data, at));
  };
  const auto values = interpret(program, element);
  return {values[program.value()].f, program.keep() == kNoNode || values[program.keep()].b};
}

}  // namespace scoremod::test
