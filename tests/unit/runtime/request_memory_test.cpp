#include "runtime/request_memory.hpp"

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/error.hpp"

#include "backend/memory_space.hpp"
#include "base/fail.hpp"
#include "support/refusal.hpp"

namespace scoremod::runtime {
namespace {

/// Writes down what is asked of it.
class RecordingSpace final : public backend::MemorySpace {
 public:
  MemoryKind kind() const override { return MemoryKind::kCuda; }
  std::size_t alignment() const override { return 1; }
  void* allocate(std::size_t bytes, void*) const override {
    log.push_back("allocate " + std::to_string(bytes));
    return std::malloc(bytes);
  }
  void release(void* data, void*) const noexcept override {
    log.emplace_back("release");
    std::free(data);
  }
  void copy_in(void*, const void*, std::size_t) const override {}
  void copy_out(void*, const void*, std::size_t) const override {}
  void wait(void*) const override { log.emplace_back("wait for the allocation"); }
  int current_device() const override { return 0; }
  backend::DeviceProperties describe() const override { return {}; }
  void make_current(int) const override {}
  std::string objection(const void*, int) const override { return {}; }

  std::vector<std::string> said() const { return std::exchange(log, {}); }
  mutable std::vector<std::string> log;
};

class RecordingEvent final : public backend::StreamEvent {
 public:
  RecordingEvent(const RecordingSpace& space, std::string name) : space_(space), name_(std::move(name)) {}
  void wait() const override {
    space_.log.push_back("wait for " + name_);
    if (name_ == "a failure") fail_environment("cudaEventSynchronize: an illegal memory access was encountered");
  }

 private:
  const RecordingSpace& space_;
  std::string name_;
};

using Log = std::vector<std::string>;

class RequestMemoryTest : public testing::Test {
 protected:
  void use(std::size_t bytes, void* stream, const std::string& name) {
    EXPECT_GE(memory_.take(space_, bytes, stream).bytes, bytes);
    memory_.use_until(std::make_shared<RecordingEvent>(space_, name), stream);
  }

  RecordingSpace space_;
  RequestMemory memory_;
  int first_ = 0, second_ = 0;  // their addresses are streams
};

TEST_F(RequestMemoryTest, CallsOfOneStreamShareItWithoutAWait) {
  use(100, &first_, "one");
  EXPECT_EQ(space_.said(), (Log{"allocate 100", "wait for the allocation"}));
  const void* const before = memory_.take(space_, 100, &first_).data;
  use(60, &first_, "two");
  EXPECT_EQ(memory_.take(space_, 60, &first_).data, before);
  EXPECT_EQ(space_.said(), Log{});
}

TEST_F(RequestMemoryTest, ACallOfAnotherStreamBeginsOnceTheLastIsDone) {
  use(100, &first_, "one");
  space_.said();
  use(100, &second_, "two");
  EXPECT_EQ(space_.said(), Log{"wait for one"});
  // One without a workspace too: a thread's calls follow each other.
  EXPECT_EQ(memory_.take(space_, 0, &first_).bytes, 0U);
  EXPECT_EQ(space_.said(), Log{"wait for two"});
  // A wait is not repeated.
  use(100, &first_, "three");
  EXPECT_EQ(space_.said(), Log{});
}

TEST_F(RequestMemoryTest, GrowsOnceTheLastCallIsDone) {
  use(100, &first_, "one");
  space_.said();
  use(101, &first_, "two");
  EXPECT_EQ(space_.said(), (Log{"wait for one", "release", "allocate 101", "wait for the allocation"}));
}

TEST_F(RequestMemoryTest, CallsThatAreDoneWhenTheyReturnNeedNoWait) {
  memory_.take(space_, 100, nullptr);
  memory_.use_until(nullptr, nullptr);
  space_.said();
  memory_.take(space_, 100, &first_);
  EXPECT_EQ(space_.said(), Log{});
}

TEST_F(RequestMemoryTest, AFailureOfTheLastCallIsSaidAndTheMemoryStays) {
  use(100, &first_, "a failure");
  space_.said();
  test::expect_refusal(
      "an illegal memory access", [&] { memory_.take(space_, 200, &first_); }, ErrorCode::kEnvironment);
  EXPECT_EQ(space_.said(), Log{"wait for a failure"});
}

}  // namespace
}  // namespace scoremod::runtime
