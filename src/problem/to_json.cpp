#include <nlohmann/json.hpp>

#include "scoremod/problem.hpp"

#include "problem/tensor_view.hpp"

namespace scoremod {
namespace problem {
namespace {

/// Keeps the fields in the order in which docs/problem.md has them.
using OrderedJson = nlohmann::ordered_json;

OrderedJson layout_json(const TensorLayout& layout) {
  if (!layout.strides) return to_string(layout.layout);
  const Strides& strides = *layout.strides;
  OrderedJson json;
  json["layout"] = to_string(layout.layout);
  json["strides"] = {
      {"batch", strides.batch}, {"head", strides.head}, {"sequence", strides.sequence}, {"dim", strides.dim}};
  return json;
}

/// The program's text, a list with one string for each line.
OrderedJson program_json(const Program& program) {
  OrderedJson lines = OrderedJson::array();
  const std::string text = program.to_string();
  std::size_t start = 0;
  while (start < text.size()) {
    const std::size_t end = std::min(text.find('\n', start), text.size());
    lines.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return lines;
}

OrderedJson operand_json(const OperandSpec& spec) {
  OrderedJson json;
  json["name"] = spec.name;
  json["dtype"] = to_string(spec.dtype);
  json["shape"] = spec.shape;
  if (!spec.strides.empty()) json["strides"] = spec.strides;
  if (!spec.gradient) json["gradient"] = false;
  return json;
}

}  // namespace
}  // namespace problem

std::string to_json(const AttentionProblem& problem) {
  problem::OrderedJson json;
  json["batch"] = problem.batch;
  json["heads_q"] = problem.heads_q;
  json["heads_kv"] = problem.heads_kv;
  json["seq_q"] = problem.seq_q;
  json["seq_kv"] = problem.seq_kv;
  json["dim_qk"] = problem.dim_qk;
  json["dim_v"] = problem.dim_v;
  json["dtype"] = to_string(problem.dtype);
  json["q"] = problem::layout_json(problem.q);
  json["k"] = problem::layout_json(problem.k);
  json["v"] = problem::layout_json(problem.v);
  json["o"] = problem::layout_json(problem.o);
  if (problem.scale) json["scale"] = *problem.scale;
  json["program"] = problem::program_json(problem.program);
  json["operands"] = problem::OrderedJson::array();
  for (const OperandSpec& spec : problem.operands) json["operands"].push_back(problem::operand_json(spec));
  json["backward"] = problem.backward;
  json["stats"] = problem.stats;
  json["index_offsets"] = problem.index_offsets;
  json["deterministic"] = problem.deterministic;
  return json.dump(2) + "\n";
}

}  // namespace scoremod
