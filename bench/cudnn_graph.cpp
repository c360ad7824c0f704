#include "cudnn_graph.hpp"

#include <algorithm>
#include <cmath>
#include <map>

// The only file of the benchmark that includes the frontend: it takes most of a minute to compile.
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#include <cudnn_frontend.h>
#include <dlfcn.h>

#include "scoremod/error.hpp"
#include "scoremod/tensors.hpp"

// The frontend finds cuDNN's functions through this handle.
namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace scoremod::bench {
namespace {

namespace fe = cudnn_frontend;
namespace modifiers = fe::graph::attn::score_modifiers;
using Graph = fe::graph::Graph;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;
using Mode = fe::PointwiseMode_t;
using Type = fe::DataType_t;
using Sizes = std::vector<std::int64_t>;

[[noreturn]] void fail(ErrorCode code, const std::string& text) { throw Error(code, text); }

void use_cudnn() {
  if (fe::cudnn_dlhandle == nullptr) fe::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_GLOBAL);
  if (fe::cudnn_dlhandle == nullptr) fail(ErrorCode::kEnvironment, std::string("no cuDNN 9: ") + dlerror());
}

void check(const fe::error_t& status, const char* what, ErrorCode code) {
  if (status.is_bad()) fail(code, std::string(what) + ": " + status.err_msg);
}

Type data_type(DType dtype) {
  switch (dtype) {
    case DType::kF32: return Type::FLOAT;
    case DType::kF16: return Type::HALF;
    case DType::kBF16: return Type::BFLOAT16;
    case DType::kI32: return Type::INT32;
    case DType::kBool: return Type::BOOLEAN;
    case DType::kE4M3: return Type::FP8_E4M3;
    case DType::kE5M2: return Type::FP8_E5M2;
  }
  return Type::NOT_SET;
}

/// The tensors of a graph by the names of execute()'s pointers.
class GraphTensors {
 public:
  GraphTensors(Graph& graph, const AttentionProblem& problem) : graph_(graph), infos_(tensors_of(problem)) {}

  /// An input that lies as this tensor of the problem: q, k, v or o.
  Tensor input(const std::string& name, const std::string& like) {
    return input(name, dims_of(like), strides_of(like), info(like).dtype);
  }

  Tensor input(const std::string& name, const Sizes& dims, const Sizes& strides, Type type) {
    return graph_.tensor(
        fe::graph::Tensor_attributes().set_uid(add(name)).set_dim(dims).set_stride(strides).set_data_type(type));
  }
  Tensor input(const std::string& name, const Sizes& dims, const Sizes& strides, DType dtype) {
    return input(name, dims, strides, data_type(dtype));
  }

  void output(const Tensor& tensor, const std::string& name, const std::string& like) {
    tensor->set_output(true).set_uid(add(name)).set_dim(dims_of(like)).set_stride(strides_of(like));
  }

  const TensorInfo& info(const std::string& name) const { return *std::ranges::find(infos_, name, &TensorInfo::name); }
  std::int64_t add(const std::string& name) {
    names_[static_cast<std::int64_t>(names_.size()) + 1] = name;
    return static_cast<std::int64_t>(names_.size());
  }
  const std::map<std::int64_t, std::string>& names() const { return names_; }

 private:
  /// In the order batch, head, sequence, dim, as cuDNN has it, from the tensor's own order.
  Sizes ordered(const std::string& name, const Sizes& values) const {
    Sizes found;
    for (const char dimension : std::string("BHSD")) found.push_back(values[info(name).dimensions.find(dimension)]);
    return found;
  }
  Sizes dims_of(const std::string& name) const { return ordered(name, info(name).shape); }
  Sizes strides_of(const std::string& name) const { return ordered(name, info(name).strides); }

  Graph& graph_;
  std::vector<TensorInfo> infos_;
  std::map<std::int64_t, std::string> names_;
};

Tensor constant(float value) { return std::make_shared<fe::graph::Tensor_attributes>(value); }
Tensor constant(std::int64_t value) {
  return std::make_shared<fe::graph::Tensor_attributes>(static_cast<std::int32_t>(value));
}

/// A form's modifier in one direction's graph. Comparisons end in a select against -inf. Tensors that cuDNN misreads in
/// the obvious shape have the shape that docs/internals/cudnn_findings.md names.
class Modifier {
 public:
  Modifier(const BenchCase& bench_case, const ReferenceForm& form, GraphTensors& tensors) : form_(form) {
    const AttentionProblem& p = bench_case.problem;
    if (!form.alibi.empty()) {
      slopes_ = tensors.input(form.alibi, {1, p.heads_q, 1, 1}, {p.heads_q, 1, 1, 1}, Type::FLOAT);
    }
    if (!form.bias.empty()) bias_ = bias_input(p, tensors);
    if (!form.lengths.empty()) {
      // Along the rows with stride 0: B,1,1,1 is read wrongly from the second row on.
      lengths_ = tensors.input(form.lengths, {p.batch, 1, p.seq_q, 1}, {1, 1, 0, 1}, Type::INT32);
    }
    if (form.query_documents.empty()) return;
    query_ids_ = tensors.input(form.query_documents, {p.batch, 1, p.seq_q, 1}, {p.seq_q, p.seq_q, 1, 1}, Type::INT32);
    // An operand that varies along the keys alone gives wrong results in backward.
    const bool forward = bench_case.direction == Direction::kForward;
    const Sizes dims{p.batch, 1, forward ? 1 : p.seq_q, p.seq_kv};
    const Sizes strides{p.seq_kv, p.seq_kv, forward ? p.seq_kv : 0, 1};
    key_ids_ = tensors.input(form.key_documents, dims, strides, Type::INT32);
  }

  const Tensor& bias() const { return bias_; }

  Tensor forward(const std::shared_ptr<Graph>& graph, Tensor score) {
    graph_ = graph.get();
    score_ = score;
    if (form_.soft_cap) {
      tanh_ = unary(Mode::TANH_FWD, binary(Mode::MUL, score, constant(1 / *form_.soft_cap)));
      score = binary(Mode::MUL, tanh_, constant(*form_.soft_cap));
    }
    if (form_.relative_bias) score = binary(Mode::ADD, score, integer(Mode::SUB, index(2), index(3)));
    if (slopes_) {
      score = binary(Mode::ADD, score, binary(Mode::MUL, integer(Mode::SUB, index(3), index(2)), slopes_));
    }
    if (bias_ && !form_.bias_attribute) score = binary(Mode::ADD, score, bias_);
    if (form_.prefix) {
      score = keep(score, compare(Mode::CMP_GE, integer(Mode::MAX, index(2), constant(*form_.prefix - 1)), index(3)));
    }
    if (query_ids_) {
      // An operand may not come first.
      const Tensor ids = integer(Mode::ADD, integer(Mode::MUL, index(2), constant(std::int64_t{0})), query_ids_);
      score = keep(score, compare(Mode::CMP_EQ, ids, key_ids_));
    }
    if (lengths_) score = keep(score, compare(Mode::CMP_LT, index(3), lengths_));
    return form_.causal ? modifiers::causal_mask(graph, score) : score;
  }

  /// Everything but the soft cap adds or masks, and passes the gradient on as it is.
  Tensor backward(const std::shared_ptr<Graph>& graph, const Tensor& upstream) {
    graph_ = graph.get();
    if (!form_.soft_cap) return upstream;
    return binary(Mode::SUB, upstream, binary(Mode::MUL, upstream, binary(Mode::MUL, tanh_, tanh_)));
  }

 private:
  using Attributes = fe::graph::Pointwise_attributes;

  Tensor bias_input(const AttentionProblem& p, GraphTensors& tensors) const {
    const std::int64_t plane = p.seq_q * p.seq_kv;
    return tensors.input(form_.bias, {1, p.heads_q, p.seq_q, p.seq_kv}, {p.heads_q * plane, plane, p.seq_kv, 1},
                         tensors.info(form_.bias).dtype);
  }

  static Tensor typed(Tensor tensor, Type type) {
    tensor->set_data_type(type);
    return tensor;
  }
  static Attributes with(Mode mode, Type compute) { return Attributes().set_mode(mode).set_compute_data_type(compute); }
  Tensor unary(Mode mode, const Tensor& x) { return typed(graph_->pointwise(x, with(mode, Type::FLOAT)), Type::FLOAT); }
  Tensor binary(Mode mode, const Tensor& x, const Tensor& y) {
    return typed(graph_->pointwise(x, y, with(mode, Type::FLOAT)), Type::FLOAT);
  }
  Tensor integer(Mode mode, const Tensor& x, const Tensor& y) {
    return typed(graph_->pointwise(x, y, with(mode, Type::INT32)), Type::INT32);
  }
  Tensor compare(Mode mode, const Tensor& x, const Tensor& y) {
    return typed(graph_->pointwise(x, y, with(mode, Type::INT32)), Type::BOOLEAN);
  }
  Tensor index(int axis) {
    return typed(graph_->pointwise(score_, with(Mode::GEN_INDEX, Type::INT32).set_axis(axis)), Type::INT32);
  }
  Tensor keep(const Tensor& x, const Tensor& kept) {
    return typed(graph_->pointwise(x, constant(modifiers::get_negative_inf_value()), kept,
                                   with(Mode::BINARY_SELECT, Type::FLOAT)),
                 Type::FLOAT);
  }

  const ReferenceForm form_;
  Graph* graph_ = nullptr;
  Tensor slopes_, bias_, lengths_, query_ids_, key_ids_;
  Tensor score_, tanh_;
};

/// Sets the attributes that forward and backward share.
template <class Attributes>
void set_common(const ReferenceForm& form, const AttentionProblem& problem, const std::shared_ptr<Modifier>& modifier,
                Attributes& attributes) {
  attributes.set_attn_scale(problem.scale.value_or(1 / std::sqrt(static_cast<float>(problem.dim_qk))));
  if (form.bias_attribute) attributes.set_bias(const_cast<Tensor&>(modifier->bias()));
  if (!form.only_flags()) {
    attributes.set_score_mod(
        [modifier](std::shared_ptr<Graph> graph, Tensor score) { return modifier->forward(graph, score); });
    return;
  }
  if (form.causal)
    attributes.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
  if (form.window) attributes.set_diagonal_band_left_bound(static_cast<int>(*form.window));
}

Sizes stats_dims(const AttentionProblem& p) { return {p.batch, p.heads_q, p.seq_q, 1}; }
Sizes stats_strides(const AttentionProblem& p) { return {p.heads_q * p.seq_q, p.seq_q, 1, 1}; }

void add_forward(const AttentionProblem& problem, const ReferenceForm& form, const std::shared_ptr<Modifier>& modifier,
                 GraphTensors& tensors, Graph& graph) {
  auto attributes = fe::graph::SDPA_attributes().set_generate_stats(true);
  set_common(form, problem, modifier, attributes);
  auto [o, stats] = graph.sdpa(tensors.input("q", "q"), tensors.input("k", "k"), tensors.input("v", "v"), attributes);
  tensors.output(o, "o", "o");
  stats->set_output(true).set_uid(tensors.add("lse")).set_data_type(Type::FLOAT);
  stats->set_dim(stats_dims(problem)).set_stride(stats_strides(problem));
}

void add_backward(const BenchCase& bench_case, const ReferenceForm& form, const std::shared_ptr<Modifier>& modifier,
                  GraphTensors& tensors, Graph& graph) {
  const AttentionProblem& problem = bench_case.problem;
  auto attributes = fe::graph::SDPA_backward_attributes();
  set_common(form, problem, modifier, attributes);
  if (form.soft_cap) {
    attributes.set_score_mod_bprop(
        [modifier](std::shared_ptr<Graph> g, Tensor upstream) { return modifier->backward(g, upstream); });
  }
  if (form.bias_attribute && bench_case.operand_gradients) {
    const Tensor bias = modifier->bias();
    attributes.set_dbias(graph.tensor(fe::graph::Tensor_attributes()
                                          .set_uid(tensors.add("d_" + form.bias))
                                          .set_dim(bias->get_dim())
                                          .set_stride(bias->get_stride())
                                          .set_data_type(bias->get_data_type())));
  }
  const Tensor stats = tensors.input("lse", stats_dims(problem), stats_strides(problem), Type::FLOAT);
  auto [dq, dk, dv] = graph.sdpa_backward(tensors.input("q", "q"), tensors.input("k", "k"), tensors.input("v", "v"),
                                          tensors.input("o", "o"), tensors.input("d_o", "o"), stats, attributes);
  tensors.output(dq, "dq", "q");
  tensors.output(dk, "dk", "k");
  tensors.output(dv, "dv", "v");
}

/// A handle for the life of the process, made when it is first asked for.
cudnnHandle_t device_handle() {
  static cudnnHandle_t handle = [] {
    cudnnHandle_t made = nullptr;
    if (fe::detail::create_handle(&made) != CUDNN_STATUS_SUCCESS) {
      fail(ErrorCode::kEnvironment, "cuDNN has no handle for the current device");
    }
    return made;
  }();
  return handle;
}

class BuiltGraph final : public CudnnGraph {
 public:
  BuiltGraph(const BenchCase& bench_case, const ReferenceForm& form, const std::string& device) {
    graph_.set_io_data_type(data_type(bench_case.problem.dtype))
        .set_intermediate_data_type(Type::FLOAT)
        .set_compute_data_type(Type::FLOAT);
    if (device.empty())
      handle_ = device_handle();
    else
      describe(device);
    GraphTensors tensors(graph_, bench_case.problem);
    const auto modifier = std::make_shared<Modifier>(bench_case, form, tensors);
    if (bench_case.direction == Direction::kForward)
      add_forward(bench_case.problem, form, modifier, tensors, graph_);
    else
      add_backward(bench_case, form, modifier, tensors, graph_);
    make_plan();
    const auto& slots = graph_.varpack_template;
    for (const int slot : slots.user_slots) {
      names_.push_back(tensors.names().at(slots.all_uids[static_cast<std::size_t>(slot)]));
    }
  }

  std::size_t workspace_bytes() const override {
    std::int64_t bytes = 0;
    check(graph_.get_workspace_size(bytes), "get_workspace_size", ErrorCode::kEnvironment);
    return static_cast<std::size_t>(bytes);
  }

  const std::vector<std::string>& tensors() const override { return names_; }

  void use_stream(void* stream) const override {
    if (fe::detail::set_stream(handle_, static_cast<cudaStream_t>(stream)) != CUDNN_STATUS_SUCCESS) {
      fail(ErrorCode::kEnvironment, "cuDNN does not take the stream");
    }
  }

  void execute(std::span<void* const> pointers, void* workspace) const override {
    // The frontend takes pointers that it doesn't change as void**.
    check(graph_.execute(handle_, const_cast<void**>(pointers.data()), static_cast<int>(pointers.size()), workspace),
          "execute", ErrorCode::kEnvironment);
  }

 private:
  void describe(const std::string& device) {
    const auto properties = std::make_shared<fe::DeviceProperties>();
    check(properties->deserialize({device.begin(), device.end()}), "device properties", ErrorCode::kInvalidArgument);
    graph_.set_device_properties(properties);
    const auto json = nlohmann::json::parse(device);
    graph_.set_sm_version(json.at("deviceVer").get<int>() / 10);
  }

  void make_plan() {
    constexpr ErrorCode kRefused = ErrorCode::kUnsupported;
    check(graph_.validate(), "validate", kRefused);
    check(graph_.build_operation_graph(handle_), "build_operation_graph", kRefused);
    check(graph_.create_execution_plans({fe::HeurMode_t::A}), "create_execution_plans", kRefused);
    check(graph_.check_support(), "check_support", kRefused);
    check(graph_.build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE), "build_plans", kRefused);
  }

  Graph graph_;
  cudnnHandle_t handle_ = nullptr;
  std::vector<std::string> names_;
};

}  // namespace

std::unique_ptr<CudnnGraph> CudnnGraph::build(const BenchCase& bench_case, const ReferenceForm& form,
                                              const std::string& device_properties) {
  use_cudnn();
  try {
    return std::make_unique<BuiltGraph>(bench_case, form, device_properties);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    // Adding a node throws when neither of the frontend's implementations takes it.
    fail(ErrorCode::kUnsupported, error.what());
  }
}

std::string cudnn_version() {
  try {
    use_cudnn();
  } catch (const Error&) {
    return "none";
  }
  return fe::detail::get_backend_version_string();
}

std::string cudnn_frontend_version() {
  return std::to_string(CUDNN_FRONTEND_MAJOR_VERSION) + "." + std::to_string(CUDNN_FRONTEND_MINOR_VERSION) + "." +
         std::to_string(CUDNN_FRONTEND_PATCH_VERSION);
}

}  // namespace scoremod::bench
