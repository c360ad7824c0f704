#include "compiler/pipeline.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/error.hpp"

#include "ir/verify.hpp"
#include "masks/classify_mask.hpp"

namespace scoremod {
namespace {

AttentionProblem problem_with(const char* program, bool backward) {
  AttentionProblem problem;
  problem.seq_q = 8;
  problem.seq_kv = 8;
  problem.program = Program::parse(program);
  problem.backward = backward;
  return problem;
}

constexpr const char* kCausalSoftCap = "value = select(q_idx >= kv_idx, tanh(score / 50.0) * 50.0, -inf)";

std::vector<std::string> steps_run(const AttentionProblem& problem, std::vector<std::string> disabled = {}) {
  std::vector<std::string> names;
  compiler::PipelineOptions options;
  options.disabled = std::move(disabled);
  options.on_step = [&](const compiler::StepReport& report) {
    EXPECT_EQ(Program::parse(report.program).to_string(), report.program);
    EXPECT_GE(report.microseconds, 0);
    names.push_back(report.name);
  };
  compiler::compile(problem, options);
  return names;
}

TEST(Pipeline, ForwardProblemsHaveNoDerivative) {
  const auto compiled = compiler::compile(problem_with(kCausalSoftCap, false));
  EXPECT_FALSE(compiled.backward.has_value());
  EXPECT_EQ(compiled.problem.program, Program::parse(kCausalSoftCap));
}

TEST(Pipeline, BackwardProblemsHaveADerivativeOfTheCompiledProgram) {
  const auto compiled = compiler::compile(problem_with(kCausalSoftCap, true));
  ASSERT_TRUE(compiled.backward.has_value());
  EXPECT_TRUE(ir::is_derivative(compiled.backward->program));
  EXPECT_EQ(compiled.backward->program.operands(), compiled.forward.program.operands());
}

TEST(Pipeline, TheDerivativeHasTheProgramsNodes) {
  const AttentionProblem problem = problem_with(
      "let t = tanh(score / 8.0)\n"
      "value = select(kv_idx <= q_idx, 8.0 * t + max(0.0, t), -inf)\n"
      "keep = q_idx - kv_idx < 5 & (q_idx % 2 == 0 | kv_idx < 3)",
      true);
  const auto compiled = compiler::compile(problem);
  ASSERT_TRUE(compiled.backward.has_value());
  EXPECT_EQ(compiled.backward->program.value(), compiled.forward.program.value());
  EXPECT_EQ(compiled.backward->program.keep(), compiled.forward.program.keep());
  for (NodeId id = 0; id < compiled.forward.program.nodes().size(); ++id) {
    EXPECT_EQ(compiled.backward->program.nodes()[id], compiled.forward.program.nodes()[id]) << id;
  }
}

TEST(Pipeline, ReportsEachStepInOrder) {
  std::vector<std::string> expected = compiler::step_names();
  for (auto name = expected.begin(); name != expected.end(); ++name) {
    if (*name == "classify_mask") {
      expected.insert(name, "differentiate");
      break;
    }
  }
  expected.emplace_back("reduce_operands");
  EXPECT_EQ(steps_run(problem_with(kCausalSoftCap, true)), expected);
}

TEST(Pipeline, TheDerivativesMaskIsOfItsOwnNodes) {
  const AttentionProblem problem = problem_with(
      "value = select(kv_idx <= q_idx & (h < 1 | (b + kv_idx) % 3 == 0), tanh(score), -inf)\nkeep = kv_idx + 5 > q_idx",
      true);
  // If all steps run, both programs number the mask's nodes alike; if the forward is left unchanged, they don't.
  for (const std::vector<std::string>& disabled :
       {std::vector<std::string>{}, {"simplify", "share", "simplify_normalized"}, {"simplify", "normalize_mask"}}) {
    compiler::PipelineOptions options;
    options.disabled = disabled;
    const auto compiled = compiler::compile(problem, options);
    masks::MaskContext context;
    context.seq_q = context.seq_kv = 8;
    EXPECT_EQ(compiled.forward.mask, masks::classify_mask(compiled.forward.program, context));
    EXPECT_EQ(compiled.backward->mask, masks::classify_mask(compiled.backward->program, context));
  }
}

TEST(Pipeline, ADisabledStepIsLeftOut) {
  for (const std::string& name : compiler::step_names()) {
    for (const std::string& run : steps_run(problem_with(kCausalSoftCap, true), {name})) EXPECT_NE(run, name);
  }
  EXPECT_EQ(steps_run(problem_with(kCausalSoftCap, false), compiler::step_names()), std::vector<std::string>{});
}

TEST(Pipeline, AMaskThatIsNotClassifiedIsGeneral) {
  compiler::PipelineOptions options;
  options.disabled = {"classify_mask", "classify_derivative_mask"};
  const auto compiled = compiler::compile(problem_with("value = score\nkeep = q_idx >= kv_idx", true), options);
  EXPECT_EQ(compiled.forward.mask.kind, masks::MaskKind::kGeneral);
  ASSERT_EQ(compiled.forward.mask.terms.size(), 1u);
  EXPECT_EQ(compiled.forward.mask.terms.front().node, compiled.forward.program.keep());
  ASSERT_EQ(compiled.backward->mask.terms.size(), 1u);
  EXPECT_EQ(compiled.backward->mask.terms.front().node, compiled.backward->program.keep());
  EXPECT_EQ(compiler::compile(problem_with("value = score", false), options).forward.mask.kind, masks::MaskKind::kFull);
}

TEST(Pipeline, RefusesUnknownAndRequiredSteps) {
  for (const char* name : {"simplfy", "", "differentiate"}) {
    compiler::PipelineOptions options;
    options.disabled = {name};
    try {
      compiler::compile(problem_with("value = score", true), options);
      FAIL() << "expected an error for '" << name << "'";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find("normalize_mask, "), std::string::npos) << error.what();
    }
  }
}

TEST(Pipeline, PutsTheScaleIntoProgramsThatReadIt) {
  AttentionProblem problem = problem_with("operand x: f32 [h]\nvalue = score + qk_scale * x", true);
  problem.operands = {{"x", DType::kF32, {1}, {}}};
  problem.scale = 0.25F;
  const auto compiled = compiler::compile(problem);
  EXPECT_EQ(compiled.problem.program, Program::parse("operand x: f32 [h]\nvalue = score + 0.25 * x"));
  EXPECT_EQ(compiled.forward.program, Program::parse("operand x: f32 [h]\nvalue = score + x * 0.25"));
}

TEST(Pipeline, SurrogatesAreThereForTheDerivativeAlone) {
  for (const bool simplified : {true, false}) {
    compiler::PipelineOptions options;
    if (!simplified) options.disabled = compiler::step_names();
    const char* text = "value = surrogate(round(score), score * score) * 2.0\nkeep = surrogate(score, 1.0) > -3.0";
    const auto compiled = compiler::compile(problem_with(text, true), options);
    EXPECT_EQ(compiled.forward.program, Program::parse("value = round(score) * 2.0\nkeep = score > -3.0"));
    const Program expected = Program::parse(
        "value = round(score) * 2.0\nkeep = score > -3.0\nd_score = 2.0 * ((upstream * score) + (upstream * score))");
    EXPECT_EQ(compiled.backward->program.to_string().find("surrogate"), std::string::npos);
    EXPECT_EQ(compiled.backward->program.value(), expected.value());
  }
  // A mask inside one is found as any other.
  const auto masked =
      compiler::compile(problem_with("value = surrogate(select(kv_idx <= q_idx, score, -inf), score)", true));
  EXPECT_EQ(masked.forward.program, Program::parse("value = score\nkeep = q_idx >= kv_idx"));
}

TEST(Pipeline, RefusesAnInvalidProblem) {
  AttentionProblem problem = problem_with("value = score", false);
  problem.seq_q = -1;
  EXPECT_THROW(compiler::compile(problem), Error);
}

}  // namespace
}  // namespace scoremod
