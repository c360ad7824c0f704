#include "backend/cudnn/graph/refusal.hpp"

#include <gtest/gtest.h>

namespace scoremod::backend::cudnn {
namespace {

TEST(Refusal, IsWhatReportsOnlyTheNotSupportedFamily) {
  EXPECT_TRUE(reports_only_refusals("Warning: CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN; Reason: kernelGeneration()"));
  EXPECT_TRUE(reports_only_refusals("Finalize Descriptor Failed cudnn_status: CUDNN_STATUS_NOT_SUPPORTED"));
  EXPECT_TRUE(reports_only_refusals("f() failed with message: no, and code: CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH"));
}

TEST(Refusal, IsNotAnyOtherStatus) {
  EXPECT_FALSE(reports_only_refusals(""));
  EXPECT_FALSE(reports_only_refusals("something else"));
  EXPECT_FALSE(reports_only_refusals("and code: CUDNN_STATUS_BAD_PARAM"));
  EXPECT_FALSE(reports_only_refusals("Error: CUDNN_STATUS_INTERNAL_ERROR; Reason: x"));
  EXPECT_FALSE(reports_only_refusals(
      "Warning: CUDNN_STATUS_NOT_SUPPORTED; Reason: x\nError: CUDNN_STATUS_ALLOC_FAILED; Reason: y"));
}

TEST(Refusal, IgnoresNamesInQuotedSource) {
  EXPECT_TRUE(
      reports_only_refusals("Warning: CUDNN_STATUS_NOT_SUPPORTED; Reason: (CUDNN_STATUS_NOT_INITIALIZED == status) "
                            "|| (CUDNN_STATUS_NOT_SUPPORTED == ((status) / 1000 * 1000))"));
  EXPECT_FALSE(reports_only_refusals("assertion (CUDNN_STATUS_NOT_SUPPORTED == status)"));
}

TEST(Refusal, IsShortenedToTheBottomOfEachEnginesChecks) {
  EXPECT_EQ(short_refusal("create_execution_plans: No valid engine configs for ____\n"
                          "{\"engineId\":6}\nWarning: X; Reason: first at: 1\nWarning: X; Reason: caller()\n\n"
                          "{\"engineId\":7}\nWarning: X; Reason: first at: 1\nWarning: X; Reason: caller()\n\n"
                          "{\"engineId\":8}\nWarning: X; Reason: second\n"),
            "first at: 1; second");
  EXPECT_EQ(short_refusal("validate: dims differ"), "validate: dims differ");
}

}  // namespace
}  // namespace scoremod::backend::cudnn
