// A context that a kernel broke, told apart from other errors of the machine and from stale pointers: in calls, and in
// the replies of a request queue.
#include <future>
#include <memory>
#include <string>
#include <utility>

#include <gmock/gmock.h>

#include "scoremod/attention_cache.hpp"
#include "scoremod/c_api.h"
#include "scoremod/cache.hpp"
#include "scoremod/context_lost.hpp"
#include "scoremod/error.hpp"
#include "scoremod/request_queue.hpp"

#include "backend/cuda/device/cuda_memory.hpp"
#include "backend/cuda/device/runtime_call.hpp"
#include "c_api/guard.hpp"
#include "fake_cuda/fake_cuda.hpp"
#include "fake_driver/fake_device.hpp"

namespace scoremod {
namespace {

namespace fake_cuda = test::fake_cuda;

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kOutOfResources = 701, kIllegalAddress = 700, kAssert = 710, kLaunchFailure = 719, kUnknownError = 999;
constexpr const char* kRemedy = "end the process and start it again";

AttentionProblem forward_problem() {
  AttentionProblem problem = test::small_problem("value = score", DType::kBF16, 16);
  problem.backward = problem.stats = false;
  return problem;
}

class LostContext : public test::OnFakeDevice {
 protected:
  static int device() { return test::fake_device("rtx5090"); }
  static void use() { test::DeviceCalls(forward_problem(), device()).run(); }

  /// The host's backend needs no device.
  static void use_host() {
    AttentionProblem problem = forward_problem();
    problem.dtype = DType::kF32;
    problem.program = Program::parse("value = score * 2.0");
    EXPECT_EQ(Attention::compile(problem).backend(), "cpu");
  }
};

TEST_F(LostContext, IsTheErrorOfEachLaterUseUntilTheProcessEnds) {
  allow_leftovers();  // nothing can be freed
  for (const int code : {214, 220, 226, 700, 702, kAssert, 714, 715, 716, 717, 718, kLaunchFailure, 721, 911}) {
    fake_cuda::fail("cuLaunchKernel", 0, code, fake_cuda::Failing::kSticky);
    for (int time = 0; time < 3; ++time) {
      try {
        use();
        FAIL() << code << ": the use succeeded";
      } catch (const ContextLost& lost) {
        EXPECT_EQ(lost.code(), ErrorCode::kEnvironment);
        EXPECT_THAT(lost.what(), HasSubstr("(CUDA error " + std::to_string(code) + "): the CUDA context is lost"));
        EXPECT_THAT(lost.what(), EndsWith(kRemedy));
      }
    }
    use_host();
    clear_attention_cache();
    clear_plan_cache();
    EXPECT_EQ(fake_cuda::stop_failing(), "cuLaunchKernel");
  }
  EXPECT_NO_THROW(use());
}

TEST_F(LostContext, HasAStatusOfItsOwnInC) {
  const auto status_of = [](const auto& error) {
    char* message = nullptr;
    scoremod_status status = SCOREMOD_OK;
    try {
      throw error;
    } catch (...) {
      status = c_api::status_of_current_exception(&message);
    }
    EXPECT_STREQ(message, "words");
    scoremod_text_free(message);
    return status;
  };
  EXPECT_EQ(status_of(ContextLost("words")), SCOREMOD_CONTEXT_LOST);
  EXPECT_EQ(status_of(Error(ErrorCode::kEnvironment, "words")), SCOREMOD_ENVIRONMENT);
  EXPECT_STREQ(scoremod_status_name(SCOREMOD_CONTEXT_LOST), "context lost");
}

TEST_F(LostContext, IsNoOtherError) {
  for (const int code : {1, 2, 201, 400, kOutOfResources, 709, kUnknownError}) {
    fake_cuda::fail("cuLaunchKernel", 0, code);
    try {
      use();
      FAIL() << code << ": the use succeeded";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kEnvironment);
      EXPECT_EQ(dynamic_cast<const ContextLost*>(&error), nullptr) << error.what();
      EXPECT_THAT(error.what(), StartsWith("cuLaunchKernel: "));
      EXPECT_THAT(error.what(), ::testing::Not(HasSubstr("process")));
    }
    EXPECT_EQ(fake_cuda::stop_failing(), "cuLaunchKernel");
  }
}

/// One request after the other, from memory of the device.
class Replies : public LostContext {
 protected:
  void SetUp() override {
    LostContext::SetUp();
    if (IsSkipped()) return;
    calls_ = std::make_unique<test::DeviceCalls>(forward_problem(), device());
    attention_ = cached_attention(forward_problem(), test::kernels_on(device()));
  }
  void TearDown() override {
    attention_.reset();
    calls_.reset();
    LostContext::TearDown();
  }

  Reply reply(RequestQueue& queue, const ForwardArgs& args) const { return queue.submit(attention_, args).get(); }
  const ForwardArgs& args() const { return calls_->forward_args(); }

 private:
  std::unique_ptr<test::DeviceCalls> calls_;
  std::shared_ptr<const Attention> attention_;
};

TEST_F(Replies, TellALostContextFromOtherErrors) {
  RequestQueue queue;
  EXPECT_EQ(reply(queue, args()).status, ReplyStatus::kDone);
  fake_cuda::fail("cuLaunchKernel", 0, kOutOfResources);
  const Reply failed = reply(queue, args());
  EXPECT_EQ(failed.status, ReplyStatus::kEnvironment);
  EXPECT_EQ(failed.message, "cuLaunchKernel: too many resources requested for launch");
  fake_cuda::stop_failing();
  EXPECT_EQ(reply(queue, args()).status, ReplyStatus::kDone);
  for (const char* function : {"cuLaunchKernel", "cudaEventSynchronize"}) {  // where the launch is, or its end
    fake_cuda::fail(function, 0, kIllegalAddress, fake_cuda::Failing::kSticky);
    for (int request = 0; request < 3; ++request) {
      const Reply lost = reply(queue, args());
      EXPECT_EQ(lost.status, ReplyStatus::kContextLost) << lost.message;
      EXPECT_STREQ(to_string(lost.status), "context lost");
      EXPECT_THAT(lost.message, EndsWith(kRemedy));
    }
    EXPECT_EQ(fake_cuda::stop_failing(), function);
    EXPECT_EQ(reply(queue, args()).status, ReplyStatus::kDone);
  }
}

TEST_F(Replies, NameAPointerThatIsNobodysMemory) {
  RequestQueue queue;
  void* freed = nullptr;
  backend::cuda::cuda_memory().make_current(device());
  ASSERT_EQ(SCOREMOD_CUDART(cudaMalloc)(&freed, args().q.bytes), cudaSuccess);
  ASSERT_EQ(SCOREMOD_CUDART(cudaFree)(freed), cudaSuccess);
  const auto on_host = std::make_unique<std::byte[]>(args().q.bytes + 16);
  for (void* const data : {freed, static_cast<void*>(on_host.get())}) {
    ForwardArgs stale = args();
    stale.q.data = data;
    const Reply refused = reply(queue, stale);
    EXPECT_EQ(refused.status, ReplyStatus::kInvalidArgument);
    EXPECT_EQ(
        refused.message,
        "'q' lies in the wrong memory: expected cuda memory, found memory that CUDA does not know: of the host, or "
        "of a device and freed by now");
  }
  EXPECT_EQ(reply(queue, args()).status, ReplyStatus::kDone);
}

}  // namespace
}  // namespace scoremod
