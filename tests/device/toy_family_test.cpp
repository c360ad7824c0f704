// A family of kernels from a folder of its own (tests/support/toy_family), chosen, verified, stored and run
// as the library's are.

#include "support/toy_family/toy_family.hpp"

#include <algorithm>

#include <gtest/gtest.h>

#include "scoremod/cache.hpp"
#include "scoremod/check.hpp"

#include "backend/kernels/family.hpp"
#include "device/device_fixture.hpp"
#include "problem/tensor_view.hpp"
#include "support/scratch_folder.hpp"

namespace scoremod {
namespace {

class ToyFamilyOnDevice : public test::OnDevice {};

TEST_F(ToyFamilyOnDevice, IsChosenVerifiedStoredAndRight) {
  const backend::kernels::AddedFamily added(test::kToyFamily, test::toy_files());
  const test::ScratchFolder folder;
  set_plan_store_directory(folder.path().string());
  AttentionProblem problem;
  problem.batch = 2;
  problem.heads_q = 4;
  problem.heads_kv = 2;
  problem.seq_q = 70;
  problem.seq_kv = 90;
  problem.dtype = DType::kBF16;
  problem.stats = true;
  problem.program =
      Program::parse("operand slope: f32 [h]\nvalue = score + slope * f32(kv_idx - q_idx)\nkeep = kv_idx <= q_idx");
  problem.operands = {problem::default_spec(problem, problem.program.operands().front())};
  problem.operands.front().gradient = false;
  CheckOptions options;
  options.compile.backend = "kernels";
  options.compile.new_sizes = NewSizes::kWait;
  const auto is_toy = [](const StoredFile& file) { return file.label.find("toy kernels") != std::string::npos; };
  for (const char* what : {"built", "from the store"}) {
    SCOPED_TRACE(what);
    const CheckReport report = check(problem, options);
    EXPECT_TRUE(report.passed());
    EXPECT_TRUE(std::ranges::any_of(list_plan_store(), is_toy)) << "another family was chosen";
    clear_plan_cache();
  }
  set_plan_store_directory("");
}

}  // namespace
}  // namespace scoremod
