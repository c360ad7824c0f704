// The Hopper forward over pages, with queries of several sequences in one call: prompts, chunks and decodes. On a host,
// thread by thread, against the float64 oracle.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "backend/kernels/hopper/family.hpp"
#include "problem/implied_operands.hpp"
#include "support/check_report.hpp"
#include "support/emulated_attention.hpp"
#include "support/paged_decode_cases.hpp"

namespace scoremod::backend::kernels {
namespace {

using Fault = test::EmulatedLaunches::Fault;

/// A decode, prompts, a chunk and a sequence without queries, each of which ends where its keys end.
struct MixedBatch {
  std::vector<std::int32_t> offsets{0, 1, 200, 400, 400, 600}, lengths{400, 199, 333, 69, 200}, at{399, 0, 133, 69, 0};
};

checking::CheckCase mixed_case(std::int64_t page) {
  return test::with_ragged_queries(test::paged_case(
      {5, 4, 2, 200, 400, 64, page}, "operand at: i32 [b]\nvalue = score * 0.5\nkeep = kv_idx <= q_idx + at"));
}

void set(ProblemInputs& inputs, const char* name, const std::vector<std::int32_t>& values) {
  OwnedOperand& operand = test::operand_of(inputs, name);
  ASSERT_EQ(operand.bytes.size(), values.size() * sizeof(std::int32_t));
  std::memcpy(operand.bytes.data(), values.data(), operand.bytes.size());
}

ProblemInputs inputs_of(const checking::CheckCase& test, const MixedBatch& batch) {
  ProblemInputs inputs = test::inputs_of(test, batch.lengths);
  set(inputs, problem::kOffsetsOfQueries, batch.offsets);
  set(inputs, "at", batch.at);
  return inputs;
}

CheckReport check_of(const checking::CheckCase& test, const HopperShape& shape, const Fault& fault = {}) {
  return test::check_emulated(test, inputs_of(test, {}), [&](const AttentionProblem&, Direction) { return shape; },
                              {.forward = fault});
}

std::vector<HopperShape> shapes_of(const AttentionProblem& problem) {
  HopperShape persistent = persistent_hopper_shape(problem, 3);
  persistent.persistent_ctas = 3;
  return {hopper_shapes(problem, Direction::kForward).front(), persistent};
}

TEST(HopperForwardOverPages, IsRightForMixedBatches) {
  for (const std::int64_t page : {8, 16, 24, 64}) {
    const checking::CheckCase test = mixed_case(page);
    ASSERT_TRUE(hopper_objections(test.problem, Direction::kForward, kHopperCapability).empty());
    for (const HopperShape& shape : shapes_of(test.problem)) {
      SCOPED_TRACE("pages of " + std::to_string(page) + (shape.persistent_ctas > 0 ? ", persistent" : ""));
      test::expect_right(check_of(test, shape));
    }
  }
}

struct PlantedFault {
  const char* name;
  Fault fault;
};
class HopperForwardOverPagesFaults : public ::testing::TestWithParam<PlantedFault> {};

TEST_P(HopperForwardOverPagesFaults, AreSeen) {
  const checking::CheckCase test = mixed_case(16);
  for (const HopperShape& shape : shapes_of(test.problem))
    EXPECT_FALSE(check_of(test, shape, GetParam().fault).passed());
}
const PlantedFault kPlantedFaults[] = {
    {"AnotherBoxsPage", {"first + threadIdx.x % 32 * kBoxRows", "first + (threadIdx.x % 32 ^ 1) * kBoxRows"}},
    {"ValuesFromThePagesOfKeys", {"v_page = page_of_box(call.v, b, first, keys)", "v_page = k_page"}},
};
INSTANTIATE_TEST_SUITE_P(Faults, HopperForwardOverPagesFaults, ::testing::ValuesIn(kPlantedFaults),
                         [](const auto& fault) { return std::string(fault.param.name); });

}  // namespace
}  // namespace scoremod::backend::kernels
