#include "backend/cuda/operand_gradients/operand_gradients.hpp"

#include <algorithm>

#include "backend/cuda/device/runtime_call.hpp"
#include "backend/cuda/modules/kernel_cache.hpp"
#include "backend/cuda/modules/kernel_module.hpp"
#include "backend/cuda/operand_gradients/gradient_blocks.hpp"
#include "backend/cuda/operand_gradients/gradient_source.hpp"
#include "backend/cuda/operand_gradients/gradient_workspace.hpp"
#include "backend/cuda/operand_gradients/matrix_products.hpp"
#include "backend/cuda/text/program_source.hpp"
#include "base/fail.hpp"
#include "problem/row_addressing.hpp"

namespace scoremod::backend::cuda {
namespace {

using problem::TensorRole;

constexpr std::int64_t kMaxStoreBlocks = 4096;

std::int64_t blocks_of(std::int64_t size, std::int64_t block) { return (size + block - 1) / block; }

/// A role's tensor as products see it: a size that is 1 has no meaningful stride.
struct Rows {
  problem::RowAddressing addressing;
  std::int64_t head = 0, row = 0;
  std::size_t element = 0;

  Rows(const AttentionProblem& problem, TensorRole role) : addressing(problem, role), element(size_of(problem.dtype)) {
    const problem::TensorShape& shape = addressing.shape();
    head = shape.heads == 1 ? 0 : addressing.head_step();
    row = shape.sequence == 1 ? shape.dim : addressing.row_step();
  }

  const void* at(const void* data, std::int64_t b, std::int64_t h, std::int64_t s) const {
    return static_cast<const std::byte*>(data) + addressing.row(b, h, s) * static_cast<std::int64_t>(element);
  }
};

/// Kernels count in i32. Blocks are smaller than that, and so are their first queries and keys.
std::int32_t i32(std::int64_t x) { return static_cast<std::int32_t>(x); }

/// Whether heads of one batch add to the same sums of a block.
bool sums_over_heads(const GradientTarget& target) {
  return target.sum == GradientSum::kBlock && target.extents[1] == 1;
}

/// One execution: everything that is enqueued.
struct Call {
  const BackwardTensors& tensors;
  const CallParameters& parameters;
  std::byte* workspace;

  float* floats(std::size_t offset) const { return reinterpret_cast<float*>(workspace + offset); }
  void clear(std::size_t offset, std::int64_t bytes) const {
    if (bytes == 0) return;
    check_runtime(SCOREMOD_CUDART(cudaMemsetAsync)(workspace + offset, 0, static_cast<std::size_t>(bytes),
                                                   static_cast<cudaStream_t>(parameters.stream)),
                  "cudaMemsetAsync");
  }
};

class GeneratedOperandGradients final : public OperandGradients {
 public:
  GeneratedOperandGradients(const compiler::CompiledProblem& compiled, std::span<const std::uint32_t> operands)
      : compiled_(compiled),
        problem_(compiled_.problem),
        targets_(gradient_targets(compiled_, operands)),
        source_(gradient_source(compiled_, targets_)),
        blocks_(gradient_blocks(problem_, targets_)),
        one_head_at_a_time_(problem_.deterministic && std::ranges::any_of(targets_, sums_over_heads)),
        layout_(problem_, targets_, blocks_),
        module_(cached_kernels(source_.text)),
        weighs_(has_weighted_deltas(problem_)),
        deltas_(module_.kernel(weighs_ ? "weighted_deltas" : "row_deltas")),
        gradients_(module_.kernel("gradients")) {
    source_.text.clear();
    for (std::size_t i = 0; i < targets_.size(); ++i) stores_.push_back(module_.kernel(concat("store_", i).c_str()));
  }

  std::size_t workspace_bytes() const override { return layout_.bytes; }

  void execute(const BackwardTensors& tensors, const CallParameters& parameters,
               std::span<std::byte> workspace) const override {
    if (workspace.size() < layout_.bytes) {
      fail_bug("expected a workspace of ", layout_.bytes, " bytes, found ", workspace.size());
    }
    const auto address = reinterpret_cast<std::uintptr_t>(workspace.data());
    const Call call{tensors, parameters,
                    workspace.data() + (GradientWorkspace::kAlignment - address % GradientWorkspace::kAlignment) %
                                           GradientWorkspace::kAlignment};
    const BlasStream blas(parameters.stream, call.workspace, kBlasWorkspaceBytes);
    begin(call);
    if (source_.outputs.empty()) return;
    if (weighs_ && !blocks_.have_all_keys(problem_)) {
      for_each_block(compiled_, blocks_, parameters.offsets, [&](KeyRange queries, KeyRange, KeyRange needed) {
        for_each_part(call, blas, queries, needed, [&](std::int64_t b, std::int64_t h, std::int64_t end) {
          weigh(call, b, h, end, queries, needed);
        });
      });
    }
    for_each_block(compiled_, blocks_, parameters.offsets, [&](KeyRange queries, KeyRange keys, KeyRange needed) {
      clear_sums(call, GradientSum::kBlock);
      add_block(call, blas, queries, keys, needed);
      store(call, GradientSum::kBlock, queries, keys);
    });
    const KeyRange queries{0, problem_.seq_q}, keys{0, problem_.seq_kv};
    store(call, GradientSum::kReduced, queries, keys);
    store(call, GradientSum::kTable, queries, keys);
  }

 private:
  void begin(const Call& call) const {
    begin_deltas(call);
    clear_sums(call, GradientSum::kReduced);
    clear_sums(call, GradientSum::kTable);
    const KeyRange queries{0, problem_.seq_q}, keys{0, problem_.seq_kv};
    store(call, GradientSum::kZero, queries, keys);
    // The kernel writes only the entries that it visits, and a mask may leave some out.
    const bool all = !compiled_.backward->mask.band && compiled_.backward->mask.kind != masks::MaskKind::kEmpty;
    if (!all) store(call, GradientSum::kStored, queries, keys);
  }

  void begin_deltas(const Call& call) const {
    const std::int64_t rows = problem_.batch * problem_.heads_q * problem_.seq_q;
    if (weighs_) {
      call.clear(layout_.deltas, rows * static_cast<std::int64_t>(sizeof(float)));
      call.clear(layout_.weights, rows * static_cast<std::int64_t>(sizeof(float)));
      return;
    }
    KernelArguments arguments;
    arguments.add(call.tensors.o).add(call.tensors.d_o).add(call.floats(layout_.deltas));
    KernelModule::launch(deltas_, {blocks_of(rows, kGradientThreads / 32), 1, 1}, kGradientThreads, arguments,
                         call.parameters.stream);
  }

  void clear_sums(const Call& call, GradientSum kind) const {
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      if (targets_[i].sum == kind) call.clear(layout_.sums[i], blocks_.sums(targets_[i]) * targets_[i].sum_bytes());
    }
  }

  /// Calls body(b, first head, end head) for the parts of a block whose scores and products the workspace then has.
  template <class Body>
  void for_each_part(const Call& call, const BlasStream& blas, KeyRange queries, KeyRange needed,
                     const Body& body) const {
    if (needed.empty()) return;
    for (std::int64_t b = 0; b < problem_.batch; ++b) {
      for (std::int64_t h = 0; h < problem_.heads_q; h += blocks_.heads) {
        const std::int64_t end = std::min(h + blocks_.heads, problem_.heads_q);
        multiply(call, blas, b, h, end, queries, needed);
        body(b, h, end);
      }
    }
  }

  /// All contributions of a block of queries and keys.
  void add_block(const Call& call, const BlasStream& blas, KeyRange queries, KeyRange keys, KeyRange needed) const {
    for_each_part(call, blas, queries, needed, [&](std::int64_t b, std::int64_t h, std::int64_t end) {
      if (weighs_ && blocks_.have_all_keys(problem_)) weigh(call, b, h, end, queries, needed);
      // Heads that add to the same sums go one after the other where their order must be fixed.
      const std::int64_t step = one_head_at_a_time_ ? 1 : end - h;
      for (std::int64_t first = h; first < end; first += step) {
        add_contributions(call, b, first, first + step, h, queries, keys, needed);
      }
    });
  }

  /// scale Q K^T and dO V^T of some heads.
  void multiply(const Call& call, const BlasStream& blas, std::int64_t b, std::int64_t first_head,
                std::int64_t end_head, KeyRange queries, KeyRange keys) const {
    const Rows q(problem_, TensorRole::kQ), k(problem_, TensorRole::kK), v(problem_, TensorRole::kV),
        d_o(problem_, TensorRole::kDO);
    const std::int64_t group = problem_.heads_q / problem_.heads_kv;
    for_each_stack(group, first_head, end_head, [&](std::int64_t h, std::int64_t end) {
      RowProducts product;
      product.dtype = problem_.dtype;
      product.planes = end - h;
      product.rows = queries.end - queries.first;
      product.columns = keys.end - keys.first;
      product.out_row = blocks_.columns;
      product.out_plane = blocks_.rows * blocks_.columns;
      const auto run = [&](const Rows& a, const void* a_data, const Rows& bs, const void* b_data, std::int64_t depth,
                           float factor, std::size_t out) {
        product.depth = depth;
        product.factor = factor;
        product.a = a.at(a_data, b, h, queries.first);
        product.a_plane = a.head;
        product.a_row = a.row;
        product.b = bs.at(b_data, b, h / group, keys.first);
        product.b_plane = group == 1 ? bs.head : 0;
        product.b_row = bs.row;
        product.out = call.floats(out) + (h - first_head) * product.out_plane;
        blas.multiply(product);
      };
      run(q, call.tensors.q, k, call.tensors.k, problem_.dim_qk, call.parameters.scale, layout_.scores);
      run(d_o, call.tensors.d_o, v, call.tensors.v, problem_.dim_v, 1, layout_.products);
    });
  }

  /// Adds the heads' weights in the block to their rows' deltas.
  void weigh(const Call& call, std::int64_t b, std::int64_t first_head, std::int64_t end_head, KeyRange queries,
             KeyRange needed) const {
    const IndexOffsets& offsets = call.parameters.offsets;
    const std::int64_t rows = queries.end - queries.first;
    KernelArguments arguments;
    arguments.add(offsets.batch).add(offsets.head).add(offsets.query).add(offsets.key);
    arguments.add(call.floats(layout_.scores)).add(call.floats(layout_.products)).add(call.tensors.lse);
    arguments.add(call.floats(layout_.deltas)).add(call.floats(layout_.weights));
    arguments.add(i32(b)).add(i32(first_head)).add(i32(queries.first)).add(i32(rows));
    arguments.add(i32(needed.first)).add(i32(needed.end - needed.first));
    arguments.add(i32(blocks_.rows)).add(i32(blocks_.columns));
    for (const std::uint32_t operand : source_.operands) arguments.add(call.tensors.operands[operand]);
    const Grid grid{blocks_of(rows, kGradientThreads / 32), 1, end_head - first_head};
    KernelModule::launch(deltas_, grid, kGradientThreads, arguments, call.parameters.stream);
  }

  /// Adds the contributions of the heads [first_head, end_head); the scores in the workspace begin with those of
  /// `scores_head`.
  void add_contributions(const Call& call, std::int64_t b, std::int64_t first_head, std::int64_t end_head,
                         std::int64_t scores_head, KeyRange queries, KeyRange keys, KeyRange needed) const {
    const IndexOffsets& offsets = call.parameters.offsets;
    const std::int64_t rows = queries.end - queries.first, columns = needed.end - needed.first;
    KernelArguments arguments;
    arguments.add(offsets.batch).add(offsets.head).add(offsets.query).add(offsets.key);
    const std::int64_t plane = (first_head - scores_head) * blocks_.rows * blocks_.columns;
    arguments.add(call.floats(layout_.scores) + plane).add(call.floats(layout_.products) + plane);
    arguments.add(call.tensors.lse).add(call.floats(layout_.deltas));
    arguments.add(i32(b)).add(i32(first_head)).add(i32(queries.first)).add(i32(rows));
    arguments.add(i32(keys.first)).add(i32(needed.first)).add(i32(columns));
    arguments.add(i32(blocks_.rows)).add(i32(blocks_.columns));
    for (const std::uint32_t operand : source_.operands) arguments.add(call.tensors.operands[operand]);
    for (const std::size_t i : source_.outputs) {
      if (targets_[i].sum == GradientSum::kStored)
        arguments.add(call.tensors.d_operands[targets_[i].operand]);
      else
        arguments.add(call.floats(layout_.sums[i]));
    }
    const Grid grid{blocks_of(columns, kTileColumns), blocks_of(rows, kTileRows), end_head - first_head};
    KernelModule::launch(gradients_, grid, kGradientThreads, arguments, call.parameters.stream);
  }

  /// Writes the gradients of this kind, from their sums or, where there are none, zeros.
  void store(const Call& call, GradientSum kind, KeyRange queries, KeyRange keys) const {
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      void* gradient = call.tensors.d_operands[targets_[i].operand];
      if (targets_[i].sum != kind || gradient == nullptr) continue;
      const bool summed = kind != GradientSum::kZero && kind != GradientSum::kStored;
      const std::int64_t rows = queries.end - queries.first, columns = keys.end - keys.first;
      KernelArguments arguments;
      arguments.add(summed ? call.floats(layout_.sums[i]) : nullptr).add(gradient);
      arguments.add(i32(queries.first)).add(i32(rows)).add(i32(keys.first)).add(i32(columns));
      arguments.add(i32(blocks_.rows)).add(i32(blocks_.columns));
      const bool element = targets_[i].has(Axis::kQuery) && targets_[i].has(Axis::kKey);
      const std::int64_t entries =
          element ? targets_[i].extents[0] * targets_[i].extents[1] * rows * columns : targets_[i].entries();
      KernelModule::launch(stores_[i], {std::min(blocks_of(entries, kGradientThreads), kMaxStoreBlocks), 1, 1},
                           kGradientThreads, arguments, call.parameters.stream);
    }
  }

  const compiler::CompiledProblem compiled_;
  const AttentionProblem& problem_;
  const std::vector<GradientTarget> targets_;
  GradientSource source_;
  const GradientBlocks blocks_;
  const bool one_head_at_a_time_;
  const GradientWorkspace layout_;
  const KernelModule module_;
  const bool weighs_;  ///< the rows' deltas are means by their weights
  const KernelModule::Kernel deltas_, gradients_;
  std::vector<KernelModule::Kernel> stores_;
};

}  // namespace

std::unique_ptr<const OperandGradients> OperandGradients::build(const compiler::CompiledProblem& problem,
                                                                std::span<const std::uint32_t> operands) {
  const std::vector<UnsupportedReason> reasons = unsupported_reasons(problem);
  if (!reasons.empty()) fail_unsupported(to_string(reasons.front()));
  return std::make_unique<GeneratedOperandGradients>(problem, operands);
}

Bytes OperandGradients::structure(const compiler::CompiledProblem& problem, std::span<const std::uint32_t> operands) {
  return structure_of_gradients(problem, gradient_targets(problem, operands));
}

}  // namespace scoremod::backend::cuda
