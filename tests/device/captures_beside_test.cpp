#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "scoremod/attention.hpp"
#include "scoremod/cache.hpp"
#include "scoremod/check.hpp"
#include "scoremod/error.hpp"

#include "backend/cuda/device/cuda_memory.hpp"
#include "backend/cuda/device/runtime_call.hpp"
#include "base/concat.hpp"
#include "device/device_fixture.hpp"
#include "support/test_seed.hpp"

namespace scoremod {
namespace {

using backend::cuda::check_runtime;

/// How another part of the process captures graphs.
struct Captures {
  const char* name;
  unsigned stream_flags;
  cudaStreamCaptureMode mode;
};
constexpr std::array kCaptures{
    Captures{"blocking stream", cudaStreamDefault, cudaStreamCaptureModeGlobal},
    Captures{"non-blocking stream", cudaStreamNonBlocking, cudaStreamCaptureModeGlobal},
    Captures{"thread-local mode", cudaStreamNonBlocking, cudaStreamCaptureModeThreadLocal},
};

/// A thread that captures graphs without pause, which copy memory. It counts those that ended in an error.
class Capturer {
 public:
  explicit Capturer(const Captures& captures) : thread_([this, captures] { run(captures); }) {}
  ~Capturer() { end(); }
  Capturer(const Capturer&) = delete;
  Capturer& operator=(const Capturer&) = delete;

  void end() {
    is_over_ = true;
    if (thread_.joinable()) thread_.join();
  }
  int made() const { return made_; }
  int broken() const { return broken_; }

 private:
  void run(const Captures& captures) {
    cudaStream_t stream = nullptr;
    check_runtime(SCOREMOD_CUDART(cudaStreamCreateWithFlags)(&stream, captures.stream_flags), "stream");
    const backend::cuda::DeviceMemory memory(64);
    while (!is_over_) {
      cudaGraph_t graph = nullptr;
      bool is_good = SCOREMOD_CUDART(cudaStreamBeginCapture)(stream, captures.mode) == cudaSuccess;
      for (int i = 0; i < 10 && !is_over_; ++i) {
        is_good = SCOREMOD_CUDART(cudaMemsetAsync)(memory.data(), i, memory.bytes(), stream) == cudaSuccess && is_good;
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
      is_good = SCOREMOD_CUDART(cudaStreamEndCapture)(stream, &graph) == cudaSuccess && is_good;
      if (graph != nullptr) SCOREMOD_CUDART(cudaGraphDestroy)(graph);
      ++(is_good ? made_ : broken_);
    }
    SCOREMOD_CUDART(cudaStreamDestroy)(stream);
  }

  std::atomic<bool> is_over_ = false;
  std::atomic<int> made_ = 0, broken_ = 0;
  std::thread thread_;
};

/// A problem that was never compiled before, with gradients of an operand.
AttentionProblem new_problem(std::uint64_t number, DType dtype) {
  AttentionProblem problem;
  problem.batch = 1;
  problem.heads_q = 2;
  problem.seq_q = 100;
  problem.seq_kv = 130;
  problem.dtype = dtype;
  problem.backward = problem.stats = true;
  const std::string a = concat("0.", 1000 + number % 8999);
  const std::array<std::string, 4> programs{
      concat("operand slopes: f32 [h]\nvalue = score + slopes * ", a, " * f32(kv_idx - q_idx)\nkeep = kv_idx <= q_idx"),
      concat("value = tanh(score * ", a, ") * 3.0\nkeep = kv_idx % 5 != 1"),
      concat("operand bias: f32 [h, q_idx, kv_idx]\nvalue = score + bias * ", a),
      concat("operand ids: i32 [b, kv_idx]\nvalue = score * ", a, "\nkeep = ids > 1"),
  };
  problem.program = Program::parse(programs[number % programs.size()]);
  for (const OperandDecl& decl : problem.program.operands()) {
    OperandSpec spec{decl.name, decl.type == Type::kF32 ? DType::kF32 : DType::kI32, {}, {}};
    const std::array<std::int64_t, kAxisCount> sizes{problem.batch, problem.heads_q, problem.seq_q, problem.seq_kv};
    for (std::size_t i = 0; i < kAxisCount; ++i) {
      if (decl.axes[i]) spec.shape.push_back(sizes[i]);
    }
    spec.gradient = decl.type == Type::kF32;
    problem.operands.push_back(spec);
  }
  return problem;
}

struct Engine {
  const char* backend;  ///< empty: the planner's choice
  DType dtype;
  int uses;
};

class CapturesBeside : public test::OnDevice, public ::testing::WithParamInterface<Engine> {};

/// Each problem is compiled, tried, run, compared with the oracle and freed.
TEST_P(CapturesBeside, DisturbNoFirstUseAndAreNotDisturbed) {
  const Engine& engine = GetParam();
  set_plan_store_directory("");
  std::uint64_t number = test::test_seed();
  for (const Captures& captures : kCaptures) {
    Capturer capturer(captures);
    for (int use = 0; use < engine.uses; ++use) {
      CheckOptions options;
      options.seed = ++number;
      options.compile.backend = engine.backend;
      options.compile.memory = MemoryKind::kCuda;
      const AttentionProblem problem = new_problem(number, engine.dtype);
      try {
        const CheckReport report = check(problem, options);
        EXPECT_TRUE(report.passed()) << "problem " << number << ": " << to_json(problem);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << "problem " << number << ": " << error.what();
      }
    }
    capturer.end();
    EXPECT_GT(capturer.made(), 0) << captures.name;
    EXPECT_EQ(capturer.broken(), 0) << captures.name;
    test::record_line(concat(R"({"kind": "captures beside", "backend": ")", engine.backend, R"(", "dtype": ")",
                             to_string(engine.dtype), R"(", "captures": ")", captures.name, R"(", "uses": )",
                             engine.uses, R"(, "made": )", capturer.made(), R"(, "broken": )", capturer.broken(), "}"));
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, CapturesBeside,
                         ::testing::Values(Engine{"", DType::kBF16, 12}, Engine{"kernels", DType::kBF16, 12},
                                           Engine{"kernels", DType::kF32, 12}, Engine{"cudnn", DType::kF16, 12}),
                         [](const auto& test) {
                           const std::string backend = test.param.backend;
                           return concat(backend.empty() ? "chosen" : backend, "_", to_string(test.param.dtype));
                         });

}  // namespace
}  // namespace scoremod
