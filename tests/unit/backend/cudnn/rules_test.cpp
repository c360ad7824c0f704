#include <cstdlib>
#include <functional>
#include <set>

#include <gtest/gtest.h>

#include "backend/cuda/operand_gradients/operand_gradients_backend.hpp"
#include "backend/cudnn/cudnn_backend.hpp"
#include "backend/cudnn/graph/library.hpp"
#include "backend/unsupported.hpp"
#include "compiler/pipeline.hpp"

namespace scoremod::backend {
namespace {

AttentionProblem good_problem() {
  AttentionProblem problem;
  problem.batch = 2;
  problem.heads_q = problem.heads_kv = 4;
  problem.seq_q = problem.seq_kv = 256;
  problem.dim_qk = problem.dim_v = 64;
  problem.dtype = DType::kBF16;
  problem.backward = problem.stats = true;
  problem.program = Program::parse("operand slope: f32 [h]\nvalue = score * slope");
  problem.operands = {{"slope", DType::kF32, {4}, {}}};
  return problem;
}

/// Two problems on both sides of a rule.
struct BothSides {
  Rule rule;
  std::function<void(AttentionProblem&)> refused;
  std::function<void(AttentionProblem&)> taken = [](AttentionProblem&) {};
  int capability = 90;
};

void lay_out(AttentionProblem& problem, std::int64_t dim, std::int64_t sequence) {
  problem.q.strides = Strides{.batch = sequence * 4 * 256, .head = sequence * 256, .sequence = sequence, .dim = dim};
}

void keys_of_192(AttentionProblem& problem) {
  problem.dim_qk = 192;
  problem.dim_v = 128;
}

void set_pages(AttentionProblem& problem, std::int64_t rows) {
  problem.backward = false;
  problem.lengths.kv = true;
  problem.paged = PagedKeys{rows, 40, 16};
}

void set_varlen_keys(AttentionProblem& problem) {
  problem.tokens_kv = 300;
  problem.k = problem.v = {Layout::kTHD, {}};
  problem.operands[0].gradient = false;
}

void set_varlen(AttentionProblem& problem) {
  set_varlen_keys(problem);
  problem.tokens_q = 200;
  problem.q = problem.o = {Layout::kTHD, {}};
}

std::vector<BothSides> rules() {
  return {
      {Rule::kDtype, [](auto& p) { p.dtype = DType::kF32; }, [](auto& p) { p.dtype = DType::kF16; }},
      {Rule::kDtype, [](auto& p) { p.dtype = DType::kE4M3; }},
      {Rule::kHeadDim, [](auto& p) { p.dim_qk = 100; }, [](auto& p) { p.dim_qk = 104; }},
      {Rule::kHeadDim, [](auto& p) { p.dim_v = 264; }, [](auto& p) { p.dim_v = 256; }},
      // cudnn-frontend's own rules of head dims, by architecture.
      {Rule::kEngineRefused, [](auto& p) { p.dim_v = 136; }, [](auto& p) { p.dim_v = 128; }, 100},
      {Rule::kEngineRefused, [](auto& p) { p.dim_qk = p.dim_v = 192; }, keys_of_192, 100},
      {Rule::kEngineRefused, keys_of_192, [](auto& p) { p.dim_qk = 128; }, 80},
      {Rule::kEngineRefused, keys_of_192, [](auto& p) { p.dim_qk = 128; }, 120},
      {Rule::kHeadDimStride, [](auto& p) { lay_out(p, 2, 128); }, [](auto& p) { lay_out(p, 1, 128); }},
      {Rule::kCopyAlignment, [](auto& p) { lay_out(p, 1, 68); }, [](auto& p) { lay_out(p, 1, 72); }},
      {Rule::kDeterministic, [](auto& p) { p.deterministic = true; }, [](auto&) {}, 100},
      {Rule::kDropout, [](auto& p) { p.dropout = 0.1f; }},
      {Rule::kMaxLogit, [](auto& p) { p.max_logit = true; }},
      {Rule::kOutputDtype, [](auto& p) { p.dtype_o = DType::kF32; }, [](auto& p) { p.dtype_o = DType::kBF16; }},
      {Rule::kPaged, [](auto& p) { set_pages(p, 24); }, [](auto& p) { set_pages(p, 32); }},
      {Rule::kOneQueryRow, [](auto& p) { p.seq_q = 15; }, [](auto& p) { p.seq_q = 16; }},
      {Rule::kOperandGradientStride, [](auto& p) { lay_out(p, 2, 128); }, [](auto& p) { lay_out(p, 1, 128); }},
  };
}

std::set<std::string> ids_of(const AttentionProblem& problem, int capability) {
  const compiler::CompiledProblem compiled = compiler::compile(problem);
  Target target;
  target.device.compute_capability = capability;
  target.device.name = "a device";
  target.present = false;
  std::set<std::string> ids;
  const auto add = [&](const std::vector<UnsupportedReason>& reasons) {
    for (const UnsupportedReason& reason : reasons) ids.insert(reason.id);
  };
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    if (direction == Direction::kBackward && !compiled.backward) continue;
    add(cudnn_backend().objections(compiled, {.direction = direction, .operand_gradients = {}}, &target));
  }
  if (compiled.backward)
    add(operand_gradients_backend().objections(compiled, {Direction::kBackward, false, {0}}, &target));
  return ids;
}

/// The backend's objections in these directions.
std::string objections(const std::function<void(AttentionProblem&)>& change,
                       std::initializer_list<Direction> directions = {Direction::kForward, Direction::kBackward},
                       int capability = 90) {
  AttentionProblem problem = good_problem();
  change(problem);
  Target target;
  target.device.compute_capability = capability;
  target.present = false;
  std::string found;
  for (const Direction direction : directions) {
    for (const UnsupportedReason& reason : cudnn_backend().objections(
             compiler::compile(problem), {.direction = direction, .operand_gradients = {}}, &target))
      found += reason.text + "\n";
  }
  return found;
}

TEST(Rules, TakeVarlenSequencesAndPages) {
  if (!cudnn::library().available) GTEST_SKIP() << cudnn::library().reason;
  EXPECT_EQ(objections(set_varlen), "");
  EXPECT_EQ(objections(set_varlen_keys), "");
  for (const int capability : {80, 120}) {
    EXPECT_EQ(objections(set_varlen, {Direction::kForward}, capability), "");
    const std::string found = objections(set_varlen, {Direction::kBackward}, capability);
    EXPECT_NE(found.find("Packed/ragged LSE is not supported"), std::string::npos) << found;
  }
  EXPECT_EQ(objections([](auto& p) { set_pages(p, 16); }, {Direction::kForward}), "");
  EXPECT_EQ(objections(
                [](auto& p) {
                  set_pages(p, 16);
                  p.tokens_q = 200;
                  p.q = p.o = {Layout::kTHD, {}};
                },
                {Direction::kForward}),
            "");
}

TEST(Rules, TakeSinksAndGradientLayouts) {
  if (!cudnn::library().available) GTEST_SKIP() << cudnn::library().reason;
  EXPECT_EQ(objections([](auto& p) { p.sink = Sink::kOffByOne; }), "");
  EXPECT_EQ(objections([](auto& p) { p.sink = Sink::kLearned; }), "");
  EXPECT_EQ(objections([](auto& p) { p.dq = p.dk = p.dv = p.d_o = TensorLayout{Layout::kBHSD, {}}; }), "");
  const auto odd = [](auto& p) { p.dk = TensorLayout{Layout::kBSHD, Strides{69632, 17408, 68, 1}}; };
  EXPECT_NE(objections(odd).find("dk has stride 68 along sequence"), std::string::npos);
}

/// Rules that depend on a device, a library or a run are tested on both sides in planner/plan_task_test.cpp and
/// tests/device.
TEST(Rules, RefuseOnOneSideAndTakeTheOther) {
  if (!cudnn::library().available) GTEST_SKIP() << cudnn::library().reason;
  for (const BothSides& sides : rules()) {
    AttentionProblem refused = good_problem(), taken = good_problem();
    sides.refused(refused);
    sides.taken(taken);
    const std::string id = info(sides.rule).id;
    EXPECT_TRUE(ids_of(refused, sides.capability).contains(id)) << id;
    EXPECT_TRUE(ids_of(taken, sides.capability).empty()) << id << ": " << *ids_of(taken, sides.capability).begin();
  }
}

TEST(Rules, ForbidWhatWasNeverVerifiedWhereVerificationIsForbidden) {
  if (!cudnn::library().available) GTEST_SKIP() << cudnn::library().reason;
  const std::string id = info(Rule::kVerificationForbidden).id;
  ASSERT_EQ(setenv("SCOREMOD_VERIFICATION", "never", 1), 0);
  EXPECT_TRUE(ids_of(good_problem(), 80).contains(id));
  unsetenv("SCOREMOD_VERIFICATION");
  EXPECT_FALSE(ids_of(good_problem(), 80).contains(id));
}

}  // namespace
}  // namespace scoremod::backend
