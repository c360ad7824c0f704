#include "backend/cudnn/sequences/sequence_placer.hpp"

#include <algorithm>
#include <array>

#include "backend/cuda/device/workspace_alignment.hpp"
#include "backend/cuda/modules/kernel_cache.hpp"
#include "backend/cuda/text/kernel_text.hpp"
#include "base/byte_count.hpp"
#include "base/fail.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::cudnn {
namespace {

using problem::TensorRole;

/// About two CTAs on each SM. Most calls have no tokens outside of sequences, and then all CTAs end at once.
constexpr std::int64_t kMaxBlocks = 264;
/// The first results, by PlacesArgument::sequences.
constexpr std::array kLengthUids{kUidLengthsQ, kUidLengthsKv};
constexpr std::array kTableUids{kUidPagesK, kUidPagesV};

struct Role {
  TensorRole role;
  Uid uid;
};
/// A backward reads or writes all of them, a forward the first five.
constexpr std::array kRoles{
    Role{TensorRole::kQ, kUidQ},   Role{TensorRole::kK, kUidK},       Role{TensorRole::kV, kUidV},
    Role{TensorRole::kO, kUidO},   Role{TensorRole::kLse, kUidStats}, Role{TensorRole::kDO, kUidDO},
    Role{TensorRole::kDQ, kUidDQ}, Role{TensorRole::kDK, kUidDK},     Role{TensorRole::kDV, kUidDV}};
constexpr std::size_t kForwardRoles = 5;
static_assert(kRoles.size() == static_cast<std::size_t>(kMostPlacedTensors));

std::uint32_t operand_of(const AttentionProblem& problem, const char* name) {
  const auto number = problem::operand_number(problem.program, name);
  if (!number) fail_bug("a problem with sequences whose program does not declare ", name);
  return *number;
}

std::int64_t step_of(const AttentionProblem& problem, std::uint32_t operand) {
  return problem::strides_of(problem::spec_of(problem, operand))[0];
}

bool is_written(TensorRole role, Direction direction) {
  if (direction == Direction::kForward) return role == TensorRole::kO || role == TensorRole::kLse;
  return role == TensorRole::kDQ || role == TensorRole::kDK || role == TensorRole::kDV;
}

}  // namespace

std::string place_sequences_source() {
  return concat(cuda::file_text("backend/cuda/text/program_prelude.cuh"),
                cuda::file_text("backend/cudnn/sequences/places_argument.cuh"),
                cuda::file_text("backend/cudnn/sequences/place_sequences.cuh"));
}

PlacesLayout::PlacesLayout(const AttentionProblem& problem, Direction direction) {
  filled_.batch = static_cast<int>(problem.batch);
  for (const bool of_keys : {false, true}) add_sequences(problem, of_keys);
  add_tensors(problem, direction);
  if (problem.paged) add_tables(problem);
  const std::int64_t tokens = std::max(problem.tokens_q.value_or(1), problem.tokens_kv.value_or(1));
  const std::int64_t entries = problem.batch * (problem.paged ? problem.seq_kv : 1) + 1;
  blocks_ = std::clamp<std::int64_t>(std::max(tokens / 4, entries / kPlaceThreads) + 1, 1, kMaxBlocks);
}

std::size_t PlacesLayout::add_result(std::int64_t uid, std::size_t bytes) {
  results_.push_back({uid, bytes_});
  bytes_ = add_bytes(bytes_, align_bytes(bytes, cuda::kWorkspaceAlignment));
  return results_.back().place;
}

void PlacesLayout::add_sequences(const AttentionProblem& problem, bool of_keys) {
  SequencesArgument& all = filled_.sequences[of_keys];
  const std::optional<std::int64_t>& tokens = of_keys ? problem.tokens_kv : problem.tokens_q;
  all.longest = static_cast<int>(of_keys ? problem.seq_kv : problem.seq_q);
  if (tokens) {
    offsets_[of_keys] = operand_of(problem, of_keys ? problem::kOffsetsOfKeys : problem::kOffsetsOfQueries);
    all.step = step_of(problem, *offsets_[of_keys]);
    all.tokens = static_cast<int>(*tokens);
  } else if (of_keys && problem.paged) {
    counts_ = operand_of(problem, problem::kLengthsOfKeys);
    all.count_step = step_of(problem, *counts_);
  }
  add_result(kLengthUids[of_keys], static_cast<std::size_t>(problem.batch) * sizeof(std::int32_t));
}

void PlacesLayout::add_tensors(const AttentionProblem& problem, Direction direction) {
  const std::size_t count = direction == Direction::kForward ? kForwardRoles : kRoles.size();
  for (const auto& [role, uid] : std::span(kRoles.data(), count)) {
    const bool of_keys = !problem::is_query_like(role);
    if (!(of_keys ? problem.tokens_kv : problem.tokens_q)) continue;
    const Strides strides = problem::strides_of(problem, role);
    const problem::TensorShape shape = problem::shape_of(problem, role);
    filled_.placed[filled_.placed_count++] = {nullptr, strides.sequence, of_keys};
    add_result(kUidPlaces + uid, static_cast<std::size_t>(problem.batch + 1) * sizeof(std::int64_t));
    if (!is_written(role, direction)) continue;
    const auto dim = static_cast<int>(role == TensorRole::kLse ? 0 : shape.dim);
    filled_.cleared[filled_.cleared_count++] = {nullptr, strides.sequence, strides.head, static_cast<int>(shape.heads),
                                                dim,     of_keys};
    cleared_.push_back(uid);
  }
}

void PlacesLayout::add_tables(const AttentionProblem& problem) {
  const std::int64_t pages = (problem.seq_kv + problem.paged->block_size - 1) / problem.paged->block_size;
  filled_.pages = static_cast<int>(pages);
  filled_.blocks = static_cast<int>(problem.paged->blocks);
  const std::size_t bytes =
      multiply_bytes(static_cast<std::size_t>(problem.batch) * sizeof(std::int32_t), static_cast<std::size_t>(pages));
  for (const std::size_t of_values : {0, 1}) {
    tables_[of_values] = operand_of(problem, of_values == 1 ? problem::kPagesOfValues : problem::kPagesOfKeys);
    const auto strides = problem::strides_of(problem::spec_of(problem, *tables_[of_values]));
    filled_.tables[filled_.table_count++] = {nullptr, strides[0], strides[1], nullptr};
    add_result(kTableUids[of_values], bytes);
  }
  filled_.block_rows = static_cast<int>(problem.paged->block_size);
  add_result(kUidNamesPages, multiply_bytes(static_cast<std::size_t>(problem.batch) * sizeof(std::int32_t),
                                            static_cast<std::size_t>(problem.seq_kv)));
}

std::optional<std::size_t> PlacesLayout::place_of(std::int64_t uid) const {
  const auto found = std::ranges::find(results_, uid, &Result::uid);
  return found == results_.end() ? std::nullopt : std::optional(found->place);
}

PlacesArgument PlacesLayout::argument(const CallPointers& call, std::byte* workspace) const {
  PlacesArgument argument = filled_;
  std::size_t next = 0;
  const auto result = [&] { return workspace + results_[next++].place; };
  const auto operand = [&](const std::optional<std::uint32_t>& number) {
    return number ? static_cast<const int*>(call.operands[*number]) : nullptr;
  };
  for (const std::size_t of_keys : {0, 1}) {
    argument.sequences[of_keys].offsets = operand(offsets_[of_keys]);
    argument.sequences[of_keys].lengths = reinterpret_cast<int*>(result());
  }
  argument.sequences[1].counts = operand(counts_);
  for (int i = 0; i < argument.placed_count; ++i) argument.placed[i].places = reinterpret_cast<long long*>(result());
  for (std::size_t i = 0; i < cleared_.size(); ++i)
    argument.cleared[i].data = call.attention[static_cast<std::size_t>(cleared_[i])];
  for (int i = 0; i < argument.table_count; ++i) {
    argument.tables[i].from = operand(tables_[i]);
    argument.tables[i].to = reinterpret_cast<int*>(result());
  }
  if (argument.table_count > 0) argument.names_pages = reinterpret_cast<int*>(result());
  return argument;
}

SequencePlacer::SequencePlacer(const AttentionProblem& problem, Direction direction)
    : layout_(problem, direction),
      module_(cuda::cached_kernels(place_sequences_source())),
      kernel_(module_.kernel("place_sequences")) {}

void SequencePlacer::execute(const CallPointers& call, std::byte* workspace, void* stream) const {
  const PlacesArgument argument = layout_.argument(call, workspace);
  cuda::KernelModule::launch(kernel_, {layout_.blocks(), 1, 1}, kPlaceThreads, 0, &argument, stream);
}

}  // namespace scoremod::backend::cudnn
