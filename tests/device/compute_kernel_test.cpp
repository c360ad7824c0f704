#include "backend/cuda/compute/compute_kernel.hpp"

#include <cmath>
#include <cstring>

#include "scoremod/inputs.hpp"
#include "scoremod/zoo.hpp"

#include "backend/cuda/device/own_stream.hpp"
#include "backend/reference/interpreter.hpp"
#include "check/random_problem.hpp"
#include "compiler/pipeline.hpp"
#include "device/device_cases.hpp"
#include "device/device_fixture.hpp"
#include "support/test_seed.hpp"

namespace scoremod::backend::cuda {
namespace {

using test::DeviceCopy;

std::vector<std::vector<std::byte>> run_on_device(const AttentionProblem& problem, const Program& program,
                                                  const std::vector<NodeTensor>& tensors, const ProblemInputs& inputs,
                                                  const IndexOffsets& offsets) {
  const auto kernel = ComputeKernel::build(problem, program, tensors);
  std::vector<DeviceCopy> copies;
  std::vector<const void*> operands;
  for (const OwnedOperand& operand : inputs.operands) {
    copies.emplace_back(operand.bytes.data(), operand.bytes.size());
    operands.push_back(copies.back().address());
  }
  std::vector<DeviceCopy> outputs;
  std::vector<void*> addresses;
  for (const NodeTensor& tensor : tensors) {
    outputs.emplace_back(bytes_of(tensor, problem));
    addresses.push_back(outputs.back().address());
  }
  kernel->execute(operands, addresses, offsets, own_stream());
  wait_for_own_stream();
  std::vector<std::vector<std::byte>> values;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    values.emplace_back(bytes_of(tensors[i], problem));
    outputs[i].download(values.back().data());
  }
  return values;
}

/// A node's value at every element of its tensor, in float32 (which i32 and bool must equal) and in float64.
template <class Real>
class Oracle {
 public:
  Oracle(const AttentionProblem& problem, const Program& program, const ProblemInputs& inputs,
         const IndexOffsets& offsets)
      : problem_(problem), program_(program) {
    for (const OwnedOperand& operand : inputs.operands) data_.push_back(operand.bytes.data());
    views_ = reference::view_operands(problem, data_);
    interpreter_.emplace(program_, views_, offsets);
  }

  std::vector<ir::Scalar<Real>> values(const NodeTensor& tensor) {
    const std::array<std::int64_t, kAxisCount> sizes{problem_.batch, problem_.heads_q, problem_.seq_q, problem_.seq_kv};
    std::array<std::int64_t, kAxisCount> extents{};
    for (std::size_t i = 0; i < kAxisCount; ++i) extents[i] = tensor.axes[i] ? sizes[i] : 1;
    std::vector<ir::Scalar<Real>> out;
    for (std::int64_t b = 0; b < extents[0]; ++b)
      for (std::int64_t h = 0; h < extents[1]; ++h)
        for (std::int64_t q = 0; q < extents[2]; ++q)
          for (std::int64_t k = 0; k < extents[3]; ++k) {
            interpreter_->evaluate({b, h, q, k}, 0);
            out.push_back(interpreter_->scalar(tensor.node));
          }
    return out;
  }

 private:
  const AttentionProblem& problem_;
  const Program& program_;
  std::vector<const void*> data_;
  std::vector<reference::OperandView> views_;
  std::optional<reference::Interpreter<Real>> interpreter_;
};

/// Integers and booleans must be equal. Floats must be as near to float64 as the host's float32 is, except the last
/// digits of functions, which differ from the host's.
void expect_right(const std::string& name, const AttentionProblem& problem, const Program& program,
                  const ProblemInputs& inputs, const IndexOffsets& offsets) {
  SCOPED_TRACE(name + "\n" + program.to_string());
  const std::vector<NodeTensor> tensors = test::score_free_tensors(program);
  if (tensors.empty()) return;
  const auto found = run_on_device(problem, program, tensors, inputs, offsets);
  Oracle<float> plain(problem, program, inputs, offsets);
  Oracle<double> exact(problem, program, inputs, offsets);
  const double unit = 4 * 0x1p-24 * static_cast<double>(program.nodes().size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto floats = plain.values(tensors[i]);
    const auto doubles = exact.values(tensors[i]);
    double worst = 0, plain_worst = 0, largest = 0;
    for (std::size_t element = 0; element < floats.size(); ++element) {
      const std::byte* at = found[i].data() + element * sizeof(float);
      std::int32_t integer = 0;
      float number = 0;
      std::memcpy(&integer, at, sizeof(integer));
      std::memcpy(&number, at, sizeof(number));
      const std::int32_t expected = tensors[i].type == Type::kI32 ? floats[element].i : floats[element].b ? 1 : 0;
      if (tensors[i].type != Type::kF32) {
        ASSERT_EQ(integer, expected) << "n" << tensors[i].node;
        continue;
      }
      if (!std::isfinite(doubles[element].f)) continue;
      ASSERT_TRUE(std::isfinite(number) || !std::isfinite(floats[element].f)) << "n" << tensors[i].node;
      worst = std::max(worst, std::abs(static_cast<double>(number) - doubles[element].f));
      plain_worst = std::max(plain_worst, std::abs(static_cast<double>(floats[element].f) - doubles[element].f));
      largest = std::max(largest, std::abs(doubles[element].f));
    }
    EXPECT_LE(worst, 2 * plain_worst + unit * (1 + largest)) << "n" << tensors[i].node;
  }
  test::record_line("{\"kind\": \"computed\", \"case\": \"" + name +
                    "\", \"tensors\": " + std::to_string(tensors.size()) + ", \"verdict\": \"" +
                    (::testing::Test::HasFailure() ? "wrong" : "right") + "\"}");
}

class ComputedNodes : public test::OnDevice, public ::testing::WithParamInterface<int> {};

TEST_P(ComputedNodes, OfAZooEntryAreRight) {
  const zoo::Entry& entry = zoo::entries()[static_cast<std::size_t>(GetParam())];
  const checking::CheckCase test = test::zoo_problem(entry.name, GetParam(), DType::kF16);
  const compiler::CompiledProblem compiled = compiler::compile(test.problem);
  RandomInputOptions options;
  options.overrides = test.fills;
  const ProblemInputs inputs = random_inputs(test.problem, options);
  expect_right(entry.name, test.problem, compiled.forward.program, inputs, {});
  expect_right(entry.name + " with offsets", test.problem, compiled.backward->program, inputs, {1, 2, 30, 40});
}
INSTANTIATE_TEST_SUITE_P(Zoo, ComputedNodes, ::testing::Range(0, static_cast<int>(zoo::entries().size())));

class RandomComputedNodes : public test::OnDevice, public ::testing::WithParamInterface<int> {};

TEST_P(RandomComputedNodes, AreRight) {
  const std::uint64_t seed = test::test_seed() + static_cast<std::uint64_t>(GetParam());
  const checking::CheckCase test = checking::random_problem(seed);
  RandomInputOptions options;
  options.seed = seed;
  options.overrides = test.fills;
  const compiler::CompiledProblem compiled = compiler::compile(test.problem);
  expect_right("seed " + std::to_string(seed), test.problem, compiled.forward.program,
               random_inputs(test.problem, options), test.call.offsets);
}
INSTANTIATE_TEST_SUITE_P(Problems, RandomComputedNodes, ::testing::Range(0, 100));

}  // namespace
}  // namespace scoremod::backend::cuda
