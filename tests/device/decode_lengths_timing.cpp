// Times of the decode kernels over pages, for sequences whose lengths differ. The persistent kernel and those that
// split the longest possible length run in turns. Each test measures the rate of a copy, too, and holds sampled rows to
// float64.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "backend/cuda/device/own_stream.hpp"
#include "backend/cuda/device/runtime_call.hpp"
#include "backend/kernels/backend/kernels_backend.hpp"
#include "backend/kernels/split_kv/family.hpp"
#include "base/concat.hpp"
#include "base/element.hpp"
#include "base/float16.hpp"
#include "compiler/pipeline.hpp"
#include "device/attention_kernel_calls.hpp"
#include "problem/implied_operands.hpp"
#include "problem/row_addressing.hpp"
#include "problem/tensor_view.hpp"
#include "support/emulated_device.hpp"
#include "support/tiled_call.hpp"

namespace scoremod::backend::kernels {
namespace {

using problem::TensorRole;

struct LengthsCase {
  const char* name;
  std::int64_t batch, capacity, shortest, longest;  ///< lengths are uniform between the two
  bool one_full = false;                            ///< but the first has the whole capacity
  std::int64_t page = 16, queries = 1;
  std::int64_t window = 0;  ///< of the last keys that a query sees, where it is not 0
  std::int64_t heads_q = 32, heads_kv = 8, dim_qk = 128, dim_v = 128;
  bool view = false;      ///< v is a view of k's first dims
  std::int64_t pool = 0;  ///< pages that sequences share, each in any order; 0 where each has its own
};

/// Multi-head latent attention: 576 dims of each key, of which 512 are its value.
constexpr LengthsCase latent(const char* name, std::int64_t batch, std::int64_t keys, std::int64_t heads,
                             std::int64_t page, std::int64_t queries = 1) {
  return {name, batch, keys, keys, keys, false, page, queries, 0, heads, 1, 576, 512, true};
}
/// Latent attention where each query has a list of 2048 tokens of a pool.
constexpr LengthsCase token_lists(const char* name, std::int64_t queries, std::int64_t heads) {
  LengthsCase of = latent(name, queries, 2048, heads, 1);
  of.pool = 131072;
  return of;
}
constexpr LengthsCase kLengthsCases[] = {
    {"one of 131072 beside 31 of 512", 32, 131072, 512, 512, true},
    {"one of 131072 beside 31 of 512, 4 queries", 32, 131072, 512, 512, true, 16, 4},
    {"256 of 16 to 512", 256, 512, 16, 512},
    {"256 of 16 to 512, 4 queries", 256, 512, 16, 512, false, 16, 4},
    {"4096 of 32", 4096, 32, 32, 32},
    {"4096 of 32, 4 queries", 4096, 32, 32, 32, false, 16, 4},
    {"32 of 8192", 32, 8192, 8192, 8192},
    {"32 of 8192, pages of 64", 32, 8192, 8192, 8192, false, 64},
    {"32 of 8192, 4 queries", 32, 8192, 8192, 8192, false, 16, 4},
    {"64 of 128 to 8192, pages of 1", 64, 8192, 128, 8192, false, 1},
    {"64 of 128 to 8192", 64, 8192, 128, 8192},
    {"64 of 128 to 8192, pages of 64", 64, 8192, 128, 8192, false, 64},
    {"64 of 128 to 8192, pages of 256", 64, 8192, 128, 8192, false, 256},
    {"64 of 128 to 8192, 4 queries", 64, 8192, 128, 8192, false, 16, 4},
    {"64 of 128 to 8192, 16 queries", 64, 8192, 128, 8192, false, 16, 16},
    {"64 of 128 to 8192, window of 1024", 64, 8192, 128, 8192, false, 16, 1, 1024},
    latent("latent, 128 heads, 128 of 4096", 128, 4096, 128, 64),
    latent("latent, 128 heads, 2 queries, 128 of 4096", 128, 4096, 128, 64, 2),
    latent("latent, 128 heads, 32 of 16384", 32, 16384, 128, 64),
    latent("latent, 16 heads, 128 of 4096", 128, 4096, 16, 64),
    latent("latent, 16 heads, 4 queries, 128 of 4096", 128, 4096, 16, 64, 4),
    latent("latent, 8 heads, 64 of 8192, pages of 1", 64, 8192, 8, 1),
    latent("latent, 128 heads, 64 of 8192, pages of 1", 64, 8192, 128, 1),
    token_lists("lists of 2048 tokens, 128 heads, 4096 queries", 4096, 128),
    token_lists("lists of 2048 tokens, 16 heads, 128 queries", 128, 16),
    {"512 dims, 16 heads over 2, 32 of 8192", 32, 8192, 8192, 8192, false, 16, 1, 0, 16, 2, 512, 512},
};

/// A causal decode, of a case's heads or of fewer, over pages in any order. Its numbers repeat those of a stretch, so
/// that the host knows them all without having them.
class PagedDecode {
 public:
  explicit PagedDecode(const LengthsCase& of) : PagedDecode(of, of.heads_q, of.heads_kv) {}
  PagedDecode(const LengthsCase& of, std::int64_t heads_q, std::int64_t heads_kv) : window_(of.window), view_(of.view) {
    std::mt19937 random(of.batch * 31 + of.page);
    lengths_.resize(of.batch);
    for (std::int32_t& length : lengths_)
      length = static_cast<std::int32_t>(of.shortest + random() % (of.longest - of.shortest + 1));
    if (of.one_full) lengths_[0] = static_cast<std::int32_t>(of.capacity);
    const std::int64_t pages = (of.capacity + of.page - 1) / of.page;
    std::int64_t used = 0;
    for (const std::int32_t length : lengths_) used += (length + of.page - 1) / of.page;
    if (of.pool > 0) used = of.pool;
    AttentionProblem& p = problem_;
    p.batch = of.batch;
    p.heads_q = heads_q;
    p.heads_kv = heads_kv;
    p.seq_q = of.queries;
    p.seq_kv = of.capacity;
    p.dim_qk = of.dim_qk;
    p.dim_v = of.dim_v;
    p.dtype = DType::kBF16;
    p.stats = p.lengths.kv = true;
    p.backward = p.index_offsets = false;
    p.paged = PagedKeys{of.page, used, pages};
    const std::string last = concat("q_idx + lengths_kv - ", of.queries);
    p.program = Program::parse(concat("operand lengths_kv: i32 [b]\nvalue = score\nkeep = kv_idx <= ", last,
                                      of.window > 0 ? concat(" & kv_idx + ", of.window, " > ", last) : ""));
    for (const OperandDecl& operand : p.program.operands()) p.operands.push_back(problem::default_spec(p, operand));
    p = problem::with_implied_operands(std::move(p));
    if (view_) p.v.strides = problem::RowAddressing(p, TensorRole::kK).strides();
    std::vector<std::int32_t> numbers(used);
    std::iota(numbers.begin(), numbers.end(), 0);
    std::shuffle(numbers.begin(), numbers.end(), random);
    table_.assign(of.batch * pages, 0);
    auto next = numbers.begin();
    for (std::int64_t b = 0; b < of.batch; ++b) {
      for (std::int64_t page = 0; page * of.page < lengths_[b]; ++page)
        table_[b * pages + page] = of.pool > 0 ? static_cast<std::int32_t>(random() % of.pool) : *next++;
    }
    numbers_.resize(kRepeated);
    for (std::uint16_t& number : numbers_) number = encode_bf16(static_cast<float>(random() % 2001) / 1000.0F - 1.0F);
    for (const OperandDecl& operand : p.program.operands())
      operands_.push_back(operand.name == problem::kLengthsOfKeys ? lengths_.data() : table_.data());
  }

  const AttentionProblem& problem() const { return problem_; }
  const std::vector<const void*>& operands() const { return operands_; }
  std::size_t operand_bytes(std::size_t i) const {
    return 4 * (operands_[i] == lengths_.data() ? lengths_.size() : table_.size());
  }
  /// The stretch that every tensor repeats.
  const std::vector<std::uint16_t>& numbers() const { return numbers_; }
  double bytes_read() const {
    double keys = 0;
    for (const std::int32_t length : lengths_)
      keys += static_cast<double>(window_ > 0 ? std::min(window_ + problem_.seq_q - 1, std::int64_t{length}) : length);
    const std::int64_t dims = problem_.dim_qk + (view_ ? 0 : problem_.dim_v);
    return keys * static_cast<double>(2 * dims * problem_.heads_kv);
  }
  /// Without a window.
  double operations() const {
    const double keys = std::accumulate(lengths_.begin(), lengths_.end(), 0.0);
    return 2 * keys * static_cast<double>(problem_.heads_q * problem_.seq_q * (problem_.dim_qk + problem_.dim_v));
  }
  bool is_view() const { return view_; }

  /// The greatest error of sampled rows of o, of the last queries of every stretch of batches.
  double error_of(const std::vector<std::uint16_t>& o) const {
    double most = 0;
    for (std::int64_t i = 0; i < 12; ++i) {
      const std::int64_t b = i * (problem_.batch - 1) / 11, h = (i * 5) % problem_.heads_q, q = i % problem_.seq_q;
      const std::vector<double> expected = row(b, h, q);
      const problem::RowAddressing at(problem_, TensorRole::kO);
      const std::int64_t first = at.row(b, h, q);
      for (std::size_t d = 0; d < expected.size(); ++d) {
        const double found = decode_bf16(o[first + static_cast<std::int64_t>(d) * at.element_step()]);
        const double error = std::abs(found - expected[d]);
        most = error <= most ? most : error;  // NaN is no smaller
      }
    }
    return most;
  }

 private:
  static constexpr std::size_t kRepeated = 1 << 22;

  double number(std::int64_t at) const { return decode_bf16(numbers_[static_cast<std::size_t>(at) % kRepeated]); }

  std::vector<double> row(std::int64_t b, std::int64_t h, std::int64_t q) const {
    const auto rows = [&](TensorRole role) { return problem::RowAddressing(problem_, role); };
    const std::int64_t kv_head = h / (problem_.heads_q / problem_.heads_kv);
    const auto qs = rows(TensorRole::kQ), ks = rows(TensorRole::kK), vs = rows(TensorRole::kV);
    const auto keys = ks.rows(b, kv_head, operands_), values = vs.rows(b, kv_head, operands_);
    const std::int64_t first = qs.row(b, h, q), end = std::max<std::int64_t>(lengths_[b] - problem_.seq_q + q + 1, 0);
    const std::int64_t begin = window_ > 0 ? std::max<std::int64_t>(end - window_, 0) : 0;
    std::vector<double> scores(end, -std::numeric_limits<double>::infinity()), output(problem_.dim_v);
    for (std::int64_t kv = begin; kv < end; ++kv) {
      scores[kv] = 0;
      for (std::int64_t d = 0; d < problem_.dim_qk; ++d)
        scores[kv] += number(first + d * qs.element_step()) * number(keys.row(kv) + d * ks.element_step()) *
                      problem_.effective_scale();
    }
    const double largest = end > 0 ? *std::ranges::max_element(scores) : 0;
    double sum = 0;
    for (std::int64_t kv = begin; kv < end; ++kv) {
      const double weight = std::exp(scores[kv] - largest);
      sum += weight;
      for (std::int64_t d = 0; d < problem_.dim_v; ++d)
        output[d] += weight * number(values.row(kv) + d * vs.element_step());
    }
    for (double& element : output) element /= sum > 0 ? sum : 1;
    return output;
  }

  std::int64_t window_;
  bool view_;
  AttentionProblem problem_;
  std::vector<std::int32_t> lengths_, table_;
  std::vector<std::uint16_t> numbers_;
  std::vector<const void*> operands_;
};

/// Rounding of weights and of o to 16 bits: outputs are below 1.
constexpr double kTolerance = 0x1p-7;

constexpr std::int64_t kFewestRows = 16, kMostRows = 64;

/// The smallest of the shapes of each kind that have room for the problem's rows: with splits of the longest length,
/// with one split, and persistent. The streamed one comes with several numbers of warps.
std::vector<SplitKvShape> compared_shapes(const AttentionProblem& problem, const DeviceProperties& device) {
  std::vector<SplitKvShape> shapes = split_kv_shapes(problem, device);
  for (const SplitKvShape& shape : persistent_split_kv_shapes(problem, device)) shapes.push_back(shape);
  const std::int64_t rows =
      std::clamp<std::int64_t>(problem.heads_q / problem.heads_kv * problem.seq_q, kFewestRows, kMostRows);
  std::erase_if(shapes, [&](const SplitKvShape& shape) { return shape.queries != rows; });
  if (rows == kFewestRows && streamed_split_kv_objections(problem).empty())
    for (const int warps : {kStreamedWarps, 7, 5, 4}) shapes.push_back(streamed_split_kv_shape(warps, problem, device));
  if (hopper_objections(problem, Direction::kForward, kHopperCapability).empty() &&
      hopper_split_kv_objections(problem).empty()) {
    for (const SplitKvShape& shape : hopper_split_kv_shapes(problem, device.multiprocessors)) shapes.push_back(shape);
    shapes.push_back(persistent_hopper_split_kv_shape(problem, device.multiprocessors));
  }
  if (problem.dim_v > kWidestHead && wide_split_kv_objections(problem).empty())
    shapes.push_back(wide_split_kv_shape(problem, device.multiprocessors));
  return shapes;
}

/// The timed cases are right on the emulated device, at a part of their size.
TEST(DecodeLengths, AreRightInEachShape) {
  for (const LengthsCase& of : kLengthsCases) {
    if (of.queries > 1 && of.batch != 32) continue;
    LengthsCase small = of;
    small.batch = std::min<std::int64_t>(of.batch, 5);
    small.capacity = std::max<std::int64_t>(of.capacity / 128, 32);
    small.longest = std::min(of.longest, small.capacity);
    small.shortest = std::min(of.shortest, small.longest);
    small.window = of.window / 32;
    small.pool = std::min<std::int64_t>(of.pool, 64);
    const PagedDecode decode(small, 4, 1);
    const compiler::CompiledProblem compiled = compiler::compile(decode.problem());
    DeviceProperties device;
    device.multiprocessors = 3;
    device.shared_memory_per_block = 232448;
    for (SplitKvShape shape : compared_shapes(decode.problem(), device)) {
      SCOPED_TRACE(concat(of.name, shape.wide ? ", wide" : "", ", persistent CTAs ", shape.persistent_ctas, ", splits ",
                          shape.splits));
      if (shape.splits == 1 && shape.persistent_ctas == 0) continue;
      if (shape.streamed && shape.warps != kStreamedWarps) continue;
      const test::EmulatedKernels kernels(compiled, Direction::kForward, shape);
      std::vector<std::byte> workspace(kernels.kernels().workspace_bytes() + 16);
      std::vector<std::uint16_t> o(problem::bytes_of(decode.problem(), TensorRole::kO) / 2, 0x7fff);
      const std::vector<std::uint16_t>& numbers = decode.numbers();
      ASSERT_LE(problem::bytes_of(decode.problem(), TensorRole::kK), numbers.size() * 2);
      ForwardTensors tensors;
      tensors.q = tensors.k = tensors.v = numbers.data();
      tensors.o = o.data();
      tensors.operands = decode.operands();
      CallParameters parameters;
      parameters.scale = decode.problem().effective_scale();
      std::byte* const at = workspace.data() + (16 - reinterpret_cast<std::uintptr_t>(workspace.data()) % 16) % 16;
      kernels.run(kernels.kernels().arguments(tensors, parameters, at), 1);
      EXPECT_LE(decode.error_of(o), kTolerance);
      o[static_cast<std::size_t>(problem::RowAddressing(decode.problem(), TensorRole::kO).row(0, 0, 0))] ^= 0x4000;
      EXPECT_GT(decode.error_of(o), kTolerance) << "a wrong number is seen";
    }
  }
}

/// Device memory that repeats the stretch.
cuda::DeviceMemory repeated(const std::vector<std::uint16_t>& numbers, std::size_t bytes) {
  cuda::DeviceMemory memory(bytes);
  for (std::size_t at = 0; at < bytes; at += numbers.size() * 2)
    cuda::cuda_memory().copy_in(static_cast<std::byte*>(memory.data()) + at, numbers.data(),
                                std::min(bytes - at, numbers.size() * 2));
  return memory;
}

/// The bytes that a copy within the device's memory reads and writes, in GB/s: the best of several.
double copy_rate() {
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  const cuda::DeviceMemory from(kBytes), to(kBytes);
  const auto stream = static_cast<cudaStream_t>(cuda::own_stream());
  double least = 1e9;
  for (int i = 0; i < 8; ++i) {
    cuda::DeviceTimer timer(cuda::own_stream());
    timer.start();
    cuda::check_runtime(
        SCOREMOD_CUDART(cudaMemcpyAsync)(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice, stream),
        "cudaMemcpyAsync");
    least = std::min(least, timer.stop());
  }
  return 2.0 * static_cast<double>(kBytes) / least / 1e6;
}

class DecodeLengthsTimes : public AttentionKernelTimes {};

TEST_P(DecodeLengthsTimes, OfACase) {
  const LengthsCase& of = kLengthsCases[GetParam()];
  const PagedDecode decode(of);
  const AttentionProblem& problem = decode.problem();
  const compiler::CompiledProblem compiled = compiler::compile(problem);
  const std::vector<SplitKvShape> shapes = compared_shapes(problem, cuda::describe_current_device());
  std::vector<std::unique_ptr<ForwardPlan>> plans;
  for (const SplitKvShape& shape : shapes)
    plans.push_back(forward_plan(test::attention_call(compiled, Direction::kForward, shape),
                                 modules_of(compiled, Direction::kForward, shape)));
  if (builds_alone()) return;
  const auto tensor = [&](TensorRole role) { return repeated(decode.numbers(), problem::bytes_of(problem, role)); };
  const cuda::DeviceMemory q = tensor(TensorRole::kQ), k = tensor(TensorRole::kK);
  const cuda::DeviceMemory v = decode.is_view() ? cuda::DeviceMemory(0) : tensor(TensorRole::kV);
  const cuda::DeviceMemory o(problem::bytes_of(problem, TensorRole::kO));
  std::vector<cuda::DeviceMemory> memory;
  std::vector<const void*> operands;
  for (std::size_t i = 0; i < decode.operands().size(); ++i) {
    // One page table for both, as callers have it.
    const auto same = std::ranges::find(decode.operands(), decode.operands()[i]);
    if (const auto number = static_cast<std::size_t>(same - decode.operands().begin()); number < i) {
      operands.push_back(operands[number]);
      continue;
    }
    memory.emplace_back(decode.operand_bytes(i));
    memory.back().upload(decode.operands()[i], decode.operand_bytes(i));
    operands.push_back(memory.back().data());
  }
  ForwardTensors tensors;
  tensors.q = q.data();
  tensors.k = k.data();
  tensors.v = decode.is_view() ? k.data() : v.data();
  tensors.o = o.data();
  tensors.operands = operands;
  CallParameters parameters;
  parameters.scale = problem.effective_scale();
  parameters.stream = cuda::own_stream();
  std::vector<double> errors;
  for (const auto& plan : plans) {
    std::vector<std::uint16_t> found(problem::bytes_of(problem, TensorRole::kO) / 2, 0x7fff);
    cuda::cuda_memory().copy_in(o.data(), found.data(), found.size() * 2);
    const cuda::DeviceMemory workspace(plan->workspace_bytes());
    plan->execute(tensors, parameters, {static_cast<std::byte*>(workspace.data()), workspace.bytes()});
    cuda::cuda_memory().wait(parameters.stream);
    o.download(found.data(), found.size() * 2);
    errors.push_back(decode.error_of(found));
  }
  const std::vector<double> times = medians_in_turns(plans, tensors, parameters, true);
  const double copied = copy_rate();
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const double rate = decode.bytes_read() / times[i] / 1e6;
    const std::string line = concat(R"({"kind": "decode lengths", "case": ")", of.name, R"(", "shape": ")",
                                    shapes[i].hopper && !shapes[i].wide ? "warpgroups, " : "",
                                    shapes[i].wide                  ? "wide"
                                    : shapes[i].streamed            ? concat("streamed by ", shapes[i].warps, " warps")
                                    : shapes[i].persistent_ctas > 0 ? "persistent"
                                                                    : concat("splits ", shapes[i].splits),
                                    R"(", "ms": )", times[i], R"(, "gb_per_s": )", rate, R"(, "copy_gb_per_s": )",
                                    copied, R"(, "of_copy": )", rate / copied, R"(, "tflop_per_s": )",
                                    decode.operations() / times[i] / 1e9, R"(, "error": )", errors[i], "}");
    std::printf("%s\n", line.c_str());
    test::record_line(line);
    EXPECT_LE(errors[i], kTolerance) << line;
  }
}
INSTANTIATE_TEST_SUITE_P(Cases, DecodeLengthsTimes, ::testing::Range(0, static_cast<int>(std::size(kLengthsCases))));

}  // namespace
}  // namespace scoremod::backend::kernels
