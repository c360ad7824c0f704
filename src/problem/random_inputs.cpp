#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string_view>

#include "scoremod/inputs.hpp"

#include "base/element.hpp"
#include "base/fail.hpp"
#include "problem/implied_operands.hpp"
#include "problem/random_operands.hpp"
#include "problem/strided_tensor.hpp"

namespace scoremod {
namespace {

using problem::StridedTensor;

/// The standard deviation of scaled scores. It is large enough that a soft cap or a relative bias changes the result
/// far more than rounding does. It is small enough that a softmax still mixes several keys.
constexpr double kScoreDeviation = 4;

/// The standard deviation of stored FP8 numbers: all are normal, and none is beyond the largest.
constexpr double kFloat8Deviation = 32;

constexpr double kLowestInteger = std::numeric_limits<std::int32_t>::min();
constexpr double kHighestInteger = std::numeric_limits<std::int32_t>::max();

/// Values from the bits of the generator itself: the distributions of the standard library differ between
/// implementations.
class Source {
 public:
  Source(std::uint64_t seed, std::string_view name) {
    // FNV-1a, so that each tensor has its own sequence.
    std::uint64_t hash = 0xcbf29ce484222325u;
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    bits_.seed(seed ^ hash);
  }

  /// In [0, 1), a multiple of 2^-53.
  double unit() { return static_cast<double>(bits_() >> 11) * 0x1p-53; }

  /// Mean 0 and deviation 1: the sum of four uniforms has variance 1/3.
  double normal() {
    double sum = 0;
    for (int i = 0; i < 4; ++i) sum += unit();
    return (sum - 2) * 1.7320508075688772;
  }

  /// In [low, high], both included.
  std::int64_t integer(double low, double high) {
    const double first = std::ceil(low);
    const double count = std::floor(high) - first + 1;
    return static_cast<std::int64_t>(first + std::min(std::floor(unit() * count), count - 1));
  }

 private:
  std::mt19937_64 bits_;
};

const OperandDecl* find_operand(const AttentionProblem& problem, const std::string& name) {
  for (const OperandDecl& decl : problem.program.operands()) {
    if (decl.name == name) return &decl;
  }
  return nullptr;
}

bool has_sequence_axis(const OperandDecl& decl) {
  return decl.axes[static_cast<std::size_t>(Axis::kQuery)] || decl.axes[static_cast<std::size_t>(Axis::kKey)];
}

/// The standard deviation of q and k.
double score_part_deviation(const AttentionProblem& problem) {
  const double scale = std::abs(problem.effective_scale()) * std::sqrt(static_cast<double>(problem.dim_qk));
  return scale > 0 ? std::clamp(std::sqrt(kScoreDeviation / scale), 0.01, 100.0) : 1.0;
}

/// Scales that give FP8 tensors the deviations of other tensors; an o of some deviations is not saturated.
Fill tensor_scale_fill(const AttentionProblem& problem, const std::string& name) {
  const auto around = [](double factor) { return Fill{FillKind::kUniform, 0.75 * factor, 1.25 * factor}; };
  if (name == problem::kScaleOfOutput) return around(2 * kFloat8Deviation);
  const bool of_scores = name == problem::kDescaleOfQueries || name == problem::kDescaleOfKeys;
  return around((of_scores ? score_part_deviation(problem) : 1) / kFloat8Deviation);
}

Fill operand_fill(const AttentionProblem& problem, const OperandDecl& decl) {
  if (problem::is_tensor_scale(problem, decl.name)) return tensor_scale_fill(problem, decl.name);
  const auto tokens = [](std::int64_t longest, std::int64_t count) {
    return Fill{FillKind::kOffsets, static_cast<double>(longest), static_cast<double>(count)};
  };
  if (decl.name == problem::kOffsetsOfQueries && problem.tokens_q) return tokens(problem.seq_q, *problem.tokens_q);
  if (decl.name == problem::kOffsetsOfKeys && problem.tokens_kv) return tokens(problem.seq_kv, *problem.tokens_kv);
  const bool is_page_table = decl.name == problem::kPagesOfKeys || decl.name == problem::kPagesOfValues;
  if (is_page_table && problem.paged) return {FillKind::kBlocks, 0, static_cast<double>(problem.paged->blocks)};
  switch (decl.type) {
    case Type::kF32: return {FillKind::kUniform, 0.25, 1.75};
    case Type::kBool: return {FillKind::kUniform, 0, 4};
    case Type::kI32: break;
  }
  if (decl.is_table()) return {FillKind::kUniform, 0, 3};
  if (has_sequence_axis(decl)) return {FillKind::kSegments, 0, 4};
  const bool of_queries = decl.name == problem::kLengthsOfQueries;
  return {FillKind::kUniform, 0, static_cast<double>(of_queries ? problem.seq_q : problem.seq_kv)};
}

/// Cuts [0, size) into about `count` segments of uneven lengths; returns each position's segment.
std::vector<std::int32_t> segment_ids(Source& source, std::int64_t size, double count) {
  std::vector<std::int64_t> cuts;
  for (int i = 1; i < count; ++i) cuts.push_back(source.integer(0, static_cast<double>(size)));
  std::sort(cuts.begin(), cuts.end());
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < size; ++i) {
    ids.push_back(static_cast<std::int32_t>(std::upper_bound(cuts.begin(), cuts.end(), i) - cuts.begin()));
  }
  return ids;
}

/// Offsets of as many sequences as fit, of at most `longest` tokens each and `tokens` in all. Uneven, and some empty.
std::vector<std::int64_t> sequence_offsets(Source& source, std::int64_t sequences, std::int64_t longest,
                                           std::int64_t tokens) {
  std::vector<std::int64_t> offsets{0};
  for (std::int64_t left = sequences; left-- > 0;) {
    const std::int64_t rest = tokens - offsets.back();
    // This sequence takes the tokens that the others have no room for.
    const std::int64_t least = std::max<std::int64_t>(rest - left * longest, 0), most = std::min(rest, longest);
    const bool is_empty = least == 0 && source.unit() < 0.2;
    offsets.push_back(offsets.back() + (is_empty ? 0
                                        : left == 0
                                            ? rest
                                            : source.integer(static_cast<double>(least), static_cast<double>(most))));
  }
  return offsets;
}

void fill_offsets(Source& source, const StridedTensor& tensor, const Fill& fill, std::vector<std::byte>& bytes) {
  const std::vector<std::int64_t> offsets = sequence_offsets(
      source, tensor.shape[0] - 1, static_cast<std::int64_t>(fill.low), static_cast<std::int64_t>(fill.high));
  tensor.for_each_offset([&](std::int64_t number, std::int64_t offset) {
    store_element(bytes.data(), tensor.dtype, offset, offsets[static_cast<std::size_t>(number)]);
  });
}

/// Each block once, in any order; again from the start where there are fewer than wanted.
void fill_blocks(Source& source, const StridedTensor& tensor, const Fill& fill, std::vector<std::byte>& bytes) {
  const auto blocks = static_cast<std::int64_t>(fill.high);
  std::vector<std::int32_t> order;
  for (std::int64_t i = 0; i < std::min(blocks, tensor.elements()); ++i)
    order.push_back(static_cast<std::int32_t>(blocks > tensor.elements() ? blocks - 1 - i : i));
  for (std::size_t i = order.size(); i-- > 1;)
    std::swap(order[i], order[static_cast<std::size_t>(source.integer(0, static_cast<double>(i)))]);
  tensor.for_each_offset([&](std::int64_t number, std::int64_t offset) {
    store_element(bytes.data(), tensor.dtype, offset, order[static_cast<std::size_t>(number) % order.size()]);
  });
}

/// Refuses overrides that no default ever has: numbers that the tensor cannot hold, or no numbers at all.
void check_override(const StridedTensor& tensor, const Fill& fill) {
  const auto refuse = [&](const auto&... expected) {
    fail_argument("the fill of '", tensor.name, "': expected ", expected..., "; found low ", fill.low, " and high ",
                  fill.high, " for a tensor of ", to_string(tensor.dtype));
  };
  if (!std::isfinite(fill.low) || !std::isfinite(fill.high)) refuse("finite numbers");
  switch (fill.kind) {
    case FillKind::kOffsets:
    case FillKind::kBlocks:
      fail_argument("the fill of '", tensor.name, "': expected kNormal, kUniform or kSegments; ",
                    "offsets and blocks are drawn where the problem has them");
    case FillKind::kNormal:
      if (!is_floating(tensor.dtype)) refuse("a tensor of floats for kNormal");
      if (fill.high < 0) refuse("a standard deviation of at least 0 in high");
      break;
    case FillKind::kSegments:
      if (tensor.dtype != DType::kI32 || tensor.shape.empty()) refuse("an i32 tensor with a dimension for kSegments");
      if (fill.high < 1 || fill.high > static_cast<double>(tensor.shape.back())) {
        refuse("a count from 1 to ", tensor.shape.back(), ", the size of the last dimension, in high");
      }
      break;
    case FillKind::kUniform:
      if (fill.low > fill.high) refuse("low <= high");
      if (tensor.dtype == DType::kI32 &&
          (fill.low < kLowestInteger || fill.high > kHighestInteger || std::ceil(fill.low) > std::floor(fill.high))) {
        refuse("bounds within i32 with an integer between them");
      }
  }
}

void fill_segments(Source& source, const StridedTensor& tensor, double count, std::vector<std::byte>& bytes) {
  const std::int64_t length = tensor.shape.back();
  std::vector<std::int32_t> ids;
  tensor.for_each_offset([&](std::int64_t index, std::int64_t offset) {
    if (index % length == 0) ids = segment_ids(source, length, count);
    store_element(bytes.data(), tensor.dtype, offset, ids[static_cast<std::size_t>(index % length)]);
  });
}

double draw(Source& source, DType dtype, const Fill& fill) {
  // A bool is true for all integers below `high` but the first.
  if (dtype == DType::kBool) return source.unit() * fill.high >= 1 ? 1 : 0;
  if (dtype == DType::kI32) return static_cast<double>(source.integer(fill.low, fill.high));
  if (fill.kind == FillKind::kNormal) return fill.low + fill.high * source.normal();
  return fill.low + (fill.high - fill.low) * source.unit();
}

std::vector<std::byte> fill_tensor(const StridedTensor& tensor, const Fill& fill, std::uint64_t seed) {
  std::vector<std::byte> bytes(tensor.bytes(), std::byte{0xff});
  Source source(seed, tensor.name);
  if (fill.kind == FillKind::kSegments) {
    fill_segments(source, tensor, fill.high, bytes);
  } else if (fill.kind == FillKind::kOffsets) {
    fill_offsets(source, tensor, fill, bytes);
  } else if (fill.kind == FillKind::kBlocks) {
    fill_blocks(source, tensor, fill, bytes);
  } else {
    tensor.for_each_offset([&](std::int64_t, std::int64_t offset) {
      store_element(bytes.data(), tensor.dtype, offset, draw(source, tensor.dtype, fill));
    });
  }
  return bytes;
}

/// Fills tensors of a problem that has its implied operands, as the options say.
class Filler {
 public:
  Filler(const AttentionProblem& problem, const RandomInputOptions& options) : problem_(problem), options_(options) {
    for (const FillOverride& entry : options.overrides) default_fill(problem, entry.tensor);
  }

  std::vector<std::byte> operator()(const StridedTensor& tensor) const {
    Fill fill = default_fill(problem_, tensor.name);
    for (const FillOverride& entry : options_.overrides) {
      if (entry.tensor != tensor.name) continue;
      check_override(tensor, entry.fill);
      fill = entry.fill;
    }
    return fill_tensor(tensor, fill, options_.seed);
  }

  std::vector<OwnedOperand> operands() const {
    std::vector<OwnedOperand> made;
    for (std::uint32_t i = 0; i < problem_.program.operands().size(); ++i) {
      const OperandSpec& spec = problem::spec_of(problem_, i);
      made.push_back({spec.name, (*this)(problem::tensor_of(spec.name, spec))});
    }
    return made;
  }

 private:
  const AttentionProblem& problem_;
  const RandomInputOptions& options_;
};

}  // namespace

std::vector<OperandBuffer> ProblemInputs::operand_buffers() const {
  std::vector<OperandBuffer> buffers;
  for (const OwnedOperand& operand : operands) {
    buffers.push_back({operand.name, {operand.bytes.data(), operand.bytes.size()}});
  }
  return buffers;
}

Fill default_fill(const AttentionProblem& given, const std::string& tensor) {
  const AttentionProblem problem = problem::with_implied_operands(given);
  const auto normal = [](DType dtype, double deviation) {
    return Fill{FillKind::kNormal, 0, is_float8(dtype) ? kFloat8Deviation : deviation};
  };
  if (tensor == "v") return normal(problem::dtype_of(problem, problem::TensorRole::kV), 1);
  if (tensor == "d_o") return normal(problem::dtype_of(problem, problem::TensorRole::kDO), 1);
  if (tensor == "q") return normal(problem.dtype, score_part_deviation(problem));
  if (tensor == "k") {
    const DType dtype = problem::dtype_of(problem, problem::TensorRole::kK);
    return normal(dtype, score_part_deviation(problem));
  }
  const OperandDecl* decl = find_operand(problem, tensor);
  if (decl == nullptr) {
    fail_argument("'", tensor, "' is no tensor of the problem: expected q, k, v, d_o or the name of an operand");
  }
  return operand_fill(problem, *decl);
}

ProblemInputs random_inputs(const AttentionProblem& given, const RandomInputOptions& options) {
  validate(given);
  const AttentionProblem problem = problem::with_implied_operands(given);
  const Filler fill(problem, options);
  using problem::TensorRole;
  ProblemInputs inputs;
  inputs.q = fill(problem::tensor_of("q", problem, TensorRole::kQ));
  inputs.k = fill(problem::tensor_of("k", problem, TensorRole::kK));
  inputs.v = fill(problem::tensor_of("v", problem, TensorRole::kV));
  inputs.d_o = fill(problem::tensor_of("d_o", problem, TensorRole::kDO));
  inputs.operands = fill.operands();
  return inputs;
}

std::vector<OwnedOperand> problem::random_operands(const AttentionProblem& problem, const RandomInputOptions& options) {
  return Filler(problem, options).operands();
}

}  // namespace scoremod
