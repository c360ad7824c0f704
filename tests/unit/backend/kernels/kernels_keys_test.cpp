#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "backend/kernels/backend/kernels_backend.hpp"
#include "backend/kernels/hopper/family.hpp"
#include "backend/kernels/split_kv/family.hpp"
#include "base/canonical_bytes.hpp"
#include "compiler/pipeline.hpp"
#include "problem/tensor_view.hpp"
#include "support/tiled_call.hpp"
#include "unit/backend/kernels/kernel_candidates.hpp"
#include "verification/trial_problem.hpp"

namespace scoremod::backend {
namespace {

TEST(KernelsBackend, KeepsOneImageForProblemsThatDifferInSizesAndStrides) {
  AttentionProblem other = problem_of(kCausal);
  other.batch = 3;
  other.heads_q = 6;
  other.heads_kv = 2;
  other.seq_q = 1000;
  other.seq_kv = 777;
  other.q.layout = Layout::kBHSD;
  other.scale = 0.5f;
  const auto some = candidates_of(problem_of(kCausal), Direction::kForward),
             more = candidates_of(other, Direction::kForward);
  EXPECT_EQ(some[0].plan_key, more[0].plan_key);
  other.dim_qk = 64;
  EXPECT_NE(some[0].plan_key, candidates_of(other, Direction::kForward)[0].plan_key);
  EXPECT_NE(some[0].plan_key, candidates_of(problem_of("value = score"), Direction::kForward)[0].plan_key);
}

TEST(KernelsBackend, KeepsOneImageForProblemsThatDifferInIntegers) {
  const auto keys = [](const char* program) {
    std::vector<Bytes> found;
    for (const Direction direction : {Direction::kForward, Direction::kBackward})
      for (const Candidate& candidate : candidates_of(problem_of(program), direction))
        found.push_back(candidate.plan_key);
    return found;
  };
  const auto some = keys("value = score\nkeep = kv_idx < 64 | abs(q_idx - kv_idx) <= 512");
  EXPECT_EQ(some, keys("value = score\nkeep = kv_idx < 9 | abs(q_idx - kv_idx) <= 70"));
  // 0 and 1 are known to the compiler, and so are divisors.
  EXPECT_NE(some, keys("value = score\nkeep = kv_idx < 1 | abs(q_idx - kv_idx) <= 512"));
  EXPECT_NE(keys("value = score\nkeep = q_idx // 64 == kv_idx // 64"),
            keys("value = score\nkeep = q_idx // 100 == kv_idx // 100"));
}

TEST(KernelsBackend, CompilesNothingForTheTrialOfAWindowBesideGlobalKeys) {
  const compiler::CompiledProblem compiled =
      compiler::compile(problem_of("value = score\nkeep = kv_idx < 64 | abs(q_idx - kv_idx) <= 512"));
  const compiler::CompiledProblem trial = verification::trial_problem(compiled);
  EXPECT_LT(trial.problem.seq_kv, 512);
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    std::vector<UnsupportedReason> reasons;
    EXPECT_EQ(kernels_backend().candidates(compiled, {direction, true, {}}, h200(), reasons)[0].plan_key,
              kernels_backend().candidates(trial, {direction, true, {}}, h200(), reasons)[0].plan_key);
  }
}

/// The keys of all candidates of both directions.
std::vector<Bytes> keys_of(const compiler::CompiledProblem& compiled) {
  std::vector<Bytes> keys;
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    std::vector<UnsupportedReason> reasons;
    for (const Candidate& candidate : kernels_backend().candidates(compiled, {direction, true, {}}, h200(), reasons))
      keys.push_back(candidate.structural_key);
  }
  return keys;
}

std::vector<Bytes> keys_of_forward(const compiler::CompiledProblem& compiled) {
  std::vector<Bytes> keys;
  std::vector<UnsupportedReason> reasons;
  for (const Candidate& candidate :
       kernels_backend().candidates(compiled, {Direction::kForward, true, {}}, h200(), reasons))
    keys.push_back(candidate.structural_key);
  return keys;
}

TEST(KernelsBackend, IsVerifiedByASmallProblemWithTheSameKey) {
  for (const char* program :
       {"value = score", kCausal, "value = tanh(score * 0.1) * 10.0\nkeep = q_idx // 100 == kv_idx // 100",
        "value = score\nkeep = kv_idx <= q_idx & q_idx - kv_idx < 512",
        "value = score\nkeep = kv_idx < 900 | kv_idx <= q_idx", "value = score\nkeep = kv_idx <= q_idx + 4000",
        "value = score\nkeep = kv_idx * 300 <= q_idx * 600",
        "operand x: i32 [b, q_idx]\noperand y: i32 [b, kv_idx]\nvalue = score\nkeep = x == y | kv_idx < 300"}) {
    const compiler::CompiledProblem compiled = compiler::compile(problem_of(program));
    EXPECT_TRUE(keys_of(compiled) == keys_of(verification::trial_problem(compiled))) << program;
  }
}

TEST(KernelsBackend, IsVerifiedByASmallProblemWhoseRowsAreAlignedAlike) {
  for (const std::int64_t gap : {0, 1, 4, 8, 129}) {
    AttentionProblem problem = problem_of(kCausal);
    const std::int64_t row = problem.dim_qk + gap;
    problem.k.strides = Strides{std::int64_t{16} * 4096 * row, 4096 * row, row, 1};
    const compiler::CompiledProblem compiled = compiler::compile(problem);
    EXPECT_TRUE(keys_of(compiled) == keys_of(verification::trial_problem(compiled))) << "gap " << gap;
  }
}

void make_ragged(AttentionProblem& p) {
  p.tokens_q = 5000;
  p.tokens_kv = 6000;
  p.q = p.k = p.v = p.o = {Layout::kTHD, {}};
}
void make_paged(AttentionProblem& p) {
  p.backward = false;
  p.lengths.kv = true;
  p.paged = PagedKeys{16, 2000, 300};
}

TEST(KernelsBackend, IsVerifiedByASmallProblemWhoseRowsLieInTheSameWay) {
  const auto same = [](void (*place)(AttentionProblem&)) {
    AttentionProblem problem = problem_of(kCausal);
    place(problem);
    const compiler::CompiledProblem compiled = compiler::compile(problem);
    const compiler::CompiledProblem trial = verification::trial_problem(compiled);
    const auto keys = [](const compiler::CompiledProblem& one) {
      return one.backward ? keys_of(one) : keys_of_forward(one);
    };
    EXPECT_LT(trial.problem.tokens_q.value_or(0), 1000);
    return keys(compiled) == keys(trial);
  };
  EXPECT_TRUE(same(make_ragged));
  EXPECT_TRUE(same(make_paged));
  EXPECT_TRUE(same([](AttentionProblem& p) { p.dtype_o = DType::kF32; }));
}

TEST(KernelsBackend, TellsWhereRowsLieApart) {
  const auto keys = [](auto place) {
    AttentionProblem problem = problem_of(kCausal);
    place(problem);
    return keys_of_forward(compiler::compile(problem));
  };
  const auto ragged = keys(make_ragged), paged = keys(make_paged);
  const auto dense = keys([](AttentionProblem&) {});
  EXPECT_TRUE(ragged != dense);
  EXPECT_TRUE(paged != dense);
  EXPECT_TRUE(ragged == keys([](AttentionProblem& p) {
                make_ragged(p);
                p.tokens_q = 777;
              }));
  EXPECT_TRUE(paged != keys([](AttentionProblem& p) {
                make_paged(p);
                p.paged->block_size = 32;
              }));
  EXPECT_TRUE(dense != keys([](AttentionProblem& p) { p.dtype_o = DType::kF32; }));
  EXPECT_TRUE(dense == keys([](AttentionProblem& p) { p.dtype_o = p.dtype; }));
}

TEST(KernelsBackend, TellsProblemsOfAnotherStructureApart) {
  const char* const program = "operand x: f32 [h]\nvalue = score * x\nkeep = kv_idx <= q_idx & q_idx - kv_idx < 512";
  const auto keys = keys_of(compiler::compile(problem_of(program)));
  const auto with = [](const char* text, auto change) {
    AttentionProblem problem = problem_of(text);
    change(problem);
    return keys_of(compiler::compile(problem));
  };
  const auto unchanged = [](AttentionProblem&) {};
  EXPECT_TRUE(keys ==
              with("operand y: f32 [h]\nvalue = score * y\nkeep = kv_idx <= q_idx & q_idx - kv_idx < 300", unchanged));
  EXPECT_TRUE(keys !=
              with("operand x: f32 [h]\nvalue = score + x\nkeep = kv_idx <= q_idx & q_idx - kv_idx < 512", unchanged));
  EXPECT_TRUE(keys != with("operand x: f32 [h]\nvalue = score * x\nkeep = kv_idx <= q_idx", unchanged));
  EXPECT_TRUE(keys !=
              with("operand x: f32 [b]\nvalue = score * x\nkeep = kv_idx <= q_idx & q_idx - kv_idx < 512", unchanged));
  EXPECT_TRUE(keys != with(program, [](AttentionProblem& p) { p.operands[0].dtype = DType::kBF16; }));
  EXPECT_TRUE(keys != with(program, [](AttentionProblem& p) { p.dim_v = 64; }));
  EXPECT_TRUE(keys != with(program, [](AttentionProblem& p) { p.dtype = DType::kF16; }));
  EXPECT_TRUE(keys != with(program, [](AttentionProblem& p) { p.heads_kv = 4; }));
}

TEST(KernelsBackend, KeysAreEqualWhereTextsAre) {
  std::vector<compiler::CompiledProblem> compiled;
  for (const char* program : {"value = score", kCausal, "value = tanh(score)",
                              "value = score\nkeep = kv_idx < 64 | abs(q_idx - kv_idx) <= 512",
                              "value = score\nkeep = kv_idx < 64 | abs(q_idx - kv_idx) <= 12",
                              "value = score\nkeep = q_idx // 9 == kv_idx // 9", "value = score\nkeep = score > 0.5",
                              "operand x: f32 [h]\nvalue = score * x", "operand x: f32 [b, h]\nvalue = score * x",
                              "operand x: i32 [b, kv_idx]\nvalue = score\nkeep = x == q_idx"}) {
    compiled.push_back(compiler::compile(problem_of(program)));
    AttentionProblem other = problem_of(program);
    other.seq_kv = 999;
    for (OperandSpec& operand : other.operands) operand.shape.clear();
    for (std::size_t i = 0; i < other.operands.size(); ++i)
      other.operands[i] = problem::default_spec(other, other.program.operands()[i]);
    compiled.push_back(compiler::compile(other));
    other.dtype = DType::kF16;
    other.dim_v = 64;
    compiled.push_back(compiler::compile(other));
    other.sink = Sink::kOffByOne;
    compiled.push_back(compiler::compile(other));
    other.sink = Sink::kNone;
    other.dropout = 0.25F;
    compiled.push_back(compiler::compile(other));
  }
  std::map<std::string, Bytes> key_of;
  std::map<Bytes, std::string> text_of;
  std::size_t equal = 0;
  for (const compiler::CompiledProblem& one : compiled) {
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      std::vector<kernels::AnyShape> shapes{kernels::portable_shape(one.problem, direction),
                                            kernels::hopper_shapes(one.problem, direction).front()};
      if (direction == Direction::kBackward) {
        shapes.push_back(kernels::hopper_fused_shape(one.problem));
      } else {
        shapes.push_back(kernels::persistent_hopper_shape(one.problem, 132));
        const auto few = kernels::split_kv_shapes(one.problem, h200().device);
        shapes.insert(shapes.end(), few.begin(), few.end());
      }
      for (const kernels::AnyShape& shape : shapes) {
        const std::string text = kernels::render_all(kernels::attention_source(one, direction, shape));
        const Bytes key = kernels::key_of(kernels::attention_source(one, direction, shape));
        EXPECT_LT(key.size(), text.size() / 10);
        EXPECT_EQ(key_of.emplace(text, key).first->second, key) << text;
        equal += text_of.emplace(key, text).second ? 0 : 1;
        EXPECT_EQ(text_of.at(key), text);
      }
    }
  }
  EXPECT_GT(equal, 20U);  // other lengths, and windows of another length
}

/// The bytes of a shape in keys: as it is made, then with each change alone.
template <class Shape>
std::vector<Bytes> bytes_with(std::initializer_list<void (*)(Shape&)> changes) {
  const auto bytes_of = [](const Shape& shape) {
    CanonicalWriter out;
    kernels::tiled_variant(shape)->write(out);
    return out.written();
  };
  std::vector<Bytes> found{bytes_of({})};
  for (const auto change : changes) {
    Shape shape;
    change(shape);
    found.push_back(bytes_of(shape));
  }
  return found;
}

void expect_all_differ(const std::vector<Bytes>& found) {
  EXPECT_EQ(std::set<Bytes>(found.begin(), found.end()).size(), found.size());
}

TEST(KernelShapes, AreToldApartByEachNumberThatIsCompiledIn) {
  using kernels::HopperShape, kernels::PortableShape, kernels::SplitKvShape;
  std::vector<Bytes> all = bytes_with<PortableShape>(
      {[](PortableShape& s) { s.warps = 8; }, [](PortableShape& s) { s.row_tiles = 2; },
       [](PortableShape& s) { s.queries = 16; }, [](PortableShape& s) { s.keys = 16; },
       [](PortableShape& s) { s.element_bytes = 4; }, [](PortableShape& s) { s.blocks = 1; },
       [](PortableShape& s) { s.value_parts = 2; }, [](PortableShape& s) { s.step = 16; },
       [](PortableShape& s) { s.part = 16; }, [](PortableShape& s) { s.key_step = 16; },
       [](PortableShape& s) { s.separate_dv = true; }, [](PortableShape& s) { s.recomputed_delta = true; }});
  const std::vector<Bytes> hopper =
      bytes_with<HopperShape>({[](HopperShape& s) { s.stages = 3; }, [](HopperShape& s) { s.persistent_ctas = 5; },
                               [](HopperShape& s) { s.loaded_bias = 0; }, [](HopperShape& s) { s.loaded_bias = 1; },
                               [](HopperShape& s) { s.ordered = true; }, [](HopperShape& s) { s.step = 16; },
                               [](HopperShape& s) { s.part = 16; }, [](HopperShape& s) { s.key_step = 16; },
                               [](HopperShape& s) { s.key_stages = 3; }, [](HopperShape& s) { s.fused = true; },
                               [](HopperShape& s) { s.dq_order = kernels::DqOrder::kLateFence; },
                               [](HopperShape& s) { s.separate_dv = true; }, [](HopperShape& s) { s.turn_ctas = 5; }});
  const std::vector<Bytes> split_kv = bytes_with<SplitKvShape>(
      {[](SplitKvShape& s) { s.hopper = true; }, [](SplitKvShape& s) { s.teams = 2; },
       [](SplitKvShape& s) { s.splits = 2; }, [](SplitKvShape& s) { s.stages = 3; },
       [](SplitKvShape& s) { s.key_bytes = 1; }, [](SplitKvShape& s) { s.persistent_ctas = 5; }});
  all.insert(all.end(), hopper.begin(), hopper.end());
  all.insert(all.end(), split_kv.begin(), split_kv.end());
  expect_all_differ(all);
}

TEST(KernelShapes, HaveTheSameKeysWhereArgumentsDiffer) {
  using kernels::HopperShape, kernels::SplitKvShape;
  const std::vector<Bytes> hopper =
      bytes_with<HopperShape>({[](HopperShape& s) { s.persistent_ctas = 5; },
                               [](HopperShape& s) { s.persistent_ctas = 6; }, [](HopperShape& s) { s.turn_ctas = 5; },
                               [](HopperShape& s) { s.turn_ctas = 6; }, [](HopperShape& s) { s.heads_together = 3; }});
  EXPECT_EQ(hopper[1], hopper[2]);
  EXPECT_EQ(hopper[3], hopper[4]);
  EXPECT_EQ(hopper[5], hopper[0]);
  const std::vector<Bytes> split_kv =
      bytes_with<SplitKvShape>({[](SplitKvShape& s) { s.splits = 2; }, [](SplitKvShape& s) { s.splits = 3; }});
  EXPECT_EQ(split_kv[1], split_kv[2]);
}

}  // namespace
}  // namespace scoremod::backend
