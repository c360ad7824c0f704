#include "backend/kernels/workspace/call.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>
#include <numeric>
#include <random>
#include <tuple>
#include <utility>

#include "backend/cuda/text/program_source.hpp"
#include "backend/kernels/mask/mask.hpp"
#include "backend/of_structure.hpp"
#include "base/fail.hpp"
#include "ir/builder.hpp"
#include "problem/dropout_mask.hpp"
#include "problem/implied_operands.hpp"
#include "problem/row_addressing.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::kernels {
namespace {

using problem::TensorRole;

/// The elements of FP8 or of 16 bits that 16 bytes hold.
std::int64_t word_of(DType dtype) { return is_float8(dtype) ? 16 : 8; }

/// Whether copies of 16 bytes can take a tensor's rows, which have so many elements.
bool has_aligned_rows(const device::TensorArgument& tensor, std::int64_t elements, DType dtype) {
  const std::int64_t word = word_of(dtype);
  return tensor.dim == 1 && elements % word == 0 && tensor.batch % word == 0 && tensor.head % word == 0 &&
         tensor.row % word == 0 && reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0;
}

/// The differences kv - q that a band keeps, in local indices, cut to what the sizes allow: beyond them every
/// difference is alike, and sums with indices stay in i32.
std::pair<int, int> band_of(const AttentionProblem& p, const masks::MaskClass& mask, const IndexOffsets& offsets) {
  const std::int64_t least = -p.seq_q, greatest = p.seq_kv;
  std::int64_t lowest = least, highest = greatest;
  if (mask.kind == masks::MaskKind::kEmpty) std::swap(lowest, highest);
  if (mask.band) {
    const masks::Band band = masks::top_left(*mask.band, p.seq_q, p.seq_kv);
    // The band is told in global indices: (kv + key offset) - (q + query offset).
    const std::int64_t shift = std::int64_t{offsets.query} - offsets.key;
    if (band.left) lowest = std::clamp(shift - *band.left, least, greatest);
    if (band.right) highest = std::clamp(shift + *band.right, least, greatest);
  }
  return {static_cast<int>(lowest), static_cast<int>(highest)};
}

constexpr std::size_t kAlignment = 16;
constexpr std::size_t kUsualPieces = 4;  ///< of one layout

/// A call id unique across processes (48 bits). It tags counters in a workspace that is never cleared.
std::uint64_t next_call_number() {
  static std::atomic<std::uint64_t> last{std::uint64_t{std::random_device{}()} << 16};
  return ++last & 0xffff'ffff'ffff;
}

/// The values of cuda::argument_constants().
struct ArgumentConstants {
  std::vector<int> values;
};

/// tensor_argument() without the offsets or the page table that say where rows lie.
device::TensorArgument dense_argument(const AttentionProblem& problem, TensorRole role, const void* data) {
  const problem::TensorShape shape = problem::memory_shape_of(problem, role);
  const Strides strides = problem::strides_of(problem, role);
  device::TensorArgument tensor{};
  tensor.data = const_cast<void*>(data);
  // The stride of a size of 1 has no meaning.
  tensor.batch = shape.batch == 1 ? 0 : strides.batch;
  tensor.head = shape.heads == 1 ? 0 : strides.head;
  tensor.row = shape.sequence == 1 ? 0 : strides.sequence;
  tensor.dim = shape.dim == 1 ? 0 : strides.dim;
  tensor.aligned = has_aligned_rows(tensor, shape.dim, problem::dtype_of(problem, role));
  return tensor;
}

/// Places the tensors that calls of both directions have.
template <class Tensors>
void place_tensors_of_both(const AttentionProblem& p, const Tensors& tensors, device::AttentionArguments& call) {
  call.q = tensor_argument(p, TensorRole::kQ, tensors.q, tensors.operands);
  call.k = tensor_argument(p, TensorRole::kK, tensors.k, tensors.operands);
  call.v = tensor_argument(p, TensorRole::kV, tensors.v, tensors.operands);
  call.o = tensor_argument(p, TensorRole::kO, tensors.o, tensors.operands);
}

}  // namespace

int box_rows_of(const AttentionProblem& problem) {
  // Swizzled tiles repeat after 8 rows.
  constexpr std::int64_t kMost = 32, kFewest = 8;
  const std::int64_t rows = problem.paged ? std::gcd(problem.paged->block_size, kMost) : kMost;
  return static_cast<int>(rows < kFewest ? kMost : rows);
}

bool pages_hold_boxes(const AttentionProblem& problem) {
  return !problem.paged || problem.paged->block_size % box_rows_of(problem) == 0;
}

ArgumentBytes::ArgumentBytes(const AttentionProblem& problem)
    : value_bytes_(static_cast<std::int64_t>(size_of(problem::dtype_of(problem, TensorRole::kV)))),
      output_bytes_(static_cast<std::int64_t>(size_of(problem::dtype_of(problem, TensorRole::kO)))) {
  const auto blocks_for = [](std::size_t operands) {
    const std::size_t bytes =
        sizeof(TensorMaps) + sizeof(device::AttentionArguments) + operands * sizeof(device::OperandArgument);
    return (bytes + sizeof(Block) - 1) / sizeof(Block);
  };
  static_assert(sizeof(TensorMaps) % alignof(Block) == 0);
  static_assert(sizeof(device::AttentionArguments) % alignof(device::OperandArgument) == 0);
  constexpr std::size_t kMaxBytes = 4096;
  static_assert(blocks_for(kMaxOperands) * sizeof(Block) <= kMaxBytes);
  blocks_.resize(blocks_for(std::max<std::size_t>(problem.program.operands().size(), 1)));
}

void ArgumentBytes::begin_values_at(int dim) {
  if (dim == first_value_) return;
  device::TensorArgument& v = call().v;
  device::TensorArgument& o = call().o;
  if (first_value_ == 0) {
    aligned_values_ = v.aligned != 0;
    aligned_outputs_ = o.aligned != 0;
  }
  const auto move = [&](device::TensorArgument& tensor, std::int64_t bytes, bool aligned) {
    if (tensor.data != nullptr)
      tensor.data = static_cast<std::byte*>(tensor.data) + (dim - first_value_) * tensor.dim * bytes;
    tensor.aligned = aligned && dim * bytes % 16 == 0 ? 1 : 0;
  };
  move(v, value_bytes_, aligned_values_);
  move(o, output_bytes_, aligned_outputs_);
  first_value_ = dim;
}

device::OperandArgument& ArgumentBytes::operand(std::size_t number) {
  return reinterpret_cast<device::OperandArgument*>(bytes() + sizeof(TensorMaps) +
                                                    sizeof(device::AttentionArguments))[number];
}

device::TensorArgument tensor_argument(const AttentionProblem& problem, problem::TensorRole role, const void* data,
                                       std::span<const void* const> operands) {
  device::TensorArgument tensor = dense_argument(problem, role, data);
  if (!problem.tokens_q && !problem.tokens_kv && !problem.paged) return tensor;
  const problem::RowAddressing addressing(problem, role);
  const problem::TensorShape& shape = addressing.memory_shape();
  const auto& places = addressing.offsets() ? addressing.offsets() : addressing.pages();
  if (!places) return tensor;
  tensor.count = static_cast<int>(addressing.offsets() ? shape.sequence : shape.batch);
  tensor.place_batch = places->outer;
  tensor.place_step = addressing.offsets() ? device::kOffsetsStep : places->inner;
  if (!operands.empty()) tensor.places = places->at(operands, 0);
  return tensor;
}

device::TensorArgument copied_argument(const AttentionProblem& problem, std::uint32_t operand, const void* data) {
  const OperandDecl& decl = problem.program.operands()[operand];
  const OperandSpec& spec = problem::spec_of(problem, operand);
  const auto strides = problem::strides_of(spec);
  std::array<std::int64_t, kAxisCount> along{};
  std::size_t dimension = 0;
  for (std::size_t axis = 0; axis < kAxisCount; ++axis) {
    if (!decl.axes[axis]) continue;
    along[axis] = spec.shape[dimension] == 1 ? 0 : strides[dimension];
    ++dimension;
  }
  device::TensorArgument tensor{};
  tensor.data = const_cast<void*>(data);
  tensor.batch = along[static_cast<std::size_t>(Axis::kBatch)];
  tensor.head = along[static_cast<std::size_t>(Axis::kHead)];
  tensor.row = along[static_cast<std::size_t>(Axis::kQuery)];
  tensor.dim = along[static_cast<std::size_t>(Axis::kKey)];
  tensor.aligned = has_aligned_rows(tensor, problem.seq_kv, spec.dtype);
  return tensor;
}

Branches branches_of(const AttentionProblem& problem) {
  const auto aligned = [&](TensorRole role) {
    if (problem::layout_of(problem, role).strides) return dense_argument(problem, role, nullptr).aligned != 0;
    // Each stride of a dense layout is a multiple of a row.
    return problem::shape_of(problem, role).dim % word_of(problem::dtype_of(problem, role)) == 0;
  };
  const bool q = aligned(TensorRole::kQ), k = aligned(TensorRole::kK), v = aligned(TensorRole::kV),
             o = aligned(TensorRole::kO);
  // Each new size asks, and most gradients lie as their tensors do.
  const auto gradient_aligned = [&](TensorRole role, bool tensor) {
    const TensorRole primal = problem::primal_of(role);
    const bool is_alike = &problem::layout_of(problem, role) == &problem::layout_of(problem, primal) &&
                          problem::dtype_of(problem, role) == problem::dtype_of(problem, primal);
    return is_alike ? tensor : aligned(role);
  };
  return {q,
          k,
          v,
          o,
          gradient_aligned(TensorRole::kDO, o),
          gradient_aligned(TensorRole::kDQ, q),
          gradient_aligned(TensorRole::kDK, k),
          gradient_aligned(TensorRole::kDV, v),
          problem.heads_q != problem.heads_kv,
          problem.index_offsets};
}

void write_branches(CanonicalWriter& out, const Branches& branches) {
  for (const bool branch : branches) out.boolean(branch);
}

ArgumentBytes arguments_of(const AttentionProblem& p, const masks::MaskClass& mask, std::span<const int> constants,
                           const CallParameters& parameters, std::span<const void* const> operands) {
  ArgumentBytes bytes(p);
  device::AttentionArguments& call = bytes.call();
  call.batch = static_cast<int>(p.batch);
  call.heads_q = static_cast<int>(p.heads_q);
  call.group = static_cast<int>(p.heads_q / p.heads_kv);
  call.seq_q = static_cast<int>(p.seq_q);
  call.seq_kv = static_cast<int>(p.seq_kv);
  call.offset_b = parameters.offsets.batch;
  call.offset_h = parameters.offsets.head;
  call.offset_q = parameters.offsets.query;
  call.offset_kv = parameters.offsets.key;
  std::tie(call.lowest, call.highest) = band_of(p, mask, parameters.offsets);
  call.scale = parameters.scale;
  if (p.paged && !operands.empty()) {
    const auto lengths = problem::RowAddressing(p, problem::TensorRole::kK).lengths();
    call.lengths_kv = lengths->at(operands, 0);
    call.length_step = lengths->outer;
  }
  static_assert(std::size(decltype(call.constants){}) == cuda::kMaxArgumentConstants);
  std::ranges::copy(constants, call.constants);
  const problem::DropoutMask dropout(p.dropout, parameters.dropout_seed, parameters.dropout_offset);
  call.dropout = {
      {dropout.key()[0], dropout.key()[1]}, dropout.threshold(), static_cast<float>(dropout.factor()), nullptr, 0, 0};
  if (p.dropout_keys) {
    const auto number = problem::operand_number(p.program, problem::kDropoutKeys);
    if (!number) fail_bug("a problem with keys of dropout whose program does not declare them");
    const auto strides = problem::strides_of(problem::spec_of(p, *number));
    call.dropout.batch = strides[0];
    call.dropout.word = strides[1];
    if (!operands.empty()) call.dropout.keys = static_cast<const unsigned*>(operands[*number]);
  }
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const OperandSpec& spec = problem::spec_of(p, static_cast<std::uint32_t>(i));
    const auto strides = problem::strides_of(spec);
    device::OperandArgument& operand = bytes.operand(i);
    operand.data = operands[i];
    for (std::size_t d = 0; d < spec.shape.size(); ++d) {
      operand.stride[d] = spec.shape[d] == 1 ? 0 : strides[d];
      operand.extent[d] = static_cast<int>(spec.shape[d]);
    }
  }
  return bytes;
}

void CallLayout::Pieces::add(std::size_t size, std::function<void(ArgumentBytes&, std::byte*)> point, bool behind) {
  if (!behind) bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  // A new size of a known problem makes a layout, and a growing vector takes half of its time.
  if (pieces.empty()) pieces.reserve(kUsualPieces);
  pieces.push_back({bytes, std::move(point)});
  bytes += size;
}

void CallLayout::Pieces::write(ArgumentBytes& to, std::byte* memory) const {
  if (memory == nullptr) return;
  for (const Piece& piece : pieces) piece.point(to, memory + piece.at);
}

void CallLayout::add_sums(std::uint32_t operand, std::size_t bytes, bool behind) {
  workspace_.add(
      bytes, [operand](ArgumentBytes& to, std::byte* at) { to.operand(operand).sums = as<float>(at); }, behind);
}

void CallLayout::add_transposed_values(const AttentionProblem& problem, std::int64_t keys) {
  const std::int64_t head = problem.dim_v * keys, batch = problem.heads_kv * head;
  const std::size_t element = size_of(problem::dtype_of(problem, TensorRole::kV));
  const auto point = [=](ArgumentBytes& to, std::byte* at) {
    device::TensorArgument& transposed = to.call().copied;
    transposed.data = at;
    transposed.batch = batch;
    transposed.head = head;
    transposed.row = keys;
    transposed.dim = transposed.aligned = 1;
  };
  workspace_.add(static_cast<std::size_t>(problem.batch * batch) * element, point);
}

void CallLayout::write(ArgumentBytes& to, std::byte* workspace, std::byte* once) const {
  device::AttentionArguments& call = to.call();
  call.query_tiles = query_tiles;
  call.key_tiles = key_tiles;
  call.query_work_tiles = query_work_tiles;
  call.key_work_tiles = key_work_tiles;
  call.heads_together = heads_together;
  call.splits = splits;
  call.blocks = blocks;
  if (tags_calls) call.number = next_call_number();
  workspace_.write(to, workspace);
  once_.write(to, once);
}

KernelCall::KernelCall(const compiler::CompiledProblem& problem, Direction direction, CallLayout layout)
    : problem_(problem.problem),
      mask_class_(direction == Direction::kForward ? problem.forward.mask : problem.backward->mask),
      layout_(std::move(layout)) {
  constants_ = of_structure<ArgumentConstants>(problem, direction, [&] {
                 const Program& program = program_of(problem, direction);
                 ArgumentConstants constants;
                 for (const NodeId node : cuda::argument_constants(program))
                   constants.values.push_back(ir::constant_i32(program.nodes()[node]));
                 return constants;
               })->values;
}

bool KernelCall::is_mapped() const {
  return maps() != Maps::kUnused && std::ranges::any_of(launches(), &KernelLaunch::mapped);
}

ArgumentBytes KernelCall::common_arguments(const CallParameters& parameters, std::span<const void* const> operands,
                                           std::byte* workspace) const {
  ArgumentBytes bytes = arguments_of(problem_, mask_class_, constants_, parameters, operands);
  layout_.write(bytes, workspace, once_);
  if (const auto operand = layout_.loaded_bias; operand && !operands.empty())
    bytes.call().copied = copied_argument(problem_, *operand, operands[*operand]);
  return bytes;
}

ArgumentBytes KernelCall::arguments(const ForwardTensors& tensors, const CallParameters& parameters,
                                    std::byte* workspace) const {
  ArgumentBytes bytes = common_arguments(parameters, tensors.operands, workspace);
  device::AttentionArguments& call = bytes.call();
  place_tensors_of_both(problem_, tensors, call);
  call.lse = tensors.lse;
  call.max_logit = tensors.max_logit;
  return bytes;
}

ArgumentBytes KernelCall::arguments(const BackwardTensors& tensors, const CallParameters& parameters,
                                    std::byte* workspace) const {
  ArgumentBytes bytes = common_arguments(parameters, tensors.operands, workspace);
  device::AttentionArguments& call = bytes.call();
  const AttentionProblem& p = problem_;
  place_tensors_of_both(p, tensors, call);
  call.d_o = tensor_argument(p, TensorRole::kDO, tensors.d_o, tensors.operands);
  call.dq = tensor_argument(p, TensorRole::kDQ, tensors.dq, tensors.operands);
  call.dk = tensor_argument(p, TensorRole::kDK, tensors.dk, tensors.operands);
  call.dv = tensor_argument(p, TensorRole::kDV, tensors.dv, tensors.operands);
  call.lse = const_cast<float*>(tensors.lse);
  for (std::size_t operand = 0; operand < tensors.d_operands.size(); ++operand)
    bytes.operand(operand).gradient = tensors.d_operands[operand];
  return bytes;
}

}  // namespace scoremod::backend::kernels
