#include "backend/cpu/cpu_backend.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/attention.hpp"
#include "scoremod/check.hpp"
#include "scoremod/inputs.hpp"

#include "base/fail.hpp"
#include "support/problem_for.hpp"

namespace scoremod::backend {
namespace {

AttentionProblem make_problem(const char* program, std::int64_t seq_q, std::int64_t seq_kv) {
  AttentionProblem sizes;
  sizes.batch = 2;
  sizes.heads_q = 4;
  sizes.heads_kv = 2;
  sizes.seq_q = seq_q;
  sizes.seq_kv = seq_kv;
  sizes.dim_qk = 24;
  sizes.dim_v = 40;
  sizes.backward = sizes.stats = true;
  return test::problem_for(Program::parse(program), sizes, 31);
}

/// Everything that a forward and a backward write.
struct Outputs {
  std::vector<std::vector<std::byte>> tensors;
};

using Bytes = std::vector<std::byte>;

ConstBuffer reads(const Bytes& bytes) { return {bytes.data(), bytes.size()}; }
Buffer writes(Bytes& bytes) { return {bytes.data(), bytes.size()}; }

Attention compile(const AttentionProblem& problem, int threads) {
  CompileOptions options;
  options.backend = "cpu";
  options.threads = threads;
  return Attention::compile(problem, options);
}

/// dq, dk, dv and the operands' gradients.
std::vector<Bytes> run_backward(const AttentionProblem& problem, const ProblemInputs& inputs, const Bytes& o,
                                const Bytes& lse, int threads) {
  std::vector<Bytes> out{Bytes(inputs.q.size()), Bytes(inputs.k.size()), Bytes(inputs.v.size())};
  for (const OwnedOperand& operand : inputs.operands) out.emplace_back(operand.bytes.size());
  BackwardArgs args{
      reads(inputs.q),          reads(inputs.k), reads(inputs.v), reads(o),       reads(lse), reads(inputs.d_o),
      inputs.operand_buffers(), writes(out[0]),  writes(out[1]),  writes(out[2]), {},         {}};
  for (std::size_t i = 0; i < inputs.operands.size(); ++i) {
    if (is_floating(problem.operands[i].dtype))
      args.d_operands.push_back({problem.operands[i].name, writes(out[3 + i])});
  }
  compile(problem, threads).backward(args);
  return out;
}

Outputs run(const AttentionProblem& problem, const ProblemInputs& inputs, int threads) {
  Bytes o(inputs.d_o.size());
  Bytes lse(static_cast<std::size_t>(problem.batch * problem.heads_q * problem.seq_q) * sizeof(float));
  compile(problem, threads)
      .forward(
          {reads(inputs.q), reads(inputs.k), reads(inputs.v), inputs.operand_buffers(), writes(o), writes(lse), {}});
  Outputs outputs{{o, lse}};
  for (Bytes& gradient : run_backward(problem, inputs, o, lse, threads)) outputs.tensors.push_back(std::move(gradient));
  return outputs;
}

constexpr const char* kEveryKindOfOperand =
    "operand scalar: f32 []\n"
    "operand by_head: f32 [h]\n"
    "operand by_query: f32 [b, q_idx]\n"
    "operand by_key: f32 [h, kv_idx]\n"
    "operand full: f32 [q_idx, kv_idx]\n"
    "table rel: f32 rank 2\n"
    "value = score * scalar + by_head * by_query + by_key + full + rel[h, q_idx - kv_idx + 15]\n"
    "keep = q_idx - kv_idx < 400";

TEST(CpuBackend, GivesTheSameBitsWithAnyNumberOfThreads) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    AttentionProblem problem = make_problem(kEveryKindOfOperand, 331, 613);
    problem.dtype = dtype;
    problem.operands[2].dtype = problem.operands[4].dtype = dtype;
    const ProblemInputs inputs = random_inputs(problem);
    const Outputs one = run(problem, inputs, 1);
    for (const int threads : {2, 3, 7}) {
      const Outputs several = run(problem, inputs, threads);
      for (std::size_t i = 0; i < one.tensors.size(); ++i) {
        EXPECT_EQ(std::memcmp(one.tensors[i].data(), several.tensors[i].data(), one.tensors[i].size()), 0)
            << "tensor " << i << " with " << threads << " threads";
      }
    }
  }
}

void expect_check_passes(const AttentionProblem& problem, const std::string& what, const CheckOptions& base = {}) {
  CheckOptions options = base;
  options.compile.backend = "cpu";
  const CheckReport report = check(problem, options);
  for (const OutputCheck& output : report.outputs) {
    for (const std::string& text : output.problems) ADD_FAILURE() << what << ": " << output.name << ": " << text;
  }
  for (const std::string& text : report.memory_problems) ADD_FAILURE() << what << ": " << text;
}

TEST(CpuBackend, CrossesTheBordersOfTiles) {
  // Around the rows of a register block, the columns of a panel, and the keys of a forward and a backward tile.
  for (const std::int64_t seq_q : {1, 3, 11, 12, 13, 49}) {
    for (const std::int64_t seq_kv : {1, 31, 32, 33, 255, 256, 257}) {
      expect_check_passes(make_problem(kEveryKindOfOperand, seq_q, seq_kv),
                          std::to_string(seq_q) + " x " + std::to_string(seq_kv));
    }
  }
  for (const std::int64_t seq_kv : {511, 512, 513, 1025}) {
    expect_check_passes(make_problem("value = score\nkeep = q_idx + 500 >= kv_idx", 14, seq_kv),
                        "14 x " + std::to_string(seq_kv));
  }
}

float number_at(const std::vector<std::byte>& tensor, std::size_t i) {
  float number = 0;
  std::memcpy(&number, tensor.data() + i * sizeof(number), sizeof(number));
  return number;
}

void fill(std::vector<std::byte>& tensor, float value) {
  for (std::size_t i = 0; i < tensor.size(); i += sizeof(value)) std::memcpy(tensor.data() + i, &value, sizeof(value));
}

TEST(CpuBackend, MakesTheSameScoresInBothDirections) {
  // The LSE over one key is its score as the forward rounds it. The backward must see that very number: a score next to
  // it gives the key a weight of exp(-40).
  for (const std::int64_t seq_q : {1, 2, 3, 4, 13}) {
    const AttentionProblem plain = make_problem("value = score", seq_q, 1);
    ProblemInputs inputs = random_inputs(plain);
    fill(inputs.d_o, 1);
    const std::vector<std::byte> scores = run(plain, inputs, 1).tensors[1];

    const AttentionProblem step =
        make_problem("operand t: f32 [b, h, q_idx]\nvalue = select(score == t, 40.0, 0.0)", seq_q, 1);
    inputs.operands = {{"t", scores}};
    const std::vector<std::byte> dv = run(step, inputs, 1).tensors[4];
    for (std::size_t i = 0; i < dv.size() / sizeof(float); ++i) {
      ASSERT_EQ(number_at(dv, i), static_cast<float>(2 * seq_q)) << "element " << i << " of dv with seq_q " << seq_q;
    }
  }
}

/// Overwrites one row (or, without `row`, all) of a dense [2, seq, heads, dim] tensor in f32.
void poison(std::vector<std::byte>& tensor, std::int64_t heads, std::int64_t seq, std::int64_t dim, std::int64_t row,
            float value) {
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t i = 0; i < heads * dim; ++i) {
      std::memcpy(tensor.data() + ((b * seq + row) * heads * dim + i) * 4, &value, 4);
    }
  }
}

TEST(CpuBackend, KeepsOutWhatMaskedKeysAndQueriesHold) {
  // Key 7 is masked for every query; query 5 keeps no key.
  const AttentionProblem problem = make_problem("value = score\nkeep = (kv_idx != 7) & (q_idx != 5)", 30, 40);
  for (const float value : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    CheckOptions options;
    options.inputs = random_inputs(problem);
    poison(options.inputs->k, 2, 40, 24, 7, value);
    poison(options.inputs->v, 2, 40, 40, 7, value);
    poison(options.inputs->q, 4, 30, 24, 5, value);
    poison(options.inputs->d_o, 4, 30, 40, 5, value);
    const Outputs outputs = run(problem, *options.inputs, 2);
    for (const std::vector<std::byte>& tensor : outputs.tensors) {
      for (std::size_t i = 0; i < tensor.size(); i += 4) {
        float number = 0;
        std::memcpy(&number, tensor.data() + i, 4);
        ASSERT_FALSE(std::isnan(number) || number == std::numeric_limits<float>::infinity());
      }
    }
    expect_check_passes(problem, "poisoned", options);
  }
}

TEST(CpuBackend, PassesOnWhatIsNotANumberInWhatIsKept) {
  const AttentionProblem problem = make_problem("value = score\nkeep = q_idx >= kv_idx", 30, 40);
  for (const float value : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
    for (const int tensor : {0, 1, 2, 3}) {
      CheckOptions options;
      options.inputs = random_inputs(problem);
      if (tensor == 0) poison(options.inputs->q, 4, 30, 24, 9, value);
      if (tensor == 1) poison(options.inputs->k, 2, 40, 24, 9, value);
      if (tensor == 2) poison(options.inputs->v, 2, 40, 40, 9, value);
      if (tensor == 3) poison(options.inputs->d_o, 4, 30, 40, 9, value);
      expect_check_passes(problem, "tensor " + std::to_string(tensor) + " holds " + std::to_string(value), options);
    }
  }
}

TEST(CpuBackend, WeighsKeysWhoseLseLosesTheirSum) {
  // float32 has no digit of the logarithm of the number of keys beside these values.
  for (const char* value : {"-1e9", "1e9", "f32(kv_idx) + 8388608.0", "select(q_idx < 9, -1e9, score)",
                            "select(kv_idx < 3, -inf, -3e38)", "score - 16384.0", "score * 0.5 + 300.0",
                            "select(q_idx % 2 == 0, score, f32(kv_idx % 3) * 0.25 - 4194304.0)"}) {
    for (const std::int64_t seq_q : {2, 16}) {
      for (const char* keep : {"", "\nkeep = (kv_idx + q_idx) % 5 != 0"}) {
        expect_check_passes(make_problem((std::string("value = ") + value + keep).c_str(), seq_q, 150),
                            std::string(value) + keep + " with seq_q " + std::to_string(seq_q));
      }
    }
  }
}

/// As in a ring of devices, where each is given the LSE over the keys of all.
TEST(CpuBackend, TakesTheLseOfMoreKeysThanItHas) {
  const AttentionProblem problem = make_problem("value = score + 300.0", 30, 40);
  ProblemInputs inputs = random_inputs(problem);
  fill(inputs.d_o, 1);
  const Outputs part = run(problem, inputs, 1);
  // With the same keys on another device every weight is half as large.
  Bytes lse = part.tensors[1];
  for (std::size_t i = 0; i < lse.size(); i += sizeof(float)) {
    const float more = number_at(lse, i / sizeof(float)) + std::log(2.0f);
    std::memcpy(lse.data() + i, &more, sizeof(more));
  }
  const Bytes dv = run_backward(problem, inputs, part.tensors[0], lse, 1)[2];
  for (std::size_t i = 0; i < dv.size() / sizeof(float); ++i) {
    // Both LSEs lie between 256 and 512, where float32's spacing is 2^-15.
    const float expected = number_at(part.tensors[4], i) / 2;
    ASSERT_NEAR(number_at(dv, i), expected, 0x1p-15f * expected) << "element " << i;
  }
}

TEST(CpuBackend, NeedsMemoryThatDoesNotGrowWithTheLengths) {
  const auto bytes = [](std::int64_t seq, bool backward) {
    AttentionProblem problem;
    problem.seq_q = problem.seq_kv = seq;
    problem.backward = backward;
    CompileOptions options;
    options.backend = "cpu";
    options.threads = 2;
    const Attention attention = Attention::compile(problem, options);
    return backward ? attention.backward_workspace_bytes() : attention.forward_workspace_bytes();
  };
  EXPECT_EQ(bytes(8192, false), bytes(1 << 20, false));
  // The remainder of an LSE takes as much memory as the LSE itself.
  constexpr std::size_t kRemainders = sizeof(float) << 20;
  EXPECT_LE(bytes(1 << 20, true), bytes(8192, true) + kRemainders + (1 << 20));
}

/// Nothing is wrong with a backend whose sums overflow where float32 does.
TEST(CpuBackend, PassesTheCheckWhereInputsOverflowFloat32) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    AttentionProblem problem = make_problem("value = score", 8, 16);
    problem.dtype = dtype;
    for (const char* tensor : {"q", "k", "v", "d_o"}) {
      for (const double largest : {3e38, 1e37, 3e19}) {
        RandomInputOptions fill;
        fill.overrides = {{tensor, {FillKind::kUniform, -largest, largest}}};
        CheckOptions options;
        options.inputs = random_inputs(problem, fill);
        expect_check_passes(problem, concat(tensor, " up to ", largest, " in ", to_string(dtype)), options);
      }
    }
  }
}

TEST(CpuBackend, RefusesAWorkspaceThatNoAddressCounts) {
  AttentionProblem problem;
  problem.batch = std::int64_t{1} << 29;
  problem.heads_q = problem.heads_kv = 1 << 10;
  problem.seq_q = 1 << 20;
  problem.seq_kv = 1 << 10;
  problem.dim_qk = problem.dim_v = 1;
  problem.dtype = DType::kBF16;
  problem.backward = problem.stats = true;
  try {
    compile(problem, 1);
    ADD_FAILURE() << "was not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("needs a workspace of 2^63 bytes or more"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace scoremod::backend
