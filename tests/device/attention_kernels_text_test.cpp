// NVRTC compiles attention kernels without a GPU, for every architecture that they are made for.

#include <algorithm>
#include <array>
#include <memory>

#include <gtest/gtest.h>

#include "scoremod/zoo.hpp"

#include "backend/cuda/device/library.hpp"
#include "backend/cuda/modules/runtime_compiler.hpp"
#include "backend/kernels/backend/kernels_backend.hpp"
#include "backend/kernels/float8/family.hpp"
#include "backend/kernels/hopper/family.hpp"
#include "backend/kernels/operand_gradients/operand_gradients.hpp"
#include "backend/kernels/split_kv/family.hpp"
#include "base/fail.hpp"
#include "compiler/pipeline.hpp"
#include "device/device_cases.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"
#include "support/attention_kernels_cases.hpp"
#include "support/loaded_bias_cases.hpp"
#include "support/tiled_call.hpp"

namespace scoremod::backend::kernels {
namespace {

constexpr std::array kArchitectures{80, 86, 90, 100, 120};

class AttentionKernelsText : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::nvrtc_library().handle == nullptr) GTEST_SKIP() << "no NVRTC: " << cuda::nvrtc_library().reason;
  }

  /// ptxas' report on a direction's kernels.
  static std::string report_of(const AttentionProblem& problem, Direction direction, int architecture) {
    return report_of(problem, direction, architecture, portable_shape(problem, direction));
  }
  static std::string report_of(const AttentionProblem& problem, Direction direction, int architecture,
                               const AnyShape& shape) {
    const compiler::CompiledProblem compiled = compiler::compile(problem);
    std::string reports;
    for (const std::string& module : render_modules(attention_source(compiled, direction, shape))) {
      std::string report;
      const std::string image =
          cuda::compile_kernels(module, architecture, &report, tiled_variant(shape)->instructions());
      EXPECT_EQ(image.compare(0, 4, "\177ELF"), 0) << "no machine code for the architecture";
      reports += report;
    }
    return reports;
  }
};

TEST_F(AttentionKernelsText, OfZooEntriesCompile) {
  int number = 0;
  for (const zoo::Entry& entry : zoo::entries()) {
    SCOPED_TRACE(entry.name);
    const AttentionProblem problem = test::zoo_problem(entry.name, number, DType::kBF16).problem;
    const Direction direction = number % 2 == 0 ? Direction::kForward : Direction::kBackward;
    report_of(problem, direction, kArchitectures[static_cast<std::size_t>(number) % kArchitectures.size()]);
    ++number;
  }
}

TEST_F(AttentionKernelsText, OfFieldsAndOperandsGradientsCompile) {
  AttentionProblem problem = test::zoo_problem("alibi", 0, DType::kBF16).problem;
  problem.seq_q = problem.seq_kv = 4096;
  problem.dim_qk = problem.dim_v = 128;
  problem.dropout = 0.1F;
  problem.max_logit = true;
  problem.sink = Sink::kLearned;
  problem = problem::with_implied_operands(std::move(problem));
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    report_of(problem, direction, 80);
    report_of(problem, direction, 90, hopper_shapes(problem, direction).front());
  }
  const compiler::CompiledProblem compiled = compiler::compile(problem);
  const auto targets = operand_targets(compiled, problem::operands_with_gradient(compiled.problem), Gains::kApart);
  ASSERT_EQ(targets.size(), 2U);
  std::string report;
  cuda::compile_kernels(render_all(operand_source(compiled, targets, portable_shape(problem, Direction::kBackward))),
                        90, &report);
  EXPECT_LE(register_spill_bytes(report), kHarmlessSpill) << report;
}

/// Kernels with FP8 products, without a register in memory and with WGMMAs that run beside other work.
TEST_F(AttentionKernelsText, OfFloat8ProductsCompile) {
  for (const char* program : {"value = score", "value = score\nkeep = kv_idx <= q_idx",
                              "value = tanh(score * 0.2) * 5.0\nkeep = kv_idx <= q_idx"}) {
    for (const std::int64_t dim : {64, 128, 256}) {
      SCOPED_TRACE(concat(program, ", head dim ", dim));
      AttentionProblem problem = test::zoo_problem("causal", 0, DType::kE4M3).problem;
      problem.program = Program::parse(program);
      problem.operands.clear();
      problem.dim_qk = dim;
      problem.dim_v = std::min<std::int64_t>(dim, 128);
      problem.dtype_o = DType::kBF16;
      problem.backward = problem.amax_o = problem.amax_gradients = false;
      problem = compiler::compile(problem).problem;
      ASSERT_TRUE(float8_objections(problem).empty()) << float8_objections(problem).front().text;
      const std::shared_ptr<const Variant> variant = float8_variant(float8_shape(problem));
      const std::string report = report_of(problem, Direction::kForward, 90, variant);
      EXPECT_EQ(register_spill_bytes(report), 0) << report;
      EXPECT_FALSE(serializes_products(report)) << report;
    }
  }
}

/// Kernels for tables, and for operands that batches or heads share along queries and keys, on all architectures.
TEST_F(AttentionKernelsText, OfTablesAndSharedElementsCompile) {
  AttentionProblem problem = test::zoo_problem("causal", 0, DType::kBF16).problem;
  problem.batch = 2;
  problem.seq_q = problem.seq_kv = 4096;
  for (const std::int64_t dim : {64, 128}) {
    problem.dim_qk = problem.dim_v = dim;
    for (const char* text : {"table x: f32 rank 1\nvalue = score + x[kv_idx % 40]\nkeep = kv_idx <= q_idx",
                             "operand x: f32 [h, q_idx, kv_idx]\nvalue = score + x\nkeep = kv_idx <= q_idx"}) {
      problem.program = Program::parse(text);
      problem.operands = {problem::default_spec(problem, problem.program.operands().front())};
      if (problem.program.operands().front().is_table()) problem.operands.front().shape = {40};
      const compiler::CompiledProblem compiled = compiler::compile(problem);
      const auto targets = operand_targets(compiled, problem::operands_with_gradient(compiled.problem), Gains::kApart);
      ASSERT_EQ(targets.size(), 1U);
      for (const int architecture : kArchitectures) {
        std::string report;
        const std::string source =
            render_all(operand_source(compiled, targets, portable_shape(problem, Direction::kBackward)));
        cuda::compile_kernels(source, architecture, &report);
        EXPECT_LE(register_spill_bytes(report), kHarmlessSpill) << architecture << ", " << text << ": " << report;
      }
    }
  }
}

/// Kernels whose loop of dq writes gradients along queries and keys, on all architectures.
TEST_F(AttentionKernelsText, OfGradientsAlongQueriesAndKeysCompile) {
  AttentionProblem problem = test::zoo_problem("causal", 0, DType::kBF16).problem;
  problem.seq_q = problem.seq_kv = 4096;
  problem.dim_qk = problem.dim_v = 64;
  problem.program = Program::parse("operand x: f32 [b, h, q_idx, kv_idx]\nvalue = score + x\nkeep = kv_idx <= q_idx");
  problem.operands = {problem::default_spec(problem, problem.program.operands().front())};
  problem.given_deltas = true;
  const compiler::CompiledProblem compiled = compiler::compile(problem);
  const auto targets = operand_targets(compiled, problem::operands_with_gradient(compiled.problem), Gains::kBeside);
  ASSERT_EQ(targets.size(), 1U);
  const auto expect_no_spills = [&](int architecture, const AnyShape& shape) {
    for (const std::string& module : render_modules(attention_source(compiled, Direction::kBackward, shape, targets))) {
      std::string report;
      cuda::compile_kernels(module, architecture, &report, tiled_variant(shape)->instructions());
      EXPECT_LE(register_spill_bytes(report), kHarmlessSpill) << architecture << ": " << report;
      EXPECT_FALSE(serializes_products(report)) << report;
    }
  };
  for (const int architecture : kArchitectures)
    expect_no_spills(architecture, portable_shape(problem, Direction::kBackward));
  expect_no_spills(90, hopper_shapes(problem, Direction::kBackward).front());
}

/// Ragged and paged tensors and an o of another dtype, in turns on all architectures.
TEST_F(AttentionKernelsText, OfPlacesCompile) {
  std::size_t number = 0;
  for (const checking::CheckCase& test : test::attention_kernels_cases()) {
    const AttentionProblem& problem = test.problem;
    if (!problem.tokens_q && !problem.tokens_kv && !problem.paged && !problem.dtype_o) continue;
    SCOPED_TRACE(test.name);
    report_of(problem, Direction::kForward, kArchitectures[number++ % kArchitectures.size()]);
    if (hopper_objections(compiler::compile(problem).problem, Direction::kForward, 90).empty())
      report_of(problem, Direction::kForward, 90, hopper_shapes(problem, Direction::kForward).front());
    if (!problem.backward) continue;
    report_of(problem, Direction::kBackward, kArchitectures[number++ % kArchitectures.size()]);
    if (hopper_objections(compiler::compile(problem).problem, Direction::kBackward, 90).empty())
      report_of(problem, Direction::kBackward, 90, hopper_shapes(problem, Direction::kBackward).front());
  }
  EXPECT_GE(number, kArchitectures.size());
}

TEST_F(AttentionKernelsText, SpillsNextToNoRegisters) {
  std::size_t number = 0;
  for (const std::int64_t dim : {64, 128, 256}) {
    AttentionProblem problem = test::zoo_problem("causal", 0, dim == 64 ? DType::kF16 : DType::kBF16).problem;
    problem.seq_q = problem.seq_kv = 4096;
    problem.dim_qk = problem.dim_v = dim;
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      const std::string report = report_of(problem, direction, kArchitectures[number++ % kArchitectures.size()]);
      EXPECT_NE(report.find("bytes spill"), std::string::npos) << report;
      EXPECT_LE(register_spill_bytes(report), kHarmlessSpill) << "dim " << dim << ": " << report;
    }
  }
}

class AttentionKernelsTextOfFloats : public AttentionKernelsText, public ::testing::WithParamInterface<int> {};

/// In float32 the last shape fits the shared memory of every device, and each compiles on some architecture.
TEST_P(AttentionKernelsTextOfFloats, FitsAndCompiles) {
  constexpr std::size_t kSmallestSharedBytes = std::size_t{99} * 1024;
  AttentionProblem problem = test::zoo_problem("causal", 0, DType::kF32).problem;
  problem.seq_q = problem.seq_kv = 4096;
  problem.dim_qk = problem.dim_v = GetParam();
  const compiler::CompiledProblem compiled = compiler::compile(problem);
  auto number = static_cast<std::size_t>(GetParam() / 64);
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    const std::vector<PortableShape> shapes = portable_shapes(problem, direction);
    const KernelCall made = test::attention_call(compiled, direction, shapes.back());
    for (const KernelLaunch& launch : made.launches())
      EXPECT_LE(launch.shared_bytes, kSmallestSharedBytes) << launch.kernel;
    for (const PortableShape& shape : shapes) {
      const int architecture = kArchitectures[number++ % kArchitectures.size()];
      const std::string report = report_of(problem, direction, architecture, shape);
      // The best shape of a forward was timed on this architecture.
      if (architecture == 90 && direction == Direction::kForward) {
        EXPECT_LE(register_spill_bytes(report), kHarmlessSpill);
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Dims, AttentionKernelsTextOfFloats, ::testing::Values(64, 128, 256));

/// Four queries of four heads that share one of keys.
AttentionProblem decoding_problem(const char* entry, std::int64_t dim) {
  AttentionProblem problem = test::zoo_problem(entry, 0, dim == 64 ? DType::kF16 : DType::kBF16).problem;
  problem.heads_q = 32;
  problem.heads_kv = 8;
  problem.seq_q = 4;
  problem.seq_kv = 8192;
  problem.dim_qk = problem.dim_v = dim;
  problem.operands.clear();
  for (const OperandDecl& decl : problem.program.operands())
    problem.operands.push_back(problem::default_spec(problem, decl));
  return problem;
}

/// The fused backward of head dims 192 and 128, whose accumulators leave registers for half a step's scores.
TEST_F(AttentionKernelsText, OfWideHeadsKeepTheirRegistersWhereDqIsAddedUp) {
  for (const char* const entry : {"causal", "documents", "soft_cap", "alibi"}) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      AttentionProblem problem = test::zoo_problem(entry, 0, dtype).problem;
      problem.seq_q = problem.seq_kv = 4096;
      problem.dim_qk = 192;
      problem.dim_v = 128;
      problem.operands.clear();
      for (const OperandDecl& decl : problem.program.operands())
        problem.operands.push_back(problem::default_spec(problem, decl));
      const HopperShape shape = hopper_fused_shape(problem);
      ASSERT_TRUE(hopper_fused_objections(problem, shape).empty());
      const std::string report = report_of(problem, Direction::kBackward, 90, shape);
      EXPECT_LE(register_spill_bytes(report), hopper_variant(shape)->harmless_spill()) << entry << ": " << report;
      EXPECT_FALSE(serializes_products(report)) << entry << ": " << report;
    }
  }
}

/// Every shape compiles on some architecture, with the shared memory that its devices have.
TEST_F(AttentionKernelsText, OfDecodeCompilesAndKeepsItsRegisters) {
  std::size_t number = 0;
  for (const char* const entry : {"causal", "soft_cap", "documents"}) {
    for (const std::int64_t dim : {64, 128, 256}) {
      const AttentionProblem problem = decoding_problem(entry, dim);
      const int architecture = kArchitectures[number % kArchitectures.size()];
      DeviceProperties device;
      device.multiprocessors = 132;
      device.shared_memory_per_block = architecture == 86 || architecture == 120 ? 101376 : 166912;
      const SplitKvShape shape = split_kv_shapes(problem, device)[2 * (number++ % 3)];
      const std::string report = report_of(problem, Direction::kForward, architecture, shape);
      EXPECT_NE(report.find("bytes spill"), std::string::npos) << report;
      EXPECT_LE(register_spill_bytes(report), kHarmlessSpill)
          << entry << ", dim " << dim << ", rows " << shape.queries << ": " << report;
    }
  }
}

/// Over pages of a key, of a tile, and of several; with room for 16, 32 and 64 rows.
TEST_F(AttentionKernelsText, OfPersistentDecodeCompilesAndKeepsItsRegisters) {
  std::size_t number = 0;
  for (const std::int64_t page : {1, 16, 64}) {
    for (const std::int64_t dim : {64, 128, 256}) {
      AttentionProblem problem = decoding_problem("soft_cap", dim);
      problem.backward = false;
      problem.lengths.kv = true;
      problem.paged = PagedKeys{page, 4096, problem.seq_kv / page};
      problem = problem::with_implied_operands(std::move(problem));
      const int architecture = kArchitectures[number % kArchitectures.size()];
      DeviceProperties device;
      device.multiprocessors = 132;
      device.shared_memory_per_block = architecture == 86 || architecture == 120 ? 101376 : 166912;
      const std::vector<SplitKvShape> shapes = persistent_split_kv_shapes(problem, device);
      const SplitKvShape& shape = shapes[number++ % shapes.size()];
      const std::string report = report_of(problem, Direction::kForward, architecture, shape);
      EXPECT_NE(report.find("bytes spill"), std::string::npos) << report;
      EXPECT_LE(register_spill_bytes(report), kHarmlessSpill)
          << "pages of " << page << ", dim " << dim << ", rows " << shape.queries << ": " << report;
    }
  }
}

/// Over pages of a key, of a tile, and of several; of head dim 128 with all fields of the softmax too.
TEST_F(AttentionKernelsText, OfStreamedDecodeCompilesAndKeepsItsRegisters) {
  for (const std::int64_t page : {1, 16, 64}) {
    for (const std::int64_t dim : {64, 128}) {
      AttentionProblem problem = decoding_problem("soft_cap", dim);
      problem.backward = false;
      problem.max_logit = page == 16;
      problem.sink = page == 16 ? Sink::kOffByOne : Sink::kNone;
      problem.lengths.kv = true;
      problem.paged = PagedKeys{page, 4096, problem.seq_kv / page};
      problem = problem::with_implied_operands(std::move(problem));
      DeviceProperties device;
      device.multiprocessors = 132;
      device.shared_memory_per_block = 232448;
      const std::string report =
          report_of(problem, Direction::kForward, 90, streamed_split_kv_shape(kStreamedWarps, problem, device));
      EXPECT_NE(report.find("bytes spill"), std::string::npos) << report;
      EXPECT_LE(register_spill_bytes(report), kHarmlessSpill) << "pages of " << page << ", dim " << dim << report;
    }
  }
}

/// Heads wider than 256, whose launches have a part of o's dims each: prompts, and a latent cache's decode.
TEST_F(AttentionKernelsText, OfWideHeadsKeepsItsRegisters) {
  std::size_t number = 0;
  for (const std::pair<int, int>& dims : {std::pair{512, 512}, {576, 512}, {320, 300}}) {
    const int dim_qk = dims.first, dim_v = dims.second;
    AttentionProblem problem = decoding_problem("causal", dim_qk);
    problem.dim_v = dim_v;
    problem.backward = false;
    const int architecture = kArchitectures[number++ % kArchitectures.size()];
    DeviceProperties device;
    device.multiprocessors = 132;
    device.shared_memory_per_block = architecture == 86 || architecture == 120 ? 101376 : 166912;
    const auto expect_no_spills = [&](const AnyShape& shape) {
      const std::string report = report_of(problem, Direction::kForward, architecture, shape);
      EXPECT_NE(report.find("bytes spill"), std::string::npos) << report;
      EXPECT_LE(register_spill_bytes(report), kHarmlessSpill)
          << dim_qk << " and " << dim_v << ", rows " << tile_of(shape).queries << ": " << report;
    };
    expect_no_spills(split_kv_shapes(problem, device)[2 * (number % 3)]);
    problem.seq_q = problem.seq_kv;
    expect_no_spills(portable_shape(problem, Direction::kForward));
  }
}

/// By warpgroups; of head dim 128 with all fields of the softmax too.
TEST_F(AttentionKernelsText, OfHoppersDecodeCompilesAndKeepsItsRegisters) {
  for (const char* const entry : {"causal", "soft_cap", "documents"}) {
    for (const std::int64_t dim : {64, 128, 256}) {
      AttentionProblem problem = decoding_problem(entry, dim);
      for (const bool fields : {false, true}) {
        if (fields && dim != 128) continue;
        problem.max_logit = fields;
        problem.dropout = fields ? 0.1F : 0.0F;
        problem.sink = fields ? Sink::kOffByOne : Sink::kNone;
        const std::string report =
            report_of(problem, Direction::kForward, 90, hopper_split_kv_shapes(problem, 132).front());
        EXPECT_NE(report.find("bytes spill"), std::string::npos) << report;
        EXPECT_LE(register_spill_bytes(report), kHarmlessSpill) << entry << ", dim " << dim << ": " << report;
        EXPECT_FALSE(serializes_products(report)) << entry << ", dim " << dim;
      }
    }
  }
}

TEST_F(AttentionKernelsText, OfWideDecodeKeepsItsRegisters) {
  for (const char* entry : {"causal", "alibi", "soft_cap", "padding"}) {
    for (const bool paged : {false, true}) {
      AttentionProblem problem = test::zoo_problem(entry, 0, paged ? DType::kBF16 : DType::kF16).problem;
      problem.backward = false;
      problem.seq_q = 2;
      problem.heads_q = 128;
      problem.heads_kv = 1;
      problem.dim_qk = 576;
      problem.dim_v = 512;
      problem.operands.clear();
      for (const OperandDecl& decl : problem.program.operands())
        problem.operands.push_back(problem::default_spec(problem, decl));
      if (paged) {
        problem.lengths.kv = true;
        problem.paged = PagedKeys{1, 256, problem.seq_kv};
        problem = problem::with_implied_operands(std::move(problem));
      }
      ASSERT_EQ(wide_split_kv_objections(problem).size(), 0U);
      const SplitKvShape shape = wide_split_kv_shape(problem, 132);
      const std::string report = report_of(problem, Direction::kForward, 90, shape);
      EXPECT_NE(report.find("bytes spill"), std::string::npos) << report;
      const std::int64_t most = paged ? split_kv_variant(shape)->harmless_spill() : kHarmlessSpill;
      EXPECT_LE(register_spill_bytes(report), most) << entry << ", paged " << paged << ": " << report;
      EXPECT_FALSE(serializes_products(report)) << entry << ", paged " << paged << ": " << report;
    }
  }
}

/// A zoo entry's problem at a usual size, which has Hopper kernels in both directions.
AttentionProblem hopper_problem(const char* entry, std::int64_t dim) {
  AttentionProblem problem = test::zoo_problem(entry, 0, dim == 64 ? DType::kF16 : DType::kBF16).problem;
  problem.seq_q = problem.seq_kv = 4096;
  problem.dim_qk = problem.dim_v = dim;
  problem.operands.clear();
  for (const OperandDecl& decl : problem.program.operands()) {
    problem.operands.push_back(problem::default_spec(problem, decl));
    if (decl.is_table()) problem.operands.back().shape = {32, problem.heads_q};
  }
  return problem;
}

TEST_F(AttentionKernelsText, OfHopperKeepsItsRegistersAndRunsProductsBesideOtherWork) {
  struct Case {
    const char* entry;
    std::int64_t dim;
    Direction direction;
  };
  for (const Case& test : {Case{"causal", 64, Direction::kForward}, Case{"soft_cap", 64, Direction::kBackward},
                           Case{"soft_cap", 128, Direction::kForward}, Case{"documents", 128, Direction::kBackward},
                           Case{"causal", 256, Direction::kForward}}) {
    SCOPED_TRACE(concat(test.entry, ", dim ", test.dim));
    const AttentionProblem problem = hopper_problem(test.entry, test.dim);
    ASSERT_TRUE(hopper_objections(problem, test.direction, 90).empty());
    const std::string report = report_of(problem, test.direction, 90, hopper_shapes(problem, test.direction).front());
    EXPECT_NE(report.find("bytes spill"), std::string::npos) << report;
    EXPECT_LE(register_spill_bytes(report), kHarmlessSpill) << report;
    EXPECT_FALSE(serializes_products(report)) << report;
  }
}

/// With tiles of an operand copied ahead.
TEST_F(AttentionKernelsText, OfALoadedBiasKeepTheirRegistersAndRunProductsBesideOtherWork) {
  const std::string bias = "operand x: f32 [h, q_idx, kv_idx]\nvalue = score + x";
  for (const auto& test :
       {test::loaded_bias_case(bias, 128), test::loaded_bias_case(bias + "\nkeep = kv_idx <= q_idx", 128, DType::kBF16),
        test::loaded_bias_case(bias, 64), test::loaded_bias_case(bias, 256)}) {
    SCOPED_TRACE(concat(test.name, ", dim ", test.problem.dim_qk));
    const HopperShape shape =
        copying_hopper_shape(test.problem, loaded_bias(test.problem, Direction::kForward).value());
    const std::string report = report_of(test.problem, Direction::kForward, 90, shape);
    EXPECT_NE(report.find("bytes spill"), std::string::npos) << report;
    EXPECT_LE(register_spill_bytes(report), kHarmlessSpill) << report;
    EXPECT_FALSE(serializes_products(report)) << report;
  }
}

TEST_F(AttentionKernelsText, OfOperandsCopiedByAFusedBackwardKeepTheirRegistersAndRunProductsBesideOtherWork) {
  for (const checking::CheckCase& test : test::loaded_bias_backward_cases()) {
    SCOPED_TRACE(concat(test.name, ", dim ", test.problem.dim_qk));
    const HopperShape shape =
        copying_fused_shape(test.problem, loaded_bias(test.problem, Direction::kBackward).value());
    const std::string report = report_of(test.problem, Direction::kBackward, 90, shape);
    EXPECT_NE(report.find("bytes spill"), std::string::npos) << report;
    EXPECT_LE(register_spill_bytes(report), kHarmlessSpill) << report;
    EXPECT_FALSE(serializes_products(report)) << report;
  }
}

/// There are none of head dim 64, whose three groups have too few registers.
TEST_F(AttentionKernelsText, OfPersistentKernelsKeepTheirRegistersAndRunProductsBesideOtherWork) {
  struct Case {
    const char* entry;
    std::int64_t dim_qk, dim_v;
  };
  for (const Case& test : {Case{"causal", 128, 128}, Case{"documents", 128, 128}, Case{"soft_cap", 128, 128},
                           Case{"causal", 192, 128}, Case{"documents", 192, 128}, Case{"documents", 256, 256}}) {
    SCOPED_TRACE(concat(test.entry, ", dims ", test.dim_qk, " and ", test.dim_v));
    AttentionProblem problem = hopper_problem(test.entry, test.dim_qk);
    problem.dim_v = test.dim_v;
    const std::string report = report_of(problem, Direction::kForward, 90, persistent_hopper_shape(problem, 132));
    EXPECT_NE(report.find("bytes spill"), std::string::npos) << report;
    EXPECT_EQ(register_spill_bytes(report), 0) << report;
    EXPECT_FALSE(serializes_products(report)) << report;
  }
}

/// The fused backward, which accumulates dQ in the kernel of dk and dv.
TEST_F(AttentionKernelsText, OfHopperFusedFitsAndRunsProductsBesideOtherWork) {
  constexpr std::size_t kSharedBytes = std::size_t{227} * 1024;
  struct Case {
    const char* entry;
    std::int64_t dim;
  };
  for (const Case& test : {Case{"causal", 64}, Case{"soft_cap", 64}, Case{"causal", 96}, Case{"documents", 128},
                           Case{"soft_cap", 128}, Case{"dilated_window", 128}}) {
    SCOPED_TRACE(concat(test.entry, ", dim ", test.dim));
    const AttentionProblem problem = hopper_problem(test.entry, test.dim);
    ASSERT_TRUE(hopper_fused_objections(problem, hopper_fused_shape(problem)).empty());
    const HopperShape shape = hopper_fused_shape(problem);
    const compiler::CompiledProblem compiled = compiler::compile(problem);
    const KernelCall made = test::attention_call(compiled, Direction::kBackward, shape);
    for (const KernelLaunch& launch : made.launches()) EXPECT_LE(launch.shared_bytes, kSharedBytes) << launch.kernel;
    const std::string report = report_of(problem, Direction::kBackward, 90, shape);
    EXPECT_NE(report.find("bytes spill"), std::string::npos) << report;
    EXPECT_LE(register_spill_bytes(report), kHarmlessSpill) << report;
    EXPECT_FALSE(serializes_products(report)) << report;
  }
}

/// A persistent fused backward, with the head dims that have one.
TEST_F(AttentionKernelsText, OfPersistentBackwardsFitAndRunProductsBesideOtherWork) {
  for (const char* const entry : {"causal", "sliding_window"}) {
    SCOPED_TRACE(entry);
    const AttentionProblem problem = hopper_problem(entry, 64);
    const std::string report = report_of(problem, Direction::kBackward, 90, persistent_fused_shape(problem, 132));
    EXPECT_NE(report.find("bytes spill"), std::string::npos) << report;
    EXPECT_LE(register_spill_bytes(report), kHarmlessSpill) << report;
    EXPECT_FALSE(serializes_products(report)) << report;
  }
}

/// Checks a backward's Hopper kernels with operand gradients.
void expect_registers_suffice(const compiler::CompiledProblem& compiled, const std::vector<OperandTarget>& targets,
                              const AnyShape& shape) {
  for (const std::string& module : render_modules(attention_source(compiled, Direction::kBackward, shape, targets))) {
    std::string report;
    cuda::compile_kernels(module, 90, &report, tiled_variant(shape)->instructions());
    EXPECT_LE(register_spill_bytes(report), kHarmlessSpill) << report;
    EXPECT_FALSE(serializes_products(report)) << report;
  }
}

TEST_F(AttentionKernelsText, OfHopperSumsOperandsGradientsInRegisters) {
  for (const char* const entry : {"alibi", "t5_bias"}) {
    SCOPED_TRACE(entry);
    const AttentionProblem problem = hopper_problem(entry, 128);
    const compiler::CompiledProblem compiled = compiler::compile(problem);
    const auto targets = operand_targets(compiled, problem::operands_with_gradient(compiled.problem), Gains::kBeside);
    ASSERT_EQ(targets.size(), 1U);
    expect_registers_suffice(compiled, targets, hopper_shapes(problem, Direction::kBackward).front());
  }
}

/// The fused backward, with operand gradients. At head dim 64 WGMMAs of slopes without a mask are serialized, so two
/// kernels run there.
TEST_F(AttentionKernelsText, OfHopperFusedSumsOperandsGradientsInRegisters) {
  struct Case {
    const char* entry;
    std::int64_t dim;
  };
  for (const auto& [entry, dim] : {Case{"t5_bias", 64}, Case{"alibi", 128}, Case{"t5_bias", 128}}) {
    SCOPED_TRACE(concat(entry, ", dim ", dim));
    AttentionProblem problem = hopper_problem(entry, dim);
    problem.dtype = DType::kBF16;
    const compiler::CompiledProblem compiled = compiler::compile(problem);
    const auto targets = operand_targets(compiled, problem::operands_with_gradient(compiled.problem), Gains::kBeside);
    ASSERT_EQ(targets.size(), 1U);
    ASSERT_TRUE(hopper_fused_objections(problem, hopper_fused_shape(problem), targets).empty());
    expect_registers_suffice(compiled, targets, hopper_fused_shape(problem));
  }
}

/// Programs that once needed more registers than ptxas had, before shared/derivative.cuh chose how elements are
/// computed.
TEST_F(AttentionKernelsText, OfHopperFusedFitsWhateverTheProgramReads) {
  struct Case {
    const char* program;
    std::int64_t dim;
    bool sums;
  };
  constexpr const char* kSlopes =
      "operand slopes: f32 [h]\nvalue = score + slopes * f32(kv_idx - q_idx)\nkeep = kv_idx <= q_idx";
  constexpr const char* kTemperature = "operand t: f32 [b, h]\nvalue = score * t";
  for (const auto& [program, dim, sums] : {Case{kSlopes, 64, false}, Case{kSlopes, 128, false},
                                           Case{kTemperature, 128, false}, Case{kTemperature, 128, true}}) {
    SCOPED_TRACE(concat(program, ", dim ", dim, sums ? ", with sums" : ""));
    AttentionProblem problem = hopper_problem("causal", dim);
    problem.program = Program::parse(program);
    problem.operands = {problem::default_spec(problem, problem.program.operands().front())};
    const compiler::CompiledProblem compiled = compiler::compile(problem);
    std::vector<OperandTarget> targets;
    if (sums) targets = operand_targets(compiled, problem::operands_with_gradient(compiled.problem), Gains::kBeside);
    expect_registers_suffice(compiled, targets, hopper_fused_shape(problem));
  }
}

TEST_F(AttentionKernelsText, OfHopperIsSeenToSerializeWhereTilesAreTooLarge) {
  const AttentionProblem problem = hopper_problem("causal", 128);
  HopperShape shape = hopper_shapes(problem, Direction::kForward).front();
  shape.keys = 256;
  const std::string report = report_of(problem, Direction::kForward, 90, shape);
  EXPECT_TRUE(serializes_products(report) || register_spill_bytes(report) > kHarmlessSpill) << report;
}

}  // namespace
}  // namespace scoremod::backend::kernels
