#include "tools/cudnn/run_case.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <span>

#include "scoremod/inputs.hpp"

#include "backend/cuda/device/device.hpp"
#include "backend/cuda/device/own_stream.hpp"
#include "backend/cudnn/graph/engine.hpp"
#include "backend/cudnn/graph/handle.hpp"
#include "backend/cudnn/lowering/fused_gradient.hpp"
#include "backend/cudnn/lowering/node_budget.hpp"
#include "backend/reference/dense_tensor.hpp"
#include "backend/reference/naive_attention.hpp"
#include "base/element.hpp"
#include "base/fail.hpp"
#include "compiler/pipeline.hpp"
#include "problem/strided_tensor.hpp"
#include "problem/tensor_view.hpp"
#include "tools/cudnn/device_call.hpp"
#include "verification/output_error.hpp"

namespace scoremod::explorer {
namespace {

using backend::Direction;
using problem::TensorRole;
using verification::lse_error;
using verification::output_error;
using verification::row_classes;
using verification::RowClass;
namespace cuda = backend::cuda;
namespace cudnn = backend::cudnn;
namespace reference = backend::reference;

constexpr std::int64_t kTableExtent = 32;

/// The last dimension outermost, and room for another element after each.
std::vector<std::int64_t> strides_with_gaps(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides;
  std::int64_t stride = 2;
  for (const std::int64_t extent : shape) {
    strides.push_back(stride);
    stride *= extent + 1;
  }
  return strides;
}

std::string replaced(std::string text, const std::string& word, std::int64_t number) {
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word)) {
    text.replace(at, word.size(), std::to_string(number));
  }
  return text;
}

AttentionProblem problem_of(const PatternCase& pattern, const Setting& s) {
  AttentionProblem problem;
  problem.batch = s.batch;
  problem.heads_q = s.heads_q;
  problem.heads_kv = s.heads_kv;
  problem.seq_q = s.seq_q;
  problem.seq_kv = s.seq_kv;
  problem.dim_qk = s.dim_qk;
  problem.dim_v = s.dim_v;
  problem.dtype = s.dtype;
  for (TensorLayout* layout : {&problem.q, &problem.k, &problem.v, &problem.o}) layout->layout = s.layout;
  problem.program =
      Program::parse(replaced(replaced(pattern.program, "{shift}", s.seq_kv - s.seq_q), "{length}", s.seq_kv));
  problem.backward = true;
  problem.stats = true;
  for (const OperandDecl& decl : problem.program.operands()) {
    OperandSpec& spec = problem.operands.emplace_back(problem::default_spec(problem, decl));
    if (decl.type == Type::kF32) spec.dtype = pattern.dtype_of_operands(s.dtype);
    if (decl.is_table()) spec.shape.assign(static_cast<std::size_t>(decl.table_rank), kTableExtent);
    if (pattern.layout == OperandLayout::kStrided) spec.strides = strides_with_gaps(spec.shape);
  }
  return problem;
}

std::vector<double> dense_f32(const std::vector<std::byte>& bytes) {
  std::vector<double> values(bytes.size() / sizeof(float));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = load_element<double>(bytes.data(), DType::kF32, static_cast<std::int64_t>(i));
  }
  return values;
}

/// Compiles, lowers with every pattern allowed and mutates; the reasons when the lowering has no pattern at all.
std::optional<PreparedCall> prepare(const PatternCase& pattern, const Setting& setting, Direction direction,
                                    const cudnn::PatternFilter& allowed, std::string* why) {
  compiler::PipelineOptions passes;
  if (pattern.as_written) passes.disabled = compiler::step_names();
  PreparedCall prepared{compiler::compile(problem_of(pattern, setting), passes), {}, direction, pattern.offsets};
  if (pattern.has_gradient()) prepared.operand_gradient = 0;
  cudnn::LoweringOptions options;
  options.backward = direction == Direction::kBackward;
  options.with_offsets = pattern.offsets != IndexOffsets{};
  options.node_budget = pattern.node_budget;
  options.allowed = [&](std::string_view name) {
    return allowed(name) && std::ranges::find(pattern.denied, name) == pattern.denied.end();
  };
  cudnn::LoweringResult result = cudnn::lower(prepared.compiled, options);
  if (!result.lowered) {
    for (const std::string& reason : result.reasons) *why += reason;
    return std::nullopt;
  }
  prepared.modifier = std::move(*result.lowered);
  if (pattern.mutation) pattern.mutation(prepared.modifier.graph);
  return prepared;
}

cudnn::BuildOutcome build(const PreparedCall& prepared) {
  const cudnn::PlanTask task{prepared.direction, prepared.operand_gradient};
  const auto graph = cudnn::attention_graph(prepared.compiled.problem, task, prepared.modifier.graph);
  return cudnn::build_plan(graph, cudnn::thread_handle());
}

reference::InputTensors input_tensors(const ProblemInputs& inputs, const std::vector<const void*>& operands) {
  return {inputs.q.data(), inputs.k.data(), inputs.v.data(), inputs.d_o.data(), operands};
}

std::vector<OutputError> run_forward(const PreparedCall& prepared, const ProblemInputs& inputs,
                                     const cudnn::EnginePlan& plan, const reference::ForwardResult<double>& truth,
                                     const reference::ForwardResult<float>& plain) {
  const AttentionProblem& problem = prepared.compiled.problem;
  DeviceCall call(prepared, inputs);
  call.output(cudnn::kUidO, problem::bytes_of(problem, TensorRole::kO));
  call.output(cudnn::kUidStats, truth.lse.size() * sizeof(float));
  call.execute(plan);
  cuda::wait_for_own_stream();
  const std::vector<RowClass> classes = row_classes(truth.lse, plain.lse, problem.dtype);
  const problem::StridedTensor o = problem::tensor_of("o", problem, TensorRole::kO);
  const auto found = reference::load_dense<double>(o, call.download(cudnn::kUidO).data());
  return {output_error(o, found, truth.o, plain.o, classes),
          lse_error(dense_f32(call.download(cudnn::kUidStats)), truth.lse, plain.lse, problem.dtype, classes)};
}

std::vector<OutputError> run_backward(const PreparedCall& prepared, const ProblemInputs& inputs,
                                      const reference::InputTensors& tensors, const cudnn::EnginePlan& plan,
                                      const reference::ForwardResult<double>& forward) {
  const AttentionProblem& problem = prepared.compiled.problem;
  const backend::CallParameters parameters{problem.effective_scale(), prepared.offsets, nullptr};
  DeviceCall call(prepared, inputs);
  // The forward's true results: an error of the forward must not show here.
  std::vector<std::byte> o(problem::bytes_of(problem, TensorRole::kO));
  reference::store_dense(problem, TensorRole::kO, forward.o, o.data());
  std::vector<std::byte> lse(forward.lse.size() * sizeof(float));
  for (std::size_t i = 0; i < forward.lse.size(); ++i)
    store_element(lse.data(), DType::kF32, static_cast<std::int64_t>(i), forward.lse[i]);
  call.upload(cudnn::kUidO, o);
  call.upload(cudnn::kUidStats, lse);
  call.upload(cudnn::kUidDO, inputs.d_o);
  call.output(cudnn::kUidDQ, problem::bytes_of(problem, TensorRole::kQ));
  call.output(cudnn::kUidDK, problem::bytes_of(problem, TensorRole::kK));
  call.output(cudnn::kUidDV, problem::bytes_of(problem, TensorRole::kV));
  if (const auto operand = prepared.operand_gradient) {
    call.output(cudnn::kUidDBias, problem::bytes_of(problem::spec_of(problem, *operand)));
  }
  call.execute(plan);
  cuda::wait_for_own_stream();
  const auto truth = reference::backward<double>(prepared.compiled, tensors, parameters);
  const auto plain = reference::backward<float>(prepared.compiled, tensors, parameters);
  const auto plain_lse = reference::forward<float>(prepared.compiled, tensors, parameters).lse;
  const std::vector<RowClass> classes = row_classes(forward.lse, plain_lse, problem.dtype);
  const std::span<const RowClass> all = std::span(classes).first(1);
  const auto judged = [&](const problem::StridedTensor& tensor, cudnn::Uid uid, const auto& right, const auto& rounded,
                          std::span<const RowClass> rows) {
    return output_error(tensor, reference::load_dense<double>(tensor, call.download(uid).data()), right, rounded, rows);
  };
  const auto tensor = [&](const char* name, TensorRole role) { return problem::tensor_of(name, problem, role); };
  std::vector<OutputError> errors{judged(tensor("dq", TensorRole::kQ), cudnn::kUidDQ, truth.dq, plain.dq, classes),
                                  judged(tensor("dk", TensorRole::kK), cudnn::kUidDK, truth.dk, plain.dk, all),
                                  judged(tensor("dv", TensorRole::kV), cudnn::kUidDV, truth.dv, plain.dv, all)};
  if (const auto operand = prepared.operand_gradient) {
    const OperandSpec& spec = problem::spec_of(problem, *operand);
    errors.push_back(judged(problem::tensor_of("d_operand", spec), cudnn::kUidDBias, truth.d_operands[*operand],
                            plain.d_operands[*operand], all));
  }
  return errors;
}

const Setting kTimedSetting{"timed", 4, 16, 16, 4096, 4096, 128, 128, DType::kBF16, Layout::kBSHD};
constexpr double kNotTimed = 0;
constexpr int kTimedRepeats = 9;
/// A larger operand would measure little but the memory's bandwidth, and take long to upload.
constexpr std::size_t kMaxTimedOperandBytes = std::size_t{256} << 20;

/// Inputs for timing: bf16 numbers of magnitude around one with all bits in use. An MMA of constants draws less power
/// and so runs faster than one of data. Empty when an operand is too large.
ProblemInputs patterned_inputs(const AttentionProblem& problem) {
  const auto fill = [](std::size_t bytes) {
    std::vector<std::byte> data(bytes);
    std::uint32_t state = 1;
    for (std::size_t i = 0; i + 1 < bytes; i += 2) {
      state = state * 1664525u + 1013904223u;  // Numerical Recipes' generator
      const float value = static_cast<float>(state >> 8) * 0x1p-23f - 1.0f;
      store_element(data.data(), DType::kBF16, static_cast<std::int64_t>(i / 2), value);
    }
    return data;
  };
  static const std::vector<std::byte> tensor = fill(problem::bytes_of(problem, TensorRole::kQ));
  ProblemInputs inputs;
  for (std::size_t i = 0; i < problem.operands.size(); ++i) {
    const std::size_t bytes = problem::bytes_of(problem::spec_of(problem, static_cast<std::uint32_t>(i)));
    if (bytes > kMaxTimedOperandBytes) return {};
    inputs.operands.push_back({problem.operands[i].name, std::vector<std::byte>(bytes, std::byte{0})});
  }
  inputs.q = inputs.k = inputs.v = inputs.d_o = tensor;
  return inputs;
}

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

CaseResult run_case(const PatternCase& pattern, const Setting& setting, Direction direction,
                    const cudnn::PatternFilter& allowed) {
  CaseResult result;
  const auto prepared = prepare(pattern, setting, direction, allowed, &result.text);
  if (!prepared) {
    result.verdict = "not_lowered";
    return result;
  }
  result.uses.assign(prepared->modifier.patterns.begin(), prepared->modifier.patterns.end());
  result.nodes = cudnn::node_count(prepared->modifier.graph);
  const AttentionProblem& problem = prepared->compiled.problem;
  const auto start = std::chrono::steady_clock::now();
  const cudnn::BuildOutcome built = build(*prepared);
  result.build_ms = milliseconds_since(start);
  if (built.status != cudnn::BuildStatus::kBuilt) {
    result.verdict = "refused";
    result.text = built.text;
    return result;
  }
  const ProblemInputs inputs = random_inputs(problem);
  std::vector<const void*> operands;
  for (const OwnedOperand& operand : inputs.operands) operands.push_back(operand.bytes.data());
  const reference::InputTensors tensors = input_tensors(inputs, operands);
  const backend::CallParameters parameters{problem.effective_scale(), pattern.offsets, nullptr};
  const auto truth = reference::forward<double>(prepared->compiled, tensors, parameters);
  result.outputs = direction == Direction::kForward
                       ? run_forward(*prepared, inputs, *built.plan, truth,
                                     reference::forward<float>(prepared->compiled, tensors, parameters))
                       : run_backward(*prepared, inputs, tensors, *built.plan, truth);
  const bool right = std::ranges::all_of(result.outputs, &OutputError::right);
  result.verdict = right ? "right" : "wrong";
  return result;
}

std::optional<cudnn::ModifierGraph> timed_modifier(const PatternCase& pattern, Direction direction,
                                                   const cudnn::PatternFilter& allowed) {
  std::string why;
  auto prepared = prepare(pattern, kTimedSetting, direction, allowed, &why);
  if (!prepared) return std::nullopt;
  return std::move(prepared->modifier.graph);
}

double time_case(const PatternCase& pattern, Direction direction, const cudnn::PatternFilter& allowed) {
  std::string why;
  auto prepared = prepare(pattern, kTimedSetting, direction, allowed, &why);
  if (!prepared) return kNotTimed;
  prepared->zero_computed = true;
  const AttentionProblem& problem = prepared->compiled.problem;
  const ProblemInputs inputs = patterned_inputs(problem);
  if (inputs.q.empty()) return kNotTimed;
  const cudnn::BuildOutcome built = build(*prepared);
  if (!built.plan) return kNotTimed;
  DeviceCall call(*prepared, inputs);
  call.upload(cudnn::kUidO, inputs.q);
  call.upload(cudnn::kUidDO, inputs.d_o);
  call.upload(cudnn::kUidStats,
              std::vector<std::byte>(static_cast<std::size_t>(problem.batch * problem.heads_q * problem.seq_q) *
                                     sizeof(float)));
  call.output(cudnn::kUidDQ, inputs.q.size());
  call.output(cudnn::kUidDK, inputs.k.size());
  call.output(cudnn::kUidDV, inputs.v.size());
  if (const auto operand = prepared->operand_gradient)
    call.output(cudnn::kUidDBias, inputs.operands[*operand].bytes.size());
  std::vector<double> times;
  cuda::DeviceTimer timer(cuda::own_stream());
  for (int repeat = 0; repeat < kTimedRepeats; ++repeat) {
    timer.start();
    call.execute(*built.plan);
    times.push_back(timer.stop());
  }
  std::ranges::sort(times);
  return times[times.size() / 2];
}

}  // namespace scoremod::explorer
