#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "backend/kernels/backend/kernels_backend.hpp"
#include "backend/kernels/family.hpp"
#include "compiler/pipeline.hpp"
#include "support/problem_for.hpp"
#include "unit/backend/kernels/kernel_candidates.hpp"

namespace scoremod::backend {
namespace {

using compiler::CompiledProblem;

constexpr const char* kPrograms[]{"value = score", kCausal,
                                  "operand slope: f32 [h]\nvalue = score + slope * f32(kv_idx - q_idx)",
                                  "operand bias: f32 [b, h, q_idx, kv_idx]\nvalue = score + bias"};

AttentionProblem sized(const char* program, std::int64_t batch, std::int64_t seq_q, std::int64_t seq_kv) {
  AttentionProblem problem;
  problem.dtype = DType::kBF16;
  problem.batch = batch;
  problem.heads_q = 16;
  problem.heads_kv = 4;
  problem.seq_q = seq_q;
  problem.seq_kv = seq_kv;
  problem.dim_qk = problem.dim_v = 128;
  problem.backward = true;
  problem = test::problem_for(Program::parse(program), problem);
  // A bias in q's dtype is what kernels load by TMA, if its rows are aligned.
  for (OperandSpec& operand : problem.operands)
    if (operand.name == "bias") operand.dtype = DType::kBF16;
  return problem;
}

const kernels::KernelsRecipe& recipe_of(const std::shared_ptr<const Recipe>& recipe) {
  return dynamic_cast<const kernels::KernelsRecipe&>(*recipe);
}

/// The launches of a plan, its workspace, and the numbers that are arguments of its kernels.
std::string text_of(const kernels::CallLayout& layout) {
  std::string text = std::to_string(layout.workspace_bytes()) + " " + std::to_string(layout.bytes_once());
  for (const int number : {layout.query_tiles, layout.key_tiles, layout.query_work_tiles, layout.key_work_tiles,
                           layout.heads_together, layout.splits, layout.blocks})
    text += " " + std::to_string(number);
  for (const kernels::KernelLaunch& launch : layout.launches())
    text +=
        std::string(" ") + launch.kernel + " " + std::to_string(launch.blocks) + " " + std::to_string(launch.threads);
  return text;
}

/// The candidate of these sizes with this variant.
const Candidate* same_variant(const std::vector<Candidate>& candidates, const kernels::Variant& variant) {
  const auto found = std::ranges::find_if(
      candidates, [&](const Candidate& each) { return recipe_of(each.recipe).variant().is_same(variant); });
  return found == candidates.end() ? nullptr : &*found;
}

/// A plan like another's must be one that planning these sizes anew finds too: same kernels, same verdict, own
/// launches.
void expect_like(const Candidate& earlier, const CompiledProblem& problem, Direction direction) {
  const kernels::KernelsRecipe& recipe = recipe_of(earlier.recipe);
  const auto like = recipe.layout_at_sizes_of(problem, h200().device);
  std::vector<UnsupportedReason> reasons;
  const std::vector<Candidate> anew = kernels_backend().candidates(problem, {direction, true, {}}, h200(), reasons);
  const Candidate* found = same_variant(anew, recipe.variant());
  if (!like) {
    // Another artifact, or another verdict.
    EXPECT_TRUE(found == nullptr || found->structural_key != earlier.structural_key) << earlier.label;
    return;
  }
  ASSERT_NE(found, nullptr) << earlier.label;
  // To make all variants takes as long as the rest of a new size. A bias that TMA loads asks for it.
  const bool is_listed = earlier.label.find("copied") != std::string::npos;
  const kernels::Work work{problem, direction, {}};
  EXPECT_EQ(recipe.variant().at_sizes_of(work, h200().device) == nullptr, is_listed) << earlier.label;
  EXPECT_EQ(found->plan_key, earlier.plan_key) << earlier.label;
  EXPECT_EQ(found->structural_key, earlier.structural_key) << earlier.label;
  const kernels::KernelsRecipe& planned_anew = recipe_of(found->recipe);
  EXPECT_EQ(text_of(*like), text_of(planned_anew.variant().layout(planned_anew.work()))) << earlier.label;
}

TEST(RecipeSizes, AreThoseOfCandidatesPlannedAnew) {
  for (const char* program : kPrograms) {
    for (const std::int64_t queries : {1, 5, 700}) {
      const AttentionProblem first = sized(program, 2, queries, 1024);
      for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
        for (const Candidate& earlier : candidates_of(first, direction)) {
          // Lengths that fill no tile, unaligned rows of a bias, other batches, few keys.
          for (const auto& [batch, rows, keys] : {std::tuple{2, queries, std::int64_t{1027}},
                                                  {7, queries, 1280},
                                                  {1, queries + 1, 4096},
                                                  {2, queries, 17}}) {
            const CompiledProblem other = compiler::compile(sized(program, batch, rows, keys));
            expect_like(earlier, other, direction);
          }
        }
      }
    }
  }
}

/// Strides of a tensor that lies in a larger one whose rows have so many elements more.
Strides wider(const AttentionProblem& problem, std::int64_t more) {
  const std::int64_t row = problem.dim_qk + more;
  return {problem.seq_kv * problem.heads_kv * row, row, problem.heads_kv * row, 1};
}

TEST(RecipeSizes, AreNotOfOtherBranches) {
  const AttentionProblem dense = sized("value = score", 2, 700, 1024);
  AttentionProblem aligned = dense, unaligned = dense, alone = dense;
  aligned.k.strides = wider(dense, 8);
  unaligned.k.strides = wider(dense, 3);
  alone.heads_kv = alone.heads_q;
  const AttentionProblem* const all[]{&dense, &aligned, &unaligned, &alone};
  for (const AttentionProblem* first : all) {
    for (const Candidate& earlier : candidates_of(*first, Direction::kForward)) {
      for (const AttentionProblem* other : all) {
        const bool is_alike = kernels::branches_of(*first) == kernels::branches_of(*other);
        const CompiledProblem problem = compiler::compile(*other);
        const auto like = recipe_of(earlier.recipe).layout_at_sizes_of(problem, h200().device);
        EXPECT_LE(like.has_value(), is_alike) << earlier.label;
        EXPECT_GE(like.has_value(), first == other) << earlier.label;
        expect_like(earlier, problem, Direction::kForward);
      }
    }
  }
  EXPECT_EQ(kernels::branches_of(dense), kernels::branches_of(aligned));
  EXPECT_NE(kernels::branches_of(dense), kernels::branches_of(unaligned));
  EXPECT_NE(kernels::branches_of(dense), kernels::branches_of(alone));
}

}  // namespace
}  // namespace scoremod::backend
