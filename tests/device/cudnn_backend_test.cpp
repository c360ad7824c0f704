#include "backend/cudnn/cudnn_backend.hpp"

#include <chrono>
#include <cstdlib>

#include "scoremod/attention.hpp"
#include "scoremod/cache.hpp"
#include "scoremod/check.hpp"
#include "scoremod/error.hpp"
#include "scoremod/inputs.hpp"
#include "scoremod/staging.hpp"
#include "scoremod/tensors.hpp"

#include "backend/cuda/device/driver_call.hpp"
#include "backend/cuda/device/runtime_call.hpp"
#include "backend/cudnn/graph/library.hpp"
#include "base/fail.hpp"
#include "compiler/pipeline.hpp"
#include "device/device_fixture.hpp"
#include "planner/plan_problem.hpp"

namespace scoremod {
namespace {

using backend::Direction;
using backend::cuda::check_runtime;

AttentionProblem problem_of(const std::string& program, bool backward) {
  AttentionProblem problem;
  problem.batch = 2;
  problem.heads_q = 4;
  problem.heads_kv = 2;
  problem.seq_q = 200;
  problem.seq_kv = 333;
  problem.dtype = DType::kBF16;
  problem.backward = backward;
  problem.stats = true;
  problem.program = Program::parse(program);
  const std::array<std::int64_t, kAxisCount> sizes{2, 4, 200, 333};
  for (const OperandDecl& decl : problem.program.operands()) {
    OperandSpec spec{decl.name, decl.type == Type::kF32 ? DType::kF32 : DType::kI32, {}, {}};
    for (std::size_t i = 0; i < kAxisCount; ++i) {
      if (decl.axes[i]) spec.shape.push_back(sizes[i]);
    }
    problem.operands.push_back(spec);
  }
  return problem;
}

/// Everything of one call, on the device, with owned host memory for the outputs.
class Call {
 public:
  explicit Call(const Attention& attention) : attention_(attention), staging_(attention) {
    const AttentionProblem& problem = attention.problem();
    inputs_ = random_inputs(problem);
    const std::vector<TensorInfo> tensors = tensors_of(problem);
    for (const std::size_t i : {0, 1, 2, 3, 4}) outputs_.emplace_back(tensors[i].bytes, std::byte{0xff});
    ForwardArgs host;
    host.q = {inputs_.q.data(), inputs_.q.size()};
    host.k = {inputs_.k.data(), inputs_.k.size()};
    host.v = {inputs_.v.data(), inputs_.v.size()};
    host.operands = inputs_.operand_buffers();
    host.o = {outputs_[3].data(), outputs_[3].size()};
    host.lse = {outputs_[4].data(), outputs_[4].size()};
    forward = staging_.stage(host);
    workspace = staging_.workspace(attention.forward_workspace_bytes());
  }

  std::vector<std::byte> o() {
    staging_.fetch();
    return outputs_[3];
  }

  ForwardArgs forward;
  Buffer workspace;

 private:
  const Attention& attention_;
  Staging staging_;
  ProblemInputs inputs_;
  std::vector<std::vector<std::byte>> outputs_;
};

Attention on_cudnn(const AttentionProblem& problem) {
  CompileOptions options;
  options.backend = "cudnn";
  return Attention::compile(problem, options);
}

class CudnnBackend : public test::OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    if (!backend::cudnn::library().available) GTEST_SKIP() << backend::cudnn::library().reason;
    set_plan_store_directory("");
  }
};

constexpr const char* kTemperature = "operand temperature: f32 [b, h]\nvalue = score * temperature";

/// The answer to one task by a cuDNN that lowers into the patterns that are planted.
planner::TaskAnswer answer_of_planted(const compiler::CompiledProblem& problem, Direction direction,
                                      backend::cudnn::PatternFilter allowed) {
  const auto planted = backend::make_cudnn_backend(std::move(allowed));
  const std::vector<const backend::Backend*> backends{planted.get()};
  const backend::MemorySpace& memory = planted->memory();
  const backend::Target target{memory.describe(), memory.current_device(), memory.context(), true};
  planner::Request request;
  request.target = &target;
  request.backends = backends;
  request.max_workspace = std::size_t{8} << 30;
  verification::Trial trial(problem);
  return planner::plan_task(problem, {direction, true, {}}, request, trial);
}

/// cuDNN 9.19 reads a B,H,1,1 operand wrongly from the second row on, and says nothing.
TEST_F(CudnnBackend, RefusesAPlantedWrongLoweringWithItsErrorAndTakesTheNextCandidate) {
  const auto problem = compiler::compile(problem_of(kTemperature, true));
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    const auto answer = answer_of_planted(problem, direction, [](std::string_view) { return true; });
    ASSERT_NE(answer.chosen(), nullptr);
    ASSERT_NE(answer.chosen(), &answer.considered.front());
    ASSERT_TRUE(answer.considered.front().refusal);
    const UnsupportedReason& refusal = *answer.considered.front().refusal;
    EXPECT_EQ(refusal.id, "wrong_result");
    EXPECT_NE(refusal.text.find("gave a wrong"), std::string::npos) << refusal.text;
    EXPECT_NE(refusal.text.find("relative error"), std::string::npos) << refusal.text;
    test::record_line(concat(R"({"case": "planted wrong lowering", "direction": ")",
                             direction == Direction::kForward ? "forward" : "backward", R"(", "verdict": ")",
                             refusal.text, "\"}"));
  }
}

TEST_F(CudnnBackend, HasNoPlanWhereEveryCandidateIsWrong) {
  const auto problem = compiler::compile(problem_of(kTemperature, false));
  const auto answer = answer_of_planted(problem, Direction::kForward, [](std::string_view pattern) {
    return !pattern.starts_with("operand.") || pattern.ends_with(".as_declared");
  });
  EXPECT_EQ(answer.chosen(), nullptr);
  ASSERT_FALSE(answer.all_reasons().empty());
  EXPECT_NE(answer.all_reasons()[0].text.find("relative error"), std::string::npos);
}

/// As compile() plans it on cuDNN.
planner::Prepared prepared_on_cudnn(const AttentionProblem& problem) {
  CompileOptions options;
  options.backend = "cudnn";
  return planner::plan_problem(compiler::compile(problem), options, planner::Level::kVerified, planner::select(options))
      .prepared;
}

std::string text_of(const std::vector<std::string>& notes) {
  std::string text;
  for (const std::string& note : notes) text += note + "\n";
  return text;
}

/// The axes of the bias, the text after it, and whether its rows have a gap between them.
struct BiasCase {
  const char* axes;
  const char* keep;
  DType dtype;
  bool gap;
};

TEST_F(CudnnBackend, WritesTheGradientOfABiasWithDenseRowsBesideTheOthers) {
  for (const BiasCase& bias :
       {BiasCase{"q_idx, kv_idx", "", DType::kBF16, false}, BiasCase{"h, q_idx, kv_idx", "", DType::kBF16, false},
        BiasCase{"b, q_idx, kv_idx", "", DType::kF16, false}, BiasCase{"b, h, q_idx, kv_idx", "", DType::kBF16, true},
        BiasCase{"h, q_idx, kv_idx", "\nkeep = kv_idx <= q_idx", DType::kBF16, false},
        BiasCase{"h, q_idx, kv_idx", "\nkeep = (q_idx + kv_idx) % 3 != 0", DType::kF16, true}}) {
    AttentionProblem problem = problem_of(
        concat("operand bias: f32 [", bias.axes, "]\nvalue = score + f32(q_idx - kv_idx) * 0.01 + bias", bias.keep),
        true);
    problem.dtype = problem.operands[0].dtype = bias.dtype;
    if (bias.gap) {
      auto& strides = problem.operands[0].strides;
      std::int64_t stride = 1;
      for (const std::int64_t extent :
           std::vector(problem.operands[0].shape.rbegin(), problem.operands[0].shape.rend())) {
        strides.insert(strides.begin(), stride);
        stride *= stride == 1 ? extent + 11 : extent;
      }
    }
    const std::string name = concat("bias ", bias.axes, bias.keep, bias.gap ? " with gaps" : "");
    SCOPED_TRACE(name);
    const planner::Prepared prepared = prepared_on_cudnn(problem);
    // cuDNN writes the gradient in dense rows only; with gaps between them it is summed by a pass.
    EXPECT_EQ(prepared.fused_backward.has_value(), !bias.gap) << text_of(prepared.all_notes());
    CheckOptions options;
    options.compile.backend = "cudnn";
    test::record(name, "fused gradient", check(problem, options), "d");
  }
}

TEST_F(CudnnBackend, SumsTheGradientOfABiasItselfWhereAnotherIsAskedForOrTheWorkspaceIsTooLarge) {
  AttentionProblem problem = problem_of(
      "operand bias: f32 [h, q_idx, kv_idx]\noperand slope: f32 [h]\n"
      "value = score + f32(q_idx - kv_idx) * slope + bias",
      true);
  problem.operands[0].dtype = DType::kBF16;
  const planner::Prepared prepared = prepared_on_cudnn(problem);
  EXPECT_TRUE(prepared.fused_backward) << text_of(prepared.all_notes());
  EXPECT_TRUE(prepared.operand_gradients);
  CheckOptions options;
  options.compile.backend = "cudnn";
  test::record("bias and slope", "gradients by the pass", check(problem, options), "d_");
  problem = problem_of("operand bias: f32 [h, q_idx, kv_idx]\nvalue = score + bias", true);
  problem.operands[0].dtype = DType::kBF16;
  ASSERT_EQ(setenv("SCOREMOD_MAX_WORKSPACE", "1000000", 1), 0);
  const planner::Prepared limited = prepared_on_cudnn(problem);
  unsetenv("SCOREMOD_MAX_WORKSPACE");
  EXPECT_FALSE(limited.fused_backward);
  std::string said = text_of(limited.notes);
  for (const UnsupportedReason& reason : limited.reasons()) said += to_string(reason) + "\n";
  EXPECT_NE(said.find("SCOREMOD_MAX_WORKSPACE"), std::string::npos) << said;
}

TEST_F(CudnnBackend, ReplaysACapturedCallBitForBit) {
  const Attention attention =
      on_cudnn(problem_of("operand ids: i32 [b, kv_idx]\noperand slopes: f32 [h]\n"
                          "value = tanh(score * 0.1) * slopes * f32(q_idx // 7)\n"
                          "keep = ids < 300 & kv_idx <= q_idx",
                          false));
  Call direct(attention), replayed(attention);
  attention.forward(direct.forward, direct.workspace);

  cudaStream_t stream = nullptr;
  check_runtime(SCOREMOD_CUDART(cudaStreamCreate)(&stream), "cudaStreamCreate");
  replayed.forward.options.stream = stream;
  attention.forward(replayed.forward, replayed.workspace);  // a thread's one-time setup must not be captured
  check_runtime(SCOREMOD_CUDART(cudaStreamSynchronize)(stream), "cudaStreamSynchronize");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check_runtime(SCOREMOD_CUDART(cudaStreamBeginCapture)(stream, cudaStreamCaptureModeThreadLocal), "begin capture");
  attention.forward(replayed.forward, replayed.workspace);
  check_runtime(SCOREMOD_CUDART(cudaStreamEndCapture)(stream, &graph), "end capture");
  check_runtime(SCOREMOD_CUDART(cudaGraphInstantiate)(&executable, graph, 0), "cudaGraphInstantiate");
  check_runtime(SCOREMOD_CUDART(cudaMemset)(replayed.forward.o.data, 0xff, replayed.forward.o.bytes), "cudaMemset");
  for (int i = 0; i < 2; ++i) check_runtime(SCOREMOD_CUDART(cudaGraphLaunch)(executable, stream), "cudaGraphLaunch");
  check_runtime(SCOREMOD_CUDART(cudaStreamSynchronize)(stream), "cudaStreamSynchronize");
  EXPECT_EQ(direct.o(), replayed.o());
  SCOREMOD_CUDART(cudaGraphExecDestroy)(executable);
  SCOREMOD_CUDART(cudaGraphDestroy)(graph);
  SCOREMOD_CUDART(cudaStreamDestroy)(stream);
}

TEST_F(CudnnBackend, BuildsNothingForANewScaleOrNewOffsets) {
  AttentionProblem problem =
      problem_of("value = score - 0.01 * f32(abs(q_idx - kv_idx))\nkeep = kv_idx <= q_idx + 100", true);
  problem.index_offsets = true;
  CheckOptions options;
  options.compile.backend = "cudnn";
  EXPECT_TRUE(check(problem, options).passed());
  const std::uint64_t builds = cache_statistics().plans.builds;
  options.call.scale = 0.03f;
  options.call.offsets = {3, 1, 70, 20};
  EXPECT_TRUE(check(problem, options).passed());
  EXPECT_EQ(cache_statistics().plans.builds, builds);
}

void expect_refusal(const std::function<void()>& call, const char* part) {
  try {
    call();
    ADD_FAILURE() << "not refused: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST_F(CudnnBackend, RefusesWhatACallMustNotBeGiven) {
  const Attention attention = on_cudnn(problem_of("value = score + f32(q_idx)", false));
  const Call good(attention);
  std::vector<std::byte> host(good.forward.q.bytes + 64);
  ForwardArgs args = good.forward;
  args.q.data = host.data() + (64 - reinterpret_cast<std::uintptr_t>(host.data()) % 64) % 64;
  expect_refusal([&] { attention.forward(args, good.workspace); },
                 "expected cuda memory, found memory that CUDA does not know");
  args = good.forward;
  args.k.data = static_cast<const std::byte*>(args.k.data) + 2;
  expect_refusal([&] { attention.forward(args, good.workspace); }, "multiple of 16");
  args = good.forward;
  args.options.offsets.query = 5;
  expect_refusal([&] { attention.forward(args, good.workspace); }, "index_offsets");
}

/// A context of its own on the current device, current on this thread for the object's life.
class OwnContext {
 public:
  OwnContext() {
    using backend::cuda::check_driver;
    CUdevice device = 0;
    check_driver(SCOREMOD_DRIVER(cuCtxGetDevice)(&device), "cuCtxGetDevice");
#if CUDA_VERSION >= 13000
    check_driver(SCOREMOD_DRIVER(cuCtxCreate)(&context_, nullptr, 0, device), "cuCtxCreate");
#else
    check_driver(SCOREMOD_DRIVER(cuCtxCreate)(&context_, 0, device), "cuCtxCreate");
#endif
  }
  ~OwnContext() {
    CUcontext popped = nullptr;
    SCOREMOD_DRIVER(cuCtxPopCurrent)(&popped);
    // It is not destroyed: handles of this thread, and plans of the process, live in it.
  }

 private:
  CUcontext context_ = nullptr;
};

TEST_F(CudnnBackend, RunsNoPlanInAnotherContext) {
  const AttentionProblem problem = problem_of("value = score + f32(q_idx)", false);
  const Attention attention = on_cudnn(problem);
  Call call(attention);
  attention.forward(call.forward, call.workspace);
  const std::vector<std::byte> expected = call.o();
  const std::uint64_t builds = cache_statistics().plans.builds;
  {
    const OwnContext other;
    expect_refusal([&] { attention.forward(call.forward, call.workspace); }, "another CUDA context");
    const Attention there = on_cudnn(problem);
    EXPECT_GT(cache_statistics().plans.builds, builds) << "a plan of another context was taken";
    Call call_there(there);
    there.forward(call_there.forward, call_there.workspace);
    EXPECT_EQ(call_there.o(), expected);
  }
  attention.forward(call.forward, call.workspace);
  EXPECT_EQ(call.o(), expected);
}

TEST_F(CudnnBackend, TakesItsTimeForVerificationOnce) {
  const auto seconds = [](const AttentionProblem& problem) {
    const auto start = std::chrono::steady_clock::now();
    on_cudnn(problem);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  AttentionProblem problem = problem_of("value = sin(score) * 3.0", true);
  problem.seq_q = problem.seq_kv = 4096;
  const double first = seconds(problem);
  const double again = seconds(problem);
  clear_plan_cache();
  const double verified = seconds(problem);
  test::record_line(concat(R"({"case": "compile, forward and backward", "first_use_s": )", first, R"(, "kept_s": )",
                           again, R"(, "built_anew_with_a_verdict_s": )", verified, "}"));
  EXPECT_LT(again, first);
}

}  // namespace
}  // namespace scoremod
