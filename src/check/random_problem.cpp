#include "check/random_problem.hpp"

#include <array>

#include "check/random_program.hpp"
#include "check/row_sample.hpp"
#include "problem/block_scales.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::checking {
namespace {

using problem::TensorRole;

class Chooser {
 public:
  explicit Chooser(std::mt19937_64& random) : random_(random) {}

  bool chance(double probability) { return static_cast<double>(random_() >> 11) * 0x1p-53 < probability; }
  template <class Values>
  auto one_of(const Values& values) {
    return values[static_cast<std::size_t>(random_() % values.size())];
  }
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(high - low + 1));
  }

 private:
  std::mt19937_64& random_;
};

void choose_lengths(Chooser& choose, const RandomProblemOptions& options, AttentionProblem& problem) {
  constexpr std::int64_t kFew = 3;
  if (choose.chance(options.few_rows_probability)) {
    problem.seq_q = choose.between(1, kFew);
    problem.seq_kv = choose.between(1, kFew);
    return;
  }
  problem.seq_q = choose.chance(options.one_query_probability) ? 1 : choose.one_of(options.lengths);
  problem.seq_kv = choose.chance(0.3) ? problem.seq_q : choose.one_of(options.lengths);
  // One key weighs 1 whatever its score: fewer of these than of others.
  if (problem.seq_kv == 1 && choose.chance(0.6)) problem.seq_kv = choose.one_of(options.lengths);
}

void choose_sizes(Chooser& choose, const RandomProblemOptions& options, AttentionProblem& problem) {
  do {
    choose_lengths(choose, options, problem);
    problem.batch = choose.between(1, 3);
    problem.heads_kv = choose.between(1, 3);
    problem.heads_q = problem.heads_kv * choose.between(1, 3);
  } while (problem.batch * problem.heads_q * problem.seq_q * problem.seq_kv > options.max_scores);
  problem.dim_qk = choose.one_of(options.head_dims);
  problem.dim_v = choose.chance(0.5) ? problem.dim_qk : choose.one_of(options.head_dims);
}

/// Strides of a random order of the dimensions, each padded now and then.
Strides random_strides(Chooser& choose, std::int64_t row_alignment, const problem::TensorShape& shape) {
  const std::array sizes{shape.batch, shape.heads, shape.sequence, shape.dim};
  std::array<std::size_t, 4> order{0, 1, 2, 3};  // outermost first
  for (std::size_t i = 0; i < 3; ++i) {
    // The head dim stays innermost in most problems, as it does in practice.
    const auto last = row_alignment == 1 && choose.chance(0.2) ? 3 : 2;
    std::swap(
        order[i],
        order[static_cast<std::size_t>(choose.between(static_cast<std::int64_t>(std::min<std::size_t>(i, 2)), last))]);
  }
  std::array<std::int64_t, 4> strides{};
  std::int64_t step = 1;
  for (std::size_t i = 4; i-- > 0;) {
    strides[order[i]] = step;
    step *= sizes[order[i]] + (choose.chance(0.4) ? row_alignment * choose.between(1, 9) : 0);
  }
  return {strides[0], strides[1], strides[2], strides[3]};
}

void choose_layouts(Chooser& choose, std::int64_t row_alignment, AttentionProblem& problem) {
  constexpr std::array kLayouts{Layout::kBSHD, Layout::kSBHD, Layout::kBHSD};
  const Layout shared = choose.one_of(kLayouts);
  const auto layout = [&](TensorRole role) {
    TensorLayout out{choose.chance(0.7) ? shared : choose.one_of(kLayouts), {}};
    if (choose.chance(0.3)) out.strides = random_strides(choose, row_alignment, problem::shape_of(problem, role));
    return out;
  };
  problem.q = layout(TensorRole::kQ);
  problem.k = layout(TensorRole::kK);
  problem.v = layout(TensorRole::kV);
  problem.o = layout(TensorRole::kO);
}

OperandSpec random_spec(Chooser& choose, const AttentionProblem& problem, const OperandDecl& decl) {
  constexpr std::array kFloats{DType::kF32, DType::kF32, DType::kF16, DType::kBF16};
  OperandSpec spec = problem::default_spec(problem, decl);
  if (decl.type == Type::kF32) spec.dtype = choose.one_of(kFloats);
  for (int d = 0; d < decl.table_rank; ++d) spec.shape.push_back(choose.between(1, 12));
  if (choose.chance(0.3)) {
    std::int64_t step = 1;
    for (std::size_t d = spec.shape.size(); d-- > 0;) {
      spec.strides.insert(spec.strides.begin(), step);
      step *= spec.shape[d] + choose.between(0, 3);
    }
  }
  return spec;
}

void choose_operands(Chooser& choose, const RandomProgramOptions& options, CheckCase& random) {
  for (const OperandDecl& decl : random.problem.program.operands()) {
    random.problem.operands.push_back(random_spec(choose, random.problem, decl));
    if (decl.type == Type::kF32) {
      random.fills.push_back({decl.name, {FillKind::kUniform, -options.float_limit, options.float_limit}});
    } else if (decl.type == Type::kI32) {
      const auto low = static_cast<double>(options.int_low);
      random.fills.push_back({decl.name, {FillKind::kUniform, low, static_cast<double>(options.int_high)}});
    }
  }
}

void choose_fields(Chooser& choose, const RandomProblemOptions& options, CheckCase& random) {
  AttentionProblem& problem = random.problem;
  if (choose.chance(options.lengths_probability)) {
    problem.lengths = choose.one_of(std::array<SequenceLengths, 3>{{{true, false}, {false, true}, {true, true}}});
  }
  if (choose.chance(options.sink_probability)) {
    problem.sink = choose.one_of(std::array{Sink::kOffByOne, Sink::kLearned});
  }
  if (choose.chance(options.dropout_probability)) {
    problem.dropout = choose.one_of(std::array{0.1F, 0.5F, 0.9F});
    random.call.dropout_seed = static_cast<std::uint64_t>(choose.between(0, std::int64_t{1} << 40));
    random.call.dropout_offset = static_cast<std::uint64_t>(choose.between(0, std::int64_t{1} << 40));
  }
  problem.max_logit = choose.chance(options.max_logit_probability);
  problem.dropout_keys = problem.dropout > 0 && choose.chance(0.3);
  problem.given_deltas = choose.chance(0.15);
}

void choose_ragged(Chooser& choose, AttentionProblem& problem) {
  const bool of_queries = choose.chance(0.7), of_keys = !of_queries || choose.chance(0.6);
  if (of_queries) {
    problem.tokens_q = choose.between(1, problem.batch * problem.seq_q);
    problem.q = problem.o = {Layout::kTHD, {}};
  }
  if (of_keys) {
    problem.tokens_kv = choose.between(1, problem.batch * problem.seq_kv);
    problem.k = problem.v = {Layout::kTHD, {}};
  }
}

void choose_paged(Chooser& choose, std::int64_t row_alignment, AttentionProblem& problem) {
  problem.backward = false;
  problem.lengths.kv = true;
  PagedKeys& paged = problem.paged.emplace();
  paged.block_size = choose.one_of(std::array<std::int64_t, 5>{1, 3, 16, 64, 128});
  paged.blocks_per_sequence = (problem.seq_kv + paged.block_size - 1) / paged.block_size + choose.between(0, 2);
  paged.blocks = choose.between(1, problem.batch * paged.blocks_per_sequence + 3);
  for (const auto& [tensor, role] : {std::pair{&problem.k, TensorRole::kK}, std::pair{&problem.v, TensorRole::kV}}) {
    if (tensor->strides)
      tensor->strides = random_strides(choose, row_alignment, problem::memory_shape_of(problem, role));
  }
}

/// Varlen tensors that are parts of larger ones, as packed queries, keys and values are.
void choose_ragged_strides(Chooser& choose, std::int64_t row_alignment, AttentionProblem& problem) {
  for (const auto& [tensor, role] : {std::pair{&problem.q, TensorRole::kQ}, std::pair{&problem.k, TensorRole::kK},
                                     std::pair{&problem.v, TensorRole::kV}, std::pair{&problem.o, TensorRole::kO}}) {
    if (tensor->layout == Layout::kTHD && choose.chance(0.3))
      tensor->strides = random_strides(choose, row_alignment, problem::memory_shape_of(problem, role));
  }
}

/// FP8 keys and values under wider queries, with scales of the tensors or of each KV head. A choice that is never
/// wanted draws nothing.
void choose_float8_keys(Chooser& choose, double probability, AttentionProblem& problem) {
  if (probability == 0 || is_float8(problem.dtype) || !choose.chance(probability)) return;
  problem.dtype_kv = choose.one_of(std::array{DType::kE4M3, DType::kE5M2});
  problem.backward = false;
  for (const char* name : {problem::kDescaleOfKeys, problem::kDescaleOfValues})
    if (choose.chance(0.5)) problem.operands.push_back({name, DType::kF32, {problem.heads_kv}, {}, false});
}

/// Chooses layouts and strides that not every backend supports.
void choose_places(Chooser& choose, const RandomProblemOptions& options, AttentionProblem& problem) {
  // Offsets and tables are of whole sequences.
  if (!problem.index_offsets) {
    if (choose.chance(options.ragged_probability)) {
      choose_ragged(choose, problem);
    } else if (choose.chance(options.paged_probability)) {
      choose_paged(choose, options.row_alignment, problem);
    }
  }
  choose_float8_keys(choose, options.float8_keys_probability, problem);
  if (choose.chance(options.output_dtype_probability))
    problem.dtype_o = choose.one_of(std::array{DType::kF32, DType::kF16, DType::kBF16});
  choose_ragged_strides(choose, options.row_alignment, problem);
  if (!problem.backward || !choose.chance(options.gradient_layout_probability)) return;
  const auto own = [&](std::optional<TensorLayout>& gradient, TensorRole role) {
    const bool is_ragged = problem::layout_of(problem, role).layout == Layout::kTHD;
    if (is_ragged || choose.chance(0.4)) return;
    gradient = TensorLayout{choose.one_of(std::array{Layout::kBSHD, Layout::kSBHD, Layout::kBHSD}), {}};
    if (choose.chance(0.4))
      gradient->strides = random_strides(choose, options.row_alignment, problem::shape_of(problem, role));
  };
  own(problem.d_o, TensorRole::kDO);
  own(problem.dq, TensorRole::kDQ);
  own(problem.dk, TensorRole::kDK);
  own(problem.dv, TensorRole::kDV);
}

/// Chooses the fields that only FP8 problems have. For others nothing is drawn.
void choose_float8_fields(Chooser& choose, AttentionProblem& problem) {
  if (!is_float8(problem.dtype)) return;
  constexpr std::array kDTypes{DType::kF32, DType::kF16, DType::kBF16, DType::kE4M3, DType::kE5M2};
  problem.amax_o = choose.chance(0.5);
  if (choose.chance(0.5)) problem.dtype_o = choose.one_of(kDTypes);
  if (choose.chance(0.5)) problem.dtype_d_o = choose.one_of(kDTypes);
  if (choose.chance(0.5)) problem.dtype_gradients = choose.one_of(std::array{DType::kF32, DType::kF16, DType::kBF16});
}

/// Block scales of FP8 tensors that have none of heads. A choice that is never wanted draws nothing.
void choose_block_scales(Chooser& choose, double probability, AttentionProblem& problem) {
  if (probability == 0) return;
  for (const TensorRole role : {TensorRole::kQ, TensorRole::kK, TensorRole::kV}) {
    const std::string name = problem::descale_of(role);
    if (!problem::is_tensor_scale(problem, name) || problem::has_head_scales(problem, name)) continue;
    if (!choose.chance(probability)) continue;
    const problem::TensorShape shape = problem::memory_shape_of(problem, role);
    OperandSpec scales{name, DType::kF32, {}, {}, false};
    for (std::size_t dimension = 0; dimension < 4; ++dimension)
      scales.shape.push_back(choose.one_of(problem::scale_extents(shape, dimension)));
    problem.operands.push_back(scales);
  }
}

void choose_offsets(Chooser& choose, CheckCase& random) {
  IndexOffsets& offsets = random.call.offsets;
  for (auto* offset : {&offsets.batch, &offsets.head, &offsets.query, &offsets.key})
    *offset = static_cast<std::int32_t>(choose.between(0, kRandomIndexLimit - 1000));
  random.problem.index_offsets = true;
}

/// The ranges of the indices for the problem's sizes.
std::array<IndexRange, kAxisCount> index_ranges(const CheckCase& random) {
  const AttentionProblem& problem = random.problem;
  const IndexOffsets& offsets = random.call.offsets;
  const auto range = [](std::int32_t first, std::int64_t count) {
    return IndexRange{first, first + static_cast<std::int32_t>(count) - 1};
  };
  return {range(offsets.batch, problem.batch), range(offsets.head, problem.heads_q),
          range(offsets.query, problem.seq_q), range(offsets.key, problem.seq_kv)};
}

void fill_row_class(RowClass rows, CheckCase& random) {
  if (rows == RowClass::kOneKey) {
    const double first = random.call.offsets.key;
    const auto last = first + static_cast<double>(random.problem.seq_kv - 1);
    random.fills.push_back({kRowKey, {FillKind::kUniform, first, last}});
  } else if (rows == RowClass::kEmptyByTable) {
    random.fills.push_back({kRowWeight, {FillKind::kUniform, 0, 2}});
  }
}

/// Lengths reach beyond the problem's queries and keys: they are of whole sequences, and offsets leave the problem a
/// part.
void fill_lengths(CheckCase& random) {
  const AttentionProblem& problem = random.problem;
  const auto fill = [&](const char* lengths, std::int32_t first, std::int64_t count) {
    random.fills.push_back(
        {lengths, {FillKind::kUniform, double(first), static_cast<double>(first) + static_cast<double>(count)}});
  };
  if (problem.lengths.q) fill(problem::kLengthsOfQueries, random.call.offsets.query, problem.seq_q);
  if (problem.lengths.kv) fill(problem::kLengthsOfKeys, random.call.offsets.key, problem.seq_kv);
}

void choose_program(Chooser& choose, std::mt19937_64& random, const RandomProblemOptions& options, RowClass rows,
                    CheckCase& out) {
  RandomProgramOptions program;
  program.max_nodes = static_cast<int>(choose.between(8, 40));
  program.mask_probability = 0.55;
  program.infinity_mask_probability = 0.2;
  program.key_mask_probability = 0.7;
  program.indices = index_ranges(out);
  program.rows = rows;
  if (choose.chance(options.shifted_value_probability))
    program.value_shift = static_cast<float>(choose.between(-250, 300));
  out.problem.program = random_program(random, program);
  // The others are of another draw's program.
  std::erase_if(out.problem.operands,
                [&](const OperandSpec& spec) { return !problem::is_tensor_scale(out.problem, spec.name); });
  out.fills.clear();
  choose_operands(choose, program, out);
  fill_row_class(rows, out);
  fill_lengths(out);
}

/// How often degenerate programs are kept: all rows masked, weights independent of scores, and no key masked. Most
/// random programs are one of these, and few are enough.
constexpr double kEmptyShare = 0.03, kUntoldShare = 0.05, kWholeShare = 0.2;
/// For problems whose sizes or fields allow nothing better.
constexpr int kMostDraws = 12;

/// The probability that the program stays.
double share_kept(const CheckCase& random, RowClass rows) {
  const RowSample sample = sample_rows(random);
  if (sample.empty == sample.rows) return kEmptyShare;
  // One key, which weighs 1 whatever its score, was meant.
  if (rows == RowClass::kOneKey || random.problem.seq_kv == 1) return 1;
  if (4 * sample.told_by_score < sample.rows) return kUntoldShare;
  return 4 * sample.partly_kept < sample.rows ? kWholeShare : 1;
}

}  // namespace

CheckCase random_problem(std::uint64_t seed, const RandomProblemOptions& options) {
  std::mt19937_64 random(seed);
  Chooser choose(random);
  CheckCase out;
  out.seed = seed;
  AttentionProblem& problem = out.problem;
  RowClass rows = RowClass::kAny;
  if (choose.chance(options.row_class_probability))
    rows = choose.one_of(std::array{RowClass::kEmptyByBool, RowClass::kEmptyByTable, RowClass::kOneKey});
  problem.dtype = choose.one_of(options.dtypes);
  problem.backward = choose.chance(options.backward_probability);
  problem.stats = problem.backward || choose.chance(0.5);
  choose_sizes(choose, options, problem);
  choose_layouts(choose, options.row_alignment, problem);
  if (choose.chance(0.3)) problem.scale = choose.one_of(std::array{0.01F, 0.5F, 1.0F, -0.3F});
  if (choose.chance(0.3)) choose_offsets(choose, out);
  // Backends without these fields must be able to run the row classes, and a sink would hide how low their scores are.
  if (rows == RowClass::kAny) {
    choose_fields(choose, options, out);
    choose_places(choose, options, problem);
    choose_float8_fields(choose, problem);
    choose_block_scales(choose, options.block_scales_probability, problem);
  }
  int draws = 0;
  do {
    choose_program(choose, random, options, rows, out);
  } while (++draws < kMostDraws && !choose.chance(share_kept(out, rows)));
  return out;
}

}  // namespace scoremod::checking
