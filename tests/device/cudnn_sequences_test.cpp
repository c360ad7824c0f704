// cuDNN's plans of varlen sequences and paged KV caches on a device: outputs and gradients beside the oracle, and page
// tables that name pages which the pool does not have.

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "scoremod/attention.hpp"
#include "scoremod/check.hpp"
#include "scoremod/error.hpp"
#include "scoremod/inputs.hpp"
#include "scoremod/staging.hpp"
#include "scoremod/tensors.hpp"

#include "backend/cudnn/graph/library.hpp"
#include "base/concat.hpp"
#include "check/zoo_cases.hpp"
#include "device/device_fixture.hpp"

namespace scoremod {
namespace {

class CudnnSequences : public test::OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (!IsSkipped() && !backend::cudnn::library().available) GTEST_SKIP() << backend::cudnn::library().reason;
  }
};

AttentionProblem sizes(std::int64_t seq_q, std::int64_t seq_kv) {
  AttentionProblem problem;
  problem.batch = 3;
  problem.heads_q = 4;
  problem.heads_kv = 2;
  problem.seq_q = seq_q;
  problem.seq_kv = seq_kv;
  problem.stats = true;
  return problem;
}

void set_varlen_queries(AttentionProblem& problem, std::int64_t tokens) {
  problem.tokens_q = tokens;
  problem.q.layout = problem.o.layout = Layout::kTHD;
}

void set_varlen_keys(AttentionProblem& problem, std::int64_t tokens) {
  problem.tokens_kv = tokens;
  problem.k.layout = problem.v.layout = Layout::kTHD;
}

void set_pages(AttentionProblem& problem, std::int64_t rows, Layout layout) {
  problem.lengths.kv = true;
  const std::int64_t each = (problem.seq_kv + rows - 1) / rows + 1;
  problem.paged = PagedKeys{rows, problem.batch * each, each};
  problem.k.layout = problem.v.layout = layout;
}

/// Whether all of it ran; the plans of some are refused by cuDNN itself.
bool run(const std::string& name, const std::vector<std::string>& modifiers, const AttentionProblem& problem) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const checking::CheckCase made = checking::zoo_case(modifiers, problem, dtype);
    SCOPED_TRACE(concat(name, " ", to_string(dtype)));
    CheckOptions options;
    options.compile.backend = "cudnn";
    options.call = made.call;
    CheckReport report;
    try {
      report = check(made.problem, options);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnsupported ||
          std::string(error.what()).find("cudnn refused it") == std::string::npos)
        throw;
      return false;
    }
    test::record(name, to_string(dtype), report, "");
    for (const std::string& found : report.memory_problems) ADD_FAILURE() << found;
  }
  return true;
}

const std::vector<std::vector<std::string>> kModifiers{
    {}, {"causal"}, {"soft_cap"}, {"relative_bias", "causal"}, {"head_temperature"}};

TEST_F(CudnnSequences, RunVarlenTensorsInBothDirections) {
  for (const std::vector<std::string>& modifiers : kModifiers) {
    const std::string title = modifiers.empty() ? "none" : modifiers.front();
    AttentionProblem problem = sizes(300, 300);
    problem.backward = true;
    set_varlen_keys(problem, 700);
    run(concat("varlen keys, ", title), modifiers, problem);
    set_varlen_queries(problem, 650);
    EXPECT_TRUE(run(concat("varlen, ", title), modifiers, problem));
    problem.k = problem.v = {};
    problem.tokens_kv.reset();
    run(concat("varlen queries, ", title), modifiers, problem);
  }
}

TEST_F(CudnnSequences, RunPages) {
  for (const std::vector<std::string>& modifiers : kModifiers) {
    const std::string title = modifiers.empty() ? "none" : modifiers.front();
    for (const std::int64_t rows : {1, 16, 128}) {
      for (const std::int64_t queries : {1, 70}) {
        AttentionProblem problem = sizes(queries, 333);
        set_pages(problem, rows, rows == 16 ? Layout::kBHSD : Layout::kBSHD);
        EXPECT_TRUE(run(concat("pages of ", rows, ", ", queries, " queries, ", title), modifiers, problem));
      }
    }
    AttentionProblem problem = sizes(90, 333);
    set_pages(problem, 16, Layout::kBSHD);
    set_varlen_queries(problem, 150);
    EXPECT_TRUE(run(concat("varlen over pages, ", title), modifiers, problem));
  }
}

/// o of a call whose page tables and length are these.
std::vector<std::byte> o_of(const Attention& attention, ProblemInputs inputs, const std::vector<std::int32_t>& pages,
                            std::int32_t length) {
  for (OwnedOperand& operand : inputs.operands) {
    if (operand.name == "lengths_kv") std::memcpy(operand.bytes.data(), &length, sizeof(length));
    if (operand.name.starts_with("page_table"))
      std::memcpy(operand.bytes.data(), pages.data(), pages.size() * sizeof(std::int32_t));
  }
  std::vector<std::byte> o(tensors_of(attention.problem())[3].bytes, std::byte{0xff});
  Staging staging(attention);
  ForwardArgs host;
  host.q = {inputs.q.data(), inputs.q.size()};
  host.k = {inputs.k.data(), inputs.k.size()};
  host.v = {inputs.v.data(), inputs.v.size()};
  host.operands = inputs.operand_buffers();
  host.o = {o.data(), o.size()};
  const ForwardArgs staged = staging.stage(host);
  attention.forward(staged, staging.workspace(attention.forward_workspace_bytes()));
  staging.fetch();
  return o;
}

TEST_F(CudnnSequences, MaskKeysOfPagesThatThePoolDoesNotHave) {
  AttentionProblem problem = sizes(40, 64);
  problem.dtype = DType::kBF16;
  problem.stats = false;
  problem.batch = 1;
  set_pages(problem, 16, Layout::kBSHD);
  problem.program = Program::parse("value = score");
  CompileOptions options;
  options.backend = "cudnn";
  const Attention attention = Attention::compile(problem, options);
  const ProblemInputs inputs = random_inputs(attention.problem());
  const std::vector<std::byte> of_two_pages = o_of(attention, inputs, {0, 1, 2, 3, 4}, 32);
  EXPECT_EQ(o_of(attention, inputs, {0, 1, 999, -1, 4}, 48), of_two_pages);
  EXPECT_NE(o_of(attention, inputs, {0, 1, 2, 3, 4}, 48), of_two_pages);
}

}  // namespace
}  // namespace scoremod
