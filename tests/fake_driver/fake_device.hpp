#pragma once

#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/attention.hpp"
#include "scoremod/inputs.hpp"
#include "scoremod/staging.hpp"

#include "fake_cuda/fake_cuda.hpp"

namespace scoremod::test {

/// The devices that the fake driver has, by ordinal: those whose descriptions the library has.
const std::vector<std::string>& fake_devices();
std::string description_of(int device);
int fake_device(const std::string& name);

/// Tests of what the host does for a device. After each, no rule of CUDA is broken, and all that it made is destroyed
/// but for what threads keep (streams) and what processes keep (a pool for each device).
class OnFakeDevice : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;
  /// Whether the test compiles kernels; else it runs without NVRTC, too.
  virtual bool compiles() const { return true; }

  /// A test that leaves something on purpose calls this.
  void allow_leftovers() { leftovers_allowed_ = true; }
  /// Drops what is cached. A thread unloads kernels, which this waits for.
  static void drop_plans();
  /// Counts of things that the test has made and not destroyed, without cached ones.
  fake_cuda::Live left() const;

 private:
  bool leftovers_allowed_ = false;
  fake_cuda::Live before_;
};

/// Batches, heads and lengths are small, and no multiples of tiles.
AttentionProblem small_problem(const char* program, DType dtype, std::int64_t dim);

/// The kernels on a device, whose plans no thread replaces.
CompileOptions kernels_on(int device);

/// One problem's calls from memory of the device. Plans are not tried: a fake device computes nothing.
class DeviceCalls {
 public:
  DeviceCalls(const AttentionProblem& problem, int device);

  /// Its tensors stay.
  void drop_attention() { attention_.reset(); }
  /// For calls of another attention of the same problem and device.
  const ForwardArgs& forward_args() const { return forward_; }
  /// On its own stream, or on another one, with a workspace of the caller's where there is one. The kernels' parameters
  /// are allocated in a GuardedHeap.
  void forward(void* stream = nullptr, Buffer workspace = {});
  void backward(void* stream = nullptr, Buffer workspace = {});
  /// Both, as far as the problem has them.
  void run();
  Buffer workspace();

 private:
  AttentionProblem problem_;
  ProblemInputs inputs_;
  std::vector<std::vector<std::byte>> outputs_;
  std::optional<Attention> attention_;
  Staging staging_;
  ForwardArgs forward_;
  BackwardArgs backward_;
};

}  // namespace scoremod::test
