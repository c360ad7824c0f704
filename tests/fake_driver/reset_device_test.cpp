// Somebody resets the device: its context is gone, with all that was made in it. Nothing of it is touched any more, and
// later calls are right.
#include <memory>
#include <optional>
#include <string>

#include <gmock/gmock.h>

#include "scoremod/attention_cache.hpp"
#include "scoremod/error.hpp"
#include "scoremod/request_queue.hpp"

#include "backend/cuda/device/context.hpp"
#include "backend/cuda/device/cuda_memory.hpp"
#include "backend/cuda/device/runtime_call.hpp"
#include "fake_cuda/fake_cuda.hpp"
#include "fake_driver/fake_device.hpp"

namespace scoremod {
namespace {

namespace fake_cuda = test::fake_cuda;

using ::testing::HasSubstr;

/// Whether a framework calls the runtime after the reset, which makes the context anew, or scoremod does so first.
enum class MadeBy : std::uint8_t { kFramework, kScoremod };

class ResetDevice : public test::OnFakeDevice, public ::testing::WithParamInterface<MadeBy> {
 protected:
  static int device() { return test::fake_device("b200"); }
  /// A kernel finds the tiles of its mask once: the plan holds memory, and an event until a call has seen it done.
  static AttentionProblem problem() {
    AttentionProblem problem =
        test::small_problem("value = score\nkeep = q_idx // 100 == kv_idx // 100", DType::kBF16, 64);
    problem.backward = problem.stats = false;
    return problem;
  }
  /// It needs a workspace: CTAs share the keys.
  static AttentionProblem decode() {
    AttentionProblem problem = test::small_problem("value = score", DType::kBF16, 64);
    problem.backward = problem.stats = false;
    problem.seq_q = 1;
    problem.seq_kv = 4096;
    return problem;
  }
  static std::shared_ptr<const Attention> cached(const AttentionProblem& problem) {
    return cached_attention(problem, test::kernels_on(device()));
  }

  void SetUp() override {
    OnFakeDevice::SetUp();
    if (!IsSkipped()) make_current();
  }
  void TearDown() override {
    backend::cuda::cuda_memory().make_current(0);
    OnFakeDevice::TearDown();
  }
  static void make_current() { backend::cuda::cuda_memory().make_current(device()); }
  static void reset() {
    fake_cuda::reset_device(device());
    if (GetParam() == MadeBy::kFramework) make_current();
  }
};

TEST_P(ResetDevice, MakesPlansAnew) {
  test::DeviceCalls before(problem(), device());
  const auto old = cached(problem());
  EXPECT_EQ(cached(problem()), old);
  EXPECT_NO_THROW(old->forward(before.forward_args()));
  reset();
  ForwardArgs args = before.forward_args();
  args.options.stream = nullptr;  // the caller's stream went with the device
  for (int call = 0; call < 2; ++call) {
    try {
      old->forward(args);
      FAIL() << "a plan of the old context ran";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kEnvironment);
      EXPECT_THAT(error.what(), HasSubstr("its device was reset"));
      EXPECT_THAT(error.what(), HasSubstr("compile it again"));
    }
  }
  const auto made = cached(problem());
  EXPECT_NE(made, old);
  EXPECT_EQ(cached(problem()), made);
  fake_cuda::take_launches();
  EXPECT_NO_THROW(made->forward(args));
  EXPECT_GE(fake_cuda::take_launches().size(), 1u);
  test::DeviceCalls(problem(), device()).run();
}

TEST_P(ResetDevice, LeavesPlansThatNoCallFollowed) {
  auto calls = std::make_unique<test::DeviceCalls>(problem(), device());
  auto later = cached(decode());
  drop_plans();
  reset();
  const auto made = cached(decode());  // in the new context, before the old ones' things are freed
  later.reset();
  calls.reset();
  drop_plans();
  test::DeviceCalls of_new(decode(), device());
  EXPECT_NO_THROW(made->forward(of_new.forward_args()));
}

TEST_P(ResetDevice, LeavesAQueueThatServes) {
  std::optional<test::DeviceCalls> calls(std::in_place, decode(), device());
  RequestQueue queue;
  EXPECT_EQ(queue.submit(cached(decode()), calls->forward_args()).get().status, ReplyStatus::kDone);
  const auto old = cached(decode());
  reset();
  make_current();
  test::DeviceCalls anew(decode(), device());
  const Reply lost = queue.submit(old, anew.forward_args()).get();
  EXPECT_EQ(lost.status, ReplyStatus::kEnvironment);
  EXPECT_THAT(lost.message, HasSubstr("its device was reset"));
  for (int request = 0; request < 3; ++request) {
    const Reply reply = queue.submit(cached(decode()), anew.forward_args()).get();
    EXPECT_EQ(reply.status, ReplyStatus::kDone) << reply.message;
  }
}

TEST_P(ResetDevice, ForgetsWhoseMemoryAnAddressWas) {
  const auto& memory = backend::cuda::cuda_memory();
  void* data = nullptr;
  ASSERT_EQ(SCOREMOD_CUDART(cudaMalloc)(&data, 4096), cudaSuccess);
  backend::cuda::current_context();
  EXPECT_EQ(memory.objection(data, device()), "");
  reset();
  backend::cuda::current_context();  // as each call of a plan asks for it
  EXPECT_THAT(memory.objection(data, device()), HasSubstr("freed by now"));
}

INSTANTIATE_TEST_SUITE_P(All, ResetDevice, ::testing::Values(MadeBy::kFramework, MadeBy::kScoremod),
                         [](const auto& tested) {
                           return tested.param == MadeBy::kFramework ? "MadeByAFramework" : "MadeByScoremod";
                         });

}  // namespace
}  // namespace scoremod
