#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "scoremod/problem_file.hpp"
#include "scoremod/sizes.hpp"

#include "base/fail.hpp"
#include "base/nearest_name.hpp"
#include "problem/empty_sizes.hpp"
#include "problem/implied_operands.hpp"
#include "problem/json_reader.hpp"
#include "problem/open_sizes.hpp"
#include "problem/packed_layout.hpp"
#include "problem/parse_inputs.hpp"
#include "problem/parse_program.hpp"
#include "problem/problem_members.hpp"
#include "problem/tensor_view.hpp"
#include "problem/validate_sizes.hpp"

namespace scoremod {
namespace problem {
namespace {

/// The float dtypes of tensors and operands.
const std::array<std::string, 5> kFloatDTypes{"f32", "f16", "bf16", "e4m3", "e5m2"};
const std::array<std::string, 5> kOperandDTypes{"f32", "f16", "bf16", "i32", "bool"};

/// One of `known`, which are names of dtypes.
DType parse_dtype_field(const Json& value, const std::string& path, std::span<const std::string> known) {
  const std::string& name = as_string(value, path);
  if (std::ranges::find(known, name) != known.end()) return *parse_dtype(name);
  fail_argument(path, ": expected one of ", name_list(known), ", found ", describe(value), suggestion(name, known));
}

Layout parse_layout_field(const Json& value, const std::string& path) {
  const std::string& name = as_string(value, path);
  const auto layout = parse_layout(name);
  if (layout) return *layout;
  std::vector<std::string> known{"BSHD", "SBHD", "BHSD", "THD"};
  const bool is_packed = parse_packed_layout(name).has_value();
  if (is_packed) {
    fail_argument(path, ": expected one of ", name_list(known), ", found the packed layout ", describe(value),
                  ", which q, k and v or k and v can have, by their names alone");
  }
  fail_argument(path, ": expected one of ", name_list(known), ", found ", describe(value), suggestion(name, known));
}

/// The packed layout that a field names, if it does.
std::optional<PackedLayout> packed_layout_of(const Json* value) {
  return value != nullptr && value->is_string() ? parse_packed_layout(value->get<std::string>()) : std::nullopt;
}

Sink parse_sink_field(const Json& value, const std::string& path) {
  const std::string& name = as_string(value, path);
  if (const auto sink = parse_sink(name)) return *sink;
  const std::array<std::string, 3> known{to_string(Sink::kNone), to_string(Sink::kOffByOne), to_string(Sink::kLearned)};
  fail_argument(path, ": expected one of ", name_list(known), ", found ", describe(value), suggestion(name, known));
}

/// A size that a file gives as a number: kOpenSize means an open one in an AttentionProblem alone. instead: what may
/// stand there beside a number.
std::int64_t as_known_size(const Json& value, const std::string& path, const char* instead = "") {
  const std::int64_t size = as_integer(value, path);
  if (size == kOpenSize) fail_argument(path, ": expected a size from 1 to ", kMaxSize, instead, ", found ", size);
  return size;
}

/// A size of the problem, which null leaves open.
std::int64_t as_size(const Json& value, const std::string& path) {
  return value.is_null() ? kOpenSize : as_known_size(value, path, ", or null for an open one");
}

std::vector<std::int64_t> as_sizes(const Json& value, const std::string& path) {
  std::vector<std::int64_t> sizes;
  for (const Json& element : as_array(value, path, "an array of integers"))
    sizes.push_back(as_size(element, concat(path, "[", sizes.size(), "]")));
  return sizes;
}

/// The names of a struct's members.
template <class Struct>
std::vector<std::string> member_names() {
  std::vector<std::string> names;
  const Struct value;
  visit_members(value, [&](const char* name, const auto&) { names.emplace_back(name); });
  return names;
}

Strides parse_strides(const Json& value, const std::string& path) {
  const Fields fields(value, path, member_names<Strides>());
  Strides strides;
  visit_members(strides, [&](const char* name, std::int64_t& stride) {
    stride = as_integer(fields.require(name, "a stride in elements"), fields.path_of(name));
  });
  return strides;
}

TensorLayout parse_tensor_layout(const Json* value, const std::string& path, Layout fallback) {
  TensorLayout tensor{fallback, std::nullopt};
  if (value == nullptr) return tensor;
  if (value->is_string()) {
    tensor.layout = parse_layout_field(*value, path);
    return tensor;
  }
  const Fields fields(*value, path, member_names<TensorLayout>());
  auto& [layout, strides] = tensor;
  if (const Json* name = fields.find("layout")) layout = parse_layout_field(*name, fields.path_of("layout"));
  if (const Json* given = fields.find("strides")) strides = parse_strides(*given, fields.path_of("strides"));
  return tensor;
}

PagedKeys parse_paged(const Json& value, const std::string& path) {
  const Fields fields(value, path, member_names<PagedKeys>());
  PagedKeys paged;
  visit_members(paged, [&](const char* name, std::int64_t& count) {
    const Json& given = fields.require(name, "a number of keys or blocks");
    // Kernels are made for a number of keys in a block.
    count =
        &count == &paged.block_size ? as_known_size(given, fields.path_of(name)) : as_size(given, fields.path_of(name));
  });
  return paged;
}

SequenceLengths parse_lengths(const Json& value, const std::string& path) {
  const Fields fields(value, path, member_names<SequenceLengths>());
  SequenceLengths lengths;
  visit_members(lengths, [&](const char* name, bool& flag) {
    if (const Json* given = fields.find(name)) flag = as_bool(*given, fields.path_of(name));
  });
  return lengths;
}

/// The default specs of the program's operands, known before the file's list of operands is read, then of those that
/// fields add.
std::vector<OperandSpec> default_specs(const AttentionProblem& problem, const std::vector<OperandSpec>& known) {
  std::vector<OperandSpec> specs;
  std::vector<OperandDecl> decls = problem.program.operands();
  for (OperandDecl& decl : implied_operands(problem)) {
    if (std::ranges::find(decls, decl.name, &OperandDecl::name) == decls.end()) decls.push_back(std::move(decl));
  }
  for (const OperandDecl& decl : decls) {
    const auto found = std::ranges::find(known, decl.name, &OperandSpec::name);
    specs.push_back(found == known.end() ? default_spec(problem, decl) : *found);
    if (decl.is_table() && specs.back().shape.empty()) specs.back().shape = implied_table_shape(problem, decl.name);
  }
  return specs;
}

OperandSpec parse_operand(const Json& value, const std::string& path, const std::vector<OperandSpec>& defaults) {
  const Fields fields(value, path, member_names<OperandSpec>());
  OperandSpec spec;
  auto& [name, dtype, shape, strides, gradient] = spec;
  name = as_string(fields.require("name", "the operand's name in the program"), fields.path_of("name"));
  const auto found = std::ranges::find(defaults, name, &OperandSpec::name);
  if (found != defaults.end()) spec = *found;
  if (const Json* given = fields.find("dtype"))
    dtype = parse_dtype_field(*given, fields.path_of("dtype"), kOperandDTypes);
  if (const Json* given = fields.find("shape")) shape = as_sizes(*given, fields.path_of("shape"));
  if (const Json* given = fields.find("strides")) strides = as_integers(*given, fields.path_of("strides"));
  if (const Json* given = fields.find("gradient")) gradient = as_bool(*given, fields.path_of("gradient"));
  return spec;
}

/// The operands of the file, then those of the program that it leaves out because nothing about them is left to say.
std::vector<OperandSpec> parse_operands(const Json* value, const AttentionProblem& problem,
                                        const std::vector<OperandSpec>& known) {
  const std::vector<OperandSpec> defaults = default_specs(problem, known);
  std::vector<OperandSpec> specs;
  if (value != nullptr) {
    for (const Json& entry : as_array(*value, "operands", "an array of operands")) {
      specs.push_back(parse_operand(entry, concat("operands[", specs.size(), "]"), defaults));
    }
  }
  for (std::size_t i = 0; i < problem.program.operands().size(); ++i) {
    if (std::ranges::find(specs, defaults[i].name, &OperandSpec::name) != specs.end()) continue;
    const OperandDecl& decl = problem.program.operands()[i];
    if (decl.is_table() && defaults[i].shape.empty()) {
      fail_argument("operands: expected the shape of table '", decl.name,
                    "', which only the file can say; add {\"name\": \"", decl.name, "\", \"shape\": [...]} with ",
                    decl.table_rank, " sizes");
    }
    specs.push_back(defaults[i]);
  }
  return specs;
}

/// Reads each member from the field of its name, in the order of the members.
class ProblemReader {
 public:
  explicit ProblemReader(const Fields& file) : file_(file) {
    const Json* layout = file_.find("layout");
    packed_ = packed_layout_of(layout);
    if (packed_) {
      layout_ = packed_->layout;
    } else if (layout != nullptr) {
      layout_ = parse_layout_field(*layout, "layout");
    }
  }

  AttentionProblem read() {
    visit_members(problem_, *this);
    return problem_;
  }

  void operator()(const char* name, std::int64_t& size) const {
    const std::int64_t* fallback = fallback_of(name);
    const Json* value = fallback == nullptr ? &file_.require(name, "a size") : file_.find(name);
    if (value == nullptr) {
      size = *fallback;
    } else {
      // Kernels are made for head dims.
      size = std::string_view(name).starts_with("dim") ? as_known_size(*value, name) : as_size(*value, name);
    }
  }
  void operator()(const char* name, DType& dtype) const {
    if (const Json* value = file_.find(name)) dtype = parse_dtype_field(*value, name, kFloatDTypes);
  }
  void operator()(const char* name, std::optional<std::int64_t>& number) const {
    if (const Json* value = file_.find(name)) number = as_size(*value, name);
  }
  void operator()(const char* name, std::optional<DType>& dtype) const {
    if (file_.find(name) != nullptr) (*this)(name, dtype.emplace());
  }
  void operator()(const char* name, std::optional<PagedKeys>& paged) const {
    if (const Json* value = file_.find(name)) paged = parse_paged(*value, name);
  }
  void operator()(const char* name, std::optional<TensorLayout>& gradient) const {
    if (file_.find(name) != nullptr) (*this)(name, gradient.emplace());
  }
  void operator()(const char* name, TensorLayout& tensor) const {
    const Json* value = file_.find(name);
    const auto own = packed_layout_of(value);
    // A tensor's own entry takes precedence over the one for all tensors.
    const std::optional<PackedLayout> packed = value != nullptr ? own : packed_;
    const auto role = packed ? part_role(name, *packed) : std::nullopt;
    if (!role) {
      if (own) parse_layout_field(*value, name);  // refuses it
      tensor = parse_tensor_layout(value, name, fallback_layout(name));
      return;
    }
    const AttentionProblem sized = this->sized();
    validate_sizes(sized);
    tensor = part_of(*packed, sized, *role, own ? name : "layout");
  }
  void operator()(const char* name, std::optional<float>& number) const {
    if (const Json* value = file_.find(name)) number = as_float(*value, name);
  }
  void operator()(const char* name, float& number) const {
    if (const Json* value = file_.find(name)) number = as_float(*value, name);
  }
  void operator()(const char* name, bool& flag) const {
    if (const Json* value = file_.find(name)) flag = as_bool(*value, name);
  }
  void operator()(const char* name, SequenceLengths& lengths) const {
    if (const Json* value = file_.find(name)) lengths = parse_lengths(*value, name);
  }
  void operator()(const char* name, Sink& sink) const {
    if (const Json* value = file_.find(name)) sink = parse_sink_field(*value, name);
  }
  void operator()(const char* name, Program& program) {
    ParsedProgram parsed;
    const Json* value = file_.find(name);
    if (has_open_sizes(problem_)) {
      if (value != nullptr) parsed = parse_open_program(*value, name);
    } else {
      const AttentionProblem sized = this->sized();
      validate_sizes(sized);
      if (value != nullptr) parsed = parse_program(*value, name, sized);
      if (is_empty(problem_)) fit_to_sizes(parsed);
    }
    program = parsed.program;
    known_ = std::move(parsed.operands);
  }
  void operator()(const char* name, std::vector<OperandSpec>& operands) const {
    operands = parse_operands(file_.find(name), problem_, known_);
  }

 private:
  /// The problem, or the nonempty twin of an empty one: programs and places are made for sizes.
  AttentionProblem sized() const { return is_empty(problem_) ? nonempty_twin(problem_) : problem_; }

  /// Gives operands with axes the problem's own sizes.
  void fit_to_sizes(ParsedProgram& parsed) const {
    for (OperandSpec& spec : parsed.operands) {
      const std::vector<OperandDecl>& decls = parsed.program.operands();
      const auto decl = std::ranges::find(decls, spec.name, &OperandDecl::name);
      if (decl != decls.end() && !decl->is_table()) spec.shape = default_spec(problem_, *decl).shape;
    }
  }

  /// Ready-made modifiers are made for sizes: those that are the same for two choices of the open ones are for all.
  ParsedProgram parse_open_program(const Json& value, const char* name) const {
    constexpr std::int64_t kOther = 7;
    AttentionProblem one = with_any_sizes(problem_, 1);
    AttentionProblem other = with_any_sizes(problem_, kOther);
    validate_sizes(one);
    ParsedProgram parsed = parse_program(value, name, one);
    const ParsedProgram again = parse_program(value, name, other);
    if (parsed.program != again.program) refuse_open_program(name);
    for (std::size_t i = 0; i < parsed.operands.size(); ++i) {
      OperandSpec& spec = parsed.operands[i];
      const std::vector<OperandDecl>& decls = parsed.program.operands();
      const auto decl = std::ranges::find(decls, spec.name, &OperandDecl::name);
      if (decl == decls.end()) continue;
      if (!decl->is_table())
        spec.shape = default_spec(problem_, *decl).shape;
      else if (spec != again.operands[i])
        refuse_open_program(name);
    }
    return parsed;
  }
  [[noreturn]] static void refuse_open_program(const char* name) {
    fail_argument(name,
                  ": expected modifiers that are the same at all sizes, since the problem leaves some open (null); ",
                  "found one that is made for the sizes; give these as numbers, or write the modifier as text");
  }

  /// The layout of a tensor, or of its gradient, where a file does not say it.
  Layout fallback_layout(std::string_view name) const {
    if (name == "dq") return problem_.q.layout;
    if (name == "dk") return problem_.k.layout;
    if (name == "dv") return problem_.v.layout;
    if (name == "d_o") return problem_.o.layout;
    const auto& tokens = name == "k" || name == "v" ? problem_.tokens_kv : problem_.tokens_q;
    return tokens ? Layout::kTHD : layout_;
  }

  /// The tensor of this name, or the one whose gradient it is, if it is one of a packed layout's.
  static std::optional<TensorRole> part_role(std::string_view name, const PackedLayout& packed) {
    if ((name == "q" || name == "dq") && packed.parts == 3) return TensorRole::kQ;
    if (name == "k" || name == "dk") return TensorRole::kK;
    if (name == "v" || name == "dv") return TensorRole::kV;
    return std::nullopt;
  }

  /// The size, declared before, that this one has where a file leaves it out; null where a file must say it.
  const std::int64_t* fallback_of(std::string_view name) const {
    if (name == "heads_kv") return &problem_.heads_q;
    if (name == "seq_kv") return &problem_.seq_q;
    if (name == "dim_v") return &problem_.dim_qk;
    return nullptr;
  }

  const Fields& file_;
  Layout layout_ = Layout::kBSHD;
  std::optional<PackedLayout> packed_;  ///< `layout` for q, k and v
  AttentionProblem problem_;
  std::vector<OperandSpec> known_;  ///< operands whose shapes came with the program
};

std::vector<std::string> file_fields() {
  std::vector<std::string> fields{"$schema", "description"};
  for (std::string& member : member_names<AttentionProblem>()) fields.push_back(std::move(member));
  fields.insert(fields.end(), {"layout", "inputs", "seed"});
  return fields;
}

/// Parses the file's remarks, which only its readers use.
void parse_remarks(const Fields& file) {
  if (const Json* schema = file.find("$schema")) as_string(*schema, "$schema");
  if (const Json* description = file.find("description")) as_string(*description, "description");
}

std::uint64_t parse_seed(const Json& value) {
  const std::int64_t seed = as_integer(value, "seed");
  if (seed < 0) fail_argument("seed: expected an integer of at least 0, found ", seed);
  return static_cast<std::uint64_t>(seed);
}

}  // namespace
}  // namespace problem

ProblemFile parse_problem_file(std::string_view json) {
  const problem::Json root = problem::read_json(json);
  const problem::Fields file(root, "", problem::file_fields());
  problem::parse_remarks(file);
  ProblemFile parsed;
  parsed.problem = problem::ProblemReader(file).read();
  const problem::Json* inputs = file.find("inputs");
  if (const problem::Json* seed = file.find("seed")) parsed.seed = problem::parse_seed(*seed);
  if (has_open_sizes(parsed.problem)) {
    problem_at(parsed.problem, problem::any_sizes(parsed.problem));
    if (inputs != nullptr)
      fail_argument("inputs: expected none in a problem with open sizes (null), found some; give the sizes as numbers");
    return parsed;
  }
  problem::validate_for_calls(parsed.problem);
  if (inputs != nullptr) parsed.inputs = problem::parse_inputs(*inputs, parsed.problem);
  return parsed;
}

AttentionProblem parse_problem(std::string_view json) { return parse_problem_file(json).problem; }

}  // namespace scoremod
