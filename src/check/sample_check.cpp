#include "scoremod/sample_check.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <future>
#include <numeric>
#include <optional>
#include <utility>

#include "backend/reference/dense_tensor.hpp"
#include "backend/reference/fast_oracle.hpp"
#include "base/cpu_threads.hpp"
#include "base/fail.hpp"
#include "check/problem_slice.hpp"
#include "check/rounding_band.hpp"
#include "compiler/pipeline.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"
#include "verification/output_error.hpp"

namespace scoremod {
namespace {

using checking::Box;
using checking::ProblemSlice;
using checking::Range;
using checking::TensorSlice;
using problem::TensorRole;
using verification::RowClass;
namespace reference = backend::reference;

constexpr std::int64_t kBlock = 16;
constexpr std::int64_t kBlocks = 4;
constexpr std::int64_t kMaxGradientScores = std::int64_t{1} << 22;
/// Fewer numbers are too small a sample of rounding errors: by chance the plain evaluation's may be small.
constexpr std::size_t kFewNumbers = 16;

/// Blocks from the first index to the last, as far apart as can be; all indices where there are no more.
std::vector<Range> blocks_of(std::int64_t size) {
  if (size <= kBlock * kBlocks) return {{0, size}};
  std::vector<Range> blocks;
  for (std::int64_t i = 0; i < kBlocks; ++i) blocks.push_back({(size - kBlock) * i / (kBlocks - 1), kBlock});
  return blocks;
}

/// One block, past the middle: where a causal mask keeps most, and yet not all.
Range block_of(std::int64_t size) {
  if (size <= kBlock) return {0, size};
  return {std::min(size * 3 / 4, size - kBlock), kBlock};
}

/// An output's elements, the oracle's and the plain evaluation's, row by row.
struct Elements {
  std::vector<double> found, oracle;
  std::vector<float> plain;

  void add_found(const TensorSlice& slice, const OutputTensor& output) {
    const auto* data = output.bytes.data() + slice.begin * static_cast<std::int64_t>(size_of(slice.tensor.dtype));
    const std::vector<double> values = reference::load_dense<double>(slice.tensor, data);
    found.insert(found.end(), values.begin(), values.end());
  }
  void add(const std::vector<double>& truth, const std::vector<float>& plainly) {
    oracle.insert(oracle.end(), truth.begin(), truth.end());
    plain.insert(plain.end(), plainly.begin(), plainly.end());
  }
};

/// The oracle's o and LSE of some rows: [batch, heads, rows, dim_v] and [batch, heads, rows].
struct RowsTruth {
  std::vector<double> o, lse;
};

class SampleCheck {
 public:
  SampleCheck(const AttentionProblem& problem, const InputBuffers& inputs, std::span<const OutputTensor> outputs,
              const CallOptions& options)
      : compiled_(compiler::compile(problem)),
        problem_(compiled_.problem),
        outputs_(outputs),
        parameters_{options.scale.value_or(problem_.effective_scale()), options.offsets, nullptr, options.dropout_seed,
                    options.dropout_offset} {
    for (const OperandDecl& decl : problem_.program.operands()) {
      const auto found = std::ranges::find(inputs.operands, decl.name, &OperandBuffer::name);
      if (found == inputs.operands.end()) fail_argument("operands: expected '", decl.name, "', which is not there");
      operands_.push_back(found->buffer.data);
    }
    memory_ = {inputs.q.data, inputs.k.data, inputs.v.data, inputs.d_o.data, operands_};
  }

  std::vector<OutputSample> run() {
    check_rows();
    if (find("dk") != nullptr || find("dv") != nullptr) check_keys();
    for (const std::uint32_t operand : problem::operands_with_gradient(problem_)) check_operand(operand);
    return std::move(samples_);
  }

 private:
  const OutputTensor* find(const std::string& name) const {
    const auto found = std::ranges::find(outputs_, name, &OutputTensor::name);
    return found == outputs_.end() ? nullptr : &*found;
  }

  std::int64_t group() const { return problem_.heads_q / problem_.heads_kv; }
  /// The batch and the heads that are looked at: neither the first, which is where a wrong stride does no harm.
  Range batch() const { return {problem_.batch - 1, 1}; }
  Range heads() const { return {problem_.heads_kv / 2 * group(), group()}; }

  /// o, lse, max_logit and dq in blocks of rows, of one head after the other of the group.
  void check_rows() {
    const OutputTensor *o = find("o"), *lse = find("lse"), *max_logit = find("max_logit"), *dq = find("dq");
    if (o == nullptr && lse == nullptr && max_logit == nullptr && dq == nullptr) return;
    Elements of_o, of_lse, of_logit, of_dq;
    std::int64_t head = 0;
    for (const Range& rows : blocks_of(problem_.seq_q)) {
      const Box box{batch(), {heads().begin + head++ % group(), 1}, rows, {0, problem_.seq_kv}};
      const ProblemSlice slice(compiled_, memory_, parameters_, box);
      const auto truth = reference::fast_forward(slice.compiled(), slice.inputs(), slice.parameters());
      const auto plain = reference::forward<float>(slice.compiled(), slice.inputs(), slice.parameters());
      of_o.add(truth.o, plain.o);
      of_lse.add(truth.lse, plain.lse);
      of_logit.add(truth.max_logit, plain.max_logit);
      if (o != nullptr) of_o.add_found(slice_of(problem_, TensorRole::kO, box), *o);
      if (lse != nullptr) of_lse.add_found(slice_of(problem_, TensorRole::kLse, box), *lse);
      if (max_logit != nullptr) of_logit.add_found(slice_of(problem_, TensorRole::kLse, box), *max_logit);
      if (dq == nullptr) continue;
      of_dq.add(reference::fast_backward(slice.compiled(), slice.inputs(), slice.parameters()).dq,
                reference::backward<float>(slice.compiled(), slice.inputs(), slice.parameters()).dq);
      of_dq.add_found(slice_of(problem_, TensorRole::kDQ, box), *dq);
    }
    const DType dtype = problem::product_dtype(problem_);
    const std::vector<RowClass> classes = verification::row_classes(of_lse.oracle, of_lse.plain, dtype);
    if (o != nullptr) judge("o", problem::dtype_of(problem_, TensorRole::kO), problem_.dim_v, of_o, classes);
    if (lse != nullptr) judge_lse("lse", of_lse, classes);
    if (max_logit != nullptr) judge_lse("max_logit", of_logit, classes);
    if (dq != nullptr) judge("dq", problem::dtype_of(problem_, TensorRole::kDQ), problem_.dim_qk, of_dq, classes);
  }

  /// dk and dv in blocks of keys.
  void check_keys() {
    const Box of_group{batch(), heads(), {0, problem_.seq_q}, {0, problem_.seq_kv}};
    const RowsTruth rows = rows_truth(of_group);
    Elements of_dk, of_dv;
    for (const Range& keys : blocks_of(problem_.seq_kv)) {
      Box box = of_group;
      box.kv = keys;
      const auto [truth, plain] = backwards(box, rows);
      of_dk.add(truth.dk, plain.dk);
      of_dv.add(truth.dv, plain.dv);
      if (find("dk") != nullptr) of_dk.add_found(slice_of(problem_, TensorRole::kDK, box), *find("dk"));
      if (find("dv") != nullptr) of_dv.add_found(slice_of(problem_, TensorRole::kDV, box), *find("dv"));
    }
    const std::vector<RowClass> all = all_of(rows);
    if (find("dk") != nullptr) judge("dk", problem::dtype_of(problem_, TensorRole::kDK), problem_.dim_qk, of_dk, all);
    if (find("dv") != nullptr) judge("dv", problem::dtype_of(problem_, TensorRole::kDV), problem_.dim_v, of_dv, all);
  }

  /// In a box that holds all that goes into the entries which are compared.
  void check_operand(std::uint32_t operand) {
    const OperandDecl& decl = problem_.program.operands()[operand];
    const OutputTensor* output = find("d_" + decl.name);
    if (output == nullptr || decl.is_table()) return;
    Box box = checking::whole(problem_);
    if (decl.axes[0]) box.b = batch();
    if (decl.axes[1]) box.h = heads();
    if (decl.axes[2]) box.q = block_of(problem_.seq_q);
    if (decl.axes[3]) box.kv = block_of(problem_.seq_kv);
    if (box.scores() > kMaxGradientScores) return;
    const RowsTruth rows = rows_truth(box);
    const auto [truth, plain] = backwards(box, rows);
    Elements elements;
    elements.add(truth.d_operands[operand], plain.d_operands[operand]);
    const TensorSlice slice = slice_of(problem_, operand, box);
    elements.add_found(slice, *output);
    judge(output->name, slice.tensor.dtype, 1, elements, all_of(rows));
    if (elements.oracle.size() < kFewNumbers) add_rounding(operand, box, elements.oracle);
  }

  /// Adds to the last sample's tolerance how far rounding alone may move an operand's gradient in a box. Few numbers
  /// come of all keys: a block has more.
  void add_rounding(std::uint32_t operand, const Box& box, const std::vector<double>& oracle) {
    const ProblemSlice slice(compiled_, memory_, parameters_, box);
    const auto moves = checking::rounding_band(slice.compiled(), slice.inputs(), slice.parameters()).backward;
    const std::vector<double>& move = moves.d_operands[operand];
    const double size = norm(oracle);
    samples_.back().tolerance += norm(move) / (size > 0 ? size : 1);
  }

  static double norm(const std::vector<double>& values) {
    return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
  }

  /// Evaluates the box's rows and all keys, by as many threads as a call gets.
  RowsTruth rows_truth(Box box) const {
    box.kv = {0, problem_.seq_kv};
    const auto threads = std::int64_t{cpu_threads(0)};
    const std::int64_t chunk = std::max(kBlock, (box.q.count + threads - 1) / threads);
    const std::int64_t heads = box.b.count * box.h.count, dim = problem_.dim_v;
    RowsTruth rows{std::vector<double>(static_cast<std::size_t>(heads * box.q.count * dim)),
                   std::vector<double>(static_cast<std::size_t>(heads * box.q.count))};
    const auto fill = [&](Range part) {
      Box of_part = box;
      of_part.q = {box.q.begin + part.begin, part.count};
      const ProblemSlice slice(compiled_, memory_, parameters_, of_part);
      const auto truth = reference::fast_forward(slice.compiled(), slice.inputs(), slice.parameters(), 1);
      for (std::int64_t head = 0; head < heads; ++head) {
        const std::int64_t from = head * part.count, to = head * box.q.count + part.begin;
        std::copy_n(truth.lse.begin() + from, part.count, rows.lse.begin() + to);
        std::copy_n(truth.o.begin() + from * dim, part.count * dim, rows.o.begin() + to * dim);
      }
    };
    std::vector<std::future<void>> parts;
    for (std::int64_t begin = 0; begin < box.q.count; begin += chunk)
      parts.push_back(std::async(std::launch::async, fill, Range{begin, std::min(chunk, box.q.count - begin)}));
    for (std::future<void>& part : parts) part.get();
    return rows;
  }

  /// The backwards of a box, whose rows have more keys than its own. The oracle takes their o with float32's rounding,
  /// the plain evaluation with that of its dtype.
  std::pair<reference::BackwardResult<double>, reference::BackwardResult<float>> backwards(
      const Box& box, const RowsTruth& rows) const {
    const std::vector<float> exact(rows.o.begin(), rows.o.end()), lse(rows.lse.begin(), rows.lse.end());
    ProblemSlice slice(compiled_, memory_, parameters_, box);
    const DType dtype = problem::dtype_of(problem_, TensorRole::kO);
    slice.give(DType::kF32, exact.data(), lse.data());
    auto truth = reference::backward<double>(slice.compiled(), slice.inputs(), slice.parameters());
    std::vector<std::byte> rounded(rows.o.size() * size_of(dtype));
    for (std::size_t i = 0; i < rows.o.size(); ++i)
      store_element(rounded.data(), dtype, static_cast<std::int64_t>(i), rows.o[i]);
    slice.give(dtype, rounded.data(), lse.data());
    return {std::move(truth), reference::backward<float>(slice.compiled(), slice.inputs(), slice.parameters())};
  }

  std::vector<RowClass> all_of(const RowsTruth& rows) const {
    const std::vector<float> plain(rows.lse.begin(), rows.lse.end());
    std::vector<RowClass> classes = verification::row_classes(rows.lse, plain, problem::product_dtype(problem_));
    classes.resize(1);
    return classes;
  }

  void judge(const std::string& name, DType dtype, std::int64_t width, const Elements& of,
             const std::vector<RowClass>& classes) {
    const auto rows = static_cast<std::int64_t>(of.oracle.size()) / width;
    const problem::StridedTensor tensor{name, dtype, {rows, width}, {width, 1}};
    const verification::OutputError error = verification::output_error(tensor, of.found, of.oracle, of.plain, classes);
    samples_.push_back({name, rows, error.error, error.tolerance});
  }

  void judge_lse(const std::string& name, const Elements& of, const std::vector<RowClass>& classes) {
    const verification::OutputError error =
        verification::lse_error(of.found, of.oracle, of.plain, problem::product_dtype(problem_), classes);
    samples_.push_back({name, static_cast<std::int64_t>(of.oracle.size()), error.error, error.tolerance});
  }

  const compiler::CompiledProblem compiled_;
  const AttentionProblem& problem_;
  const std::span<const OutputTensor> outputs_;
  const backend::CallParameters parameters_;
  std::vector<const void*> operands_;
  reference::InputTensors memory_;
  std::vector<OutputSample> samples_;
};

void expect_sampled(const AttentionProblem& problem) {
  const char* found = problem.tokens_q || problem.tokens_kv ? "ragged tensors"
                      : problem.paged                       ? "paged keys"
                      : problem::has_float8_keys(problem)   ? "FP8 tensors"
                      : problem.dropout_keys                ? "keys of dropout"
                                                            : nullptr;
  if (found != nullptr) {
    fail_unsupported(
        "check_sample: expected dense tensors of 16 or 32 bits, and a call that gives dropout's seed; found ", found,
        "; use check() with a smaller problem");
  }
}

}  // namespace

std::vector<OutputSample> check_sample(const AttentionProblem& problem, const InputBuffers& inputs,
                                       std::span<const OutputTensor> outputs, const CallOptions& options) {
  validate(problem);
  expect_sampled(problem);
  return SampleCheck(problem, inputs, outputs, options).run();
}

}  // namespace scoremod
