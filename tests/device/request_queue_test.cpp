#include "scoremod/request_queue.hpp"

#include <array>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "scoremod/attention.hpp"
#include "scoremod/inputs.hpp"
#include "scoremod/problem_buffers.hpp"
#include "scoremod/staging.hpp"

#include "backend/cuda/device/runtime_call.hpp"
#include "device/device_fixture.hpp"
#include "support/problem_for.hpp"
#include "support/test_seed.hpp"

namespace scoremod {
namespace {

using backend::cuda::check_runtime;

class OwnStream {
 public:
  OwnStream() { check_runtime(SCOREMOD_CUDART(cudaStreamCreateWithFlags)(&stream_, cudaStreamNonBlocking), "stream"); }
  ~OwnStream() { SCOREMOD_CUDART(cudaStreamDestroy)(stream_); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  void* get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// A problem's memory on the host, what a request and a direct call make of it, and the request's copies on the device.
struct Request {
  Request(const AttentionProblem& problem, const CompileOptions& options, std::uint64_t seed)
      : attention(std::make_shared<const Attention>(Attention::compile(problem, options))),
        inputs(random_inputs(problem, {seed, {}})),
        found(problem, buffers_of(inputs)),
        expected(problem, buffers_of(inputs)),
        staging(*attention) {}

  void call_directly() {
    Staging own(*attention);
    attention->forward(own.stage(expected.forward()), own.workspace(attention->forward_workspace_bytes()));
    attention->backward(own.stage(expected.backward()), own.workspace(attention->backward_workspace_bytes()));
    own.fetch();
  }

  std::shared_ptr<const Attention> attention;
  ProblemInputs inputs;
  ProblemBuffers found, expected;
  Staging staging;
  std::future<Reply> forward, backward;
};

AttentionProblem problem_of(int number) {
  AttentionProblem problem = test::small_problem();
  problem.seq_q = problem.seq_kv = 65 + 200 * (number % 4);
  problem.dtype = DType::kBF16;
  problem.deterministic = true;
  problem.backward = problem.stats = true;
  problem.program = Program::parse(number % 2 == 0 ? "value = score" : "value = tanh(score)\nkeep = kv_idx <= q_idx");
  return problem;
}

class RequestQueueOnDevice : public test::OnDevice, public ::testing::WithParamInterface<int> {};

/// Forward and backward follow each other on a request's stream without a wait of the host, and streams alternate. The
/// bits are those of direct calls: no workspace is shared by two calls that run at once.
TEST_P(RequestQueueOnDevice, RequestsComputeWhatCallsDo) {
  SCOPED_TRACE("SCOREMOD_TEST_SEED=" + std::to_string(test::test_seed()));
  CompileOptions options;
  options.memory = MemoryKind::kCuda;
  const std::array<OwnStream, 2> streams;
  std::vector<std::unique_ptr<Request>> requests;
  for (int i = 0; i < 48; ++i) {
    requests.push_back(std::make_unique<Request>(problem_of(i), options, test::test_seed() + static_cast<unsigned>(i)));
    requests.back()->call_directly();
  }
  RequestQueueOptions threads;
  threads.capacity = 2 * requests.size();
  threads.threads = GetParam();
  RequestQueue queue(threads);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    Request& request = *requests[i];
    ForwardArgs forward = request.staging.stage(request.found.forward());
    // Six of one stream follow each other, so that calls in flight and changes of the stream are both among them.
    forward.options.stream = streams[i / 6 % streams.size()].get();
    request.forward = queue.submit(request.attention, forward);
    if (GetParam() > 1) {  // another thread may begin what comes next
      EXPECT_EQ(request.forward.get(), Reply{});
    }
    BackwardArgs backward = request.staging.stage(request.found.backward());
    backward.options.stream = forward.options.stream;
    request.backward = queue.submit(request.attention, backward);
  }
  for (const auto& request : requests) {
    if (request->forward.valid()) {
      EXPECT_EQ(request->forward.get(), Reply{});
    }
    EXPECT_EQ(request->backward.get(), Reply{});
    request->staging.fetch();
    for (std::size_t i = 0; i < request->found.outputs().size(); ++i) {
      EXPECT_EQ(request->found.outputs()[i].bytes, request->expected.outputs()[i].bytes)
          << request->found.outputs()[i].name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, RequestQueueOnDevice, ::testing::Values(1, 3));

}  // namespace
}  // namespace scoremod
