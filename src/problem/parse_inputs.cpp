#include "problem/parse_inputs.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/fail.hpp"
#include "base/nearest_name.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::problem {
namespace {

/// A tensor that takes input, as far as its values are concerned.
struct InputTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::int64_t elements = 0;
  std::int64_t last_size = 0;  ///< of the last dimension; 0 for a scalar
};

InputTensor role_tensor(const AttentionProblem& problem, const char* name, TensorRole role) {
  const TensorShape shape = memory_shape_of(problem, role);
  return {name, dtype_of(problem, role), shape.batch * shape.heads * shape.sequence * shape.dim, shape.dim};
}

std::vector<InputTensor> input_tensors(const AttentionProblem& problem) {
  std::vector<InputTensor> tensors{role_tensor(problem, "q", TensorRole::kQ), role_tensor(problem, "k", TensorRole::kK),
                                   role_tensor(problem, "v", TensorRole::kV),
                                   role_tensor(problem, "d_o", TensorRole::kDO)};
  for (const OperandSpec& spec : with_implied_operands(problem).operands) {
    std::int64_t elements = 1;
    for (const std::int64_t size : spec.shape) elements *= size;
    tensors.push_back({spec.name, spec.dtype, elements, spec.shape.empty() ? 0 : spec.shape.back()});
  }
  return tensors;
}

/// The tensor of this name, which exists. An operand may be named as one of the four; then the name says too little.
const InputTensor& find_tensor(const std::vector<InputTensor>& tensors, const std::string& name,
                               const std::string& path) {
  const auto is_it = [&](const InputTensor& tensor) { return tensor.name == name; };
  if (std::count_if(tensors.begin(), tensors.end(), is_it) > 1) {
    fail_argument(path, ": expected the name of one tensor, found that of an operand and of the tensor ", name,
                  "; rename the operand");
  }
  return *std::find_if(tensors.begin(), tensors.end(), is_it);
}

double parse_value(const Json& value, const std::string& path, DType dtype) {
  if (dtype == DType::kBool) return as_bool(value, path) ? 1 : 0;
  if (dtype != DType::kI32) return as_float(value, path);
  const std::int64_t integer = as_integer(value, path);
  if (!std::in_range<std::int32_t>(integer)) fail_argument(path, ": expected an integer within i32, found ", integer);
  return static_cast<double>(integer);
}

std::vector<double> parse_values(const Json& value, const std::string& path, const InputTensor& tensor) {
  as_array(value, path, "an array of the tensor's values");
  if (static_cast<std::uint64_t>(value.size()) != static_cast<std::uint64_t>(tensor.elements)) {
    fail_argument(path, ": expected ", tensor.elements, " values, one for each element of '", tensor.name,
                  "' in row-major order; found ", value.size());
  }
  std::vector<double> values;
  values.reserve(value.size());
  for (const Json& element : value) {
    values.push_back(parse_value(element, concat(path, "[", values.size(), "]"), tensor.dtype));
  }
  return values;
}

void parse_pair(const Json& value, const std::string& path, DType dtype, InputSpec* spec) {
  if (as_array(value, path, "an array of two numbers").size() != 2) {
    fail_argument(path, ": expected two numbers, found ", describe(value));
  }
  spec->low = parse_value(value[0], path + "[0]", dtype);
  spec->high = parse_value(value[1], path + "[1]", dtype);
}

void refuse_kind(const std::string& path, const InputTensor& tensor, const char* expected) {
  fail_argument(path, ": expected ", expected, ", found tensor '", tensor.name, "' of ", to_string(tensor.dtype),
                "; use npy or values, or leave the entry out");
}

void parse_normal(const Json& value, const std::string& path, const InputTensor& tensor, InputSpec* spec) {
  if (!is_floating(tensor.dtype)) refuse_kind(path, tensor, "a tensor of floats for normal");
  parse_pair(value, path, tensor.dtype, spec);
  if (spec->high < 0) fail_argument(path, "[1]: expected a standard deviation of at least 0, found ", spec->high);
}

void parse_uniform(const Json& value, const std::string& path, const InputTensor& tensor, InputSpec* spec) {
  if (tensor.dtype == DType::kBool) refuse_kind(path, tensor, "a tensor of numbers for uniform");
  parse_pair(value, path, tensor.dtype, spec);
  if (spec->high < spec->low) {
    fail_argument(path, ": expected [low, high] with low <= high, found [", spec->low, ", ", spec->high,
                  "]; swap them");
  }
}

void parse_segments(const Json& value, const std::string& path, const InputTensor& tensor, InputSpec* spec) {
  if (tensor.dtype != DType::kI32 || tensor.last_size == 0) {
    refuse_kind(path, tensor, "a tensor of i32 with at least one dimension for segments");
  }
  const std::int64_t count = as_integer(value, path);
  if (count < 1 || count > tensor.last_size) {
    fail_argument(path, ": expected a count from 1 to ", tensor.last_size, ", the size of the last dimension; found ",
                  count);
  }
  spec->high = static_cast<double>(count);
}

InputSpec parse_input(const Json& value, const std::string& path, const InputTensor& tensor) {
  const Fields fields(value, path, {"npy", "values", "normal", "uniform", "segments"});
  if (value.size() != 1) {
    fail_argument(path, ": expected one of npy, values, normal, uniform and segments, found ", value.size(),
                  " of them");
  }
  InputSpec spec;
  spec.tensor = tensor.name;
  if (const Json* file = fields.find("npy")) {
    spec.kind = InputKind::kNpy;
    spec.path = as_string(*file, fields.path_of("npy"));
    if (spec.path.empty())
      fail_argument(fields.path_of("npy"), ": expected the path of a .npy file, found an empty string");
    if (spec.path.find('\0') != std::string::npos)
      fail_argument(fields.path_of("npy"),
                    ": expected the path of a .npy file, found one with a NUL in it: ", spec.path);
  } else if (const Json* values = fields.find("values")) {
    spec.kind = InputKind::kValues;
    spec.values = parse_values(*values, fields.path_of("values"), tensor);
  } else if (const Json* normal = fields.find("normal")) {
    spec.kind = InputKind::kNormal;
    parse_normal(*normal, fields.path_of("normal"), tensor, &spec);
  } else if (const Json* uniform = fields.find("uniform")) {
    spec.kind = InputKind::kUniform;
    parse_uniform(*uniform, fields.path_of("uniform"), tensor, &spec);
  } else if (const Json* segments = fields.find("segments")) {
    spec.kind = InputKind::kSegments;
    parse_segments(*segments, fields.path_of("segments"), tensor, &spec);
  }
  return spec;
}

}  // namespace

std::vector<InputSpec> parse_inputs(const Json& value, const AttentionProblem& problem) {
  const std::vector<InputTensor> tensors = input_tensors(problem);
  std::vector<std::string> names;
  for (const InputTensor& tensor : tensors) names.push_back(tensor.name);
  const Fields fields(value, "inputs", names);
  std::vector<InputSpec> specs;
  for (const auto& [name, entry] : value.items()) {
    const std::string path = fields.path_of(name);
    specs.push_back(parse_input(entry, path, find_tensor(tensors, name, path)));
  }
  return specs;
}

}  // namespace scoremod::problem
