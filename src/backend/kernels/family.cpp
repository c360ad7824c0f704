#include "backend/kernels/family.hpp"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>
#include <set>

#include "base/fail.hpp"
#include "problem/row_addressing.hpp"

namespace scoremod::backend::kernels {
namespace {

using cuda::KernelFile;

/// Larger programs become functions that are called: a copy for every element of a thread's tile would take NVRTC
/// minutes, and leave the instruction cache.
constexpr std::size_t kMaxInlinedNodes = 120;

/// Adds a file after what it includes, unless it is there.
void add_closure(std::vector<const KernelFile*>& files, std::string_view path) {
  const KernelFile& file = cuda::kernel_file(path);
  if (std::ranges::find(files, &file) != files.end()) return;
  for (const std::string_view included : file.includes) add_closure(files, included);
  files.push_back(&file);
}

std::vector<const KernelFile*> closure(const Module& module) {
  std::vector<const KernelFile*> files;
  for (const ModuleFile& file : module) add_closure(files, file.path);
  return files;
}

using Names = std::set<std::string_view>;

Names kernels_of(const Module& module) {
  Names kernels;
  for (const ModuleFile& file : module) kernels.insert(file.kernels.begin(), file.kernels.end());
  return kernels;
}

/// The rest of a hole's name that begins with this word.
std::optional<std::string_view> name_behind(std::string_view word, std::string_view hole) {
  return hole.starts_with(word) ? std::optional(hole.substr(word.size())) : std::nullopt;
}
/// The kernel, or the part of a device's own, that a hole of this name holds, if it holds one.
std::optional<std::string_view> kernel_in(std::string_view hole) { return name_behind("kernel ", hole); }
std::optional<std::string_view> device_part_in(std::string_view hole) { return name_behind("device ", hole); }

/// The holes to fill in a text with these kernels.
void add_holes(std::vector<std::string_view>& names, std::string_view text, const Names& kernels) {
  for (const std::string_view hole : cuda::holes_of(text)) {
    const auto kernel = kernel_in(hole);
    if (!kernel && !device_part_in(hole))
      names.push_back(hole);
    else if (!kernel || kernels.contains(*kernel))
      add_holes(names, cuda::part(text, hole), kernels);
  }
}

/// A text with these kernels, which are taken out of `missing`.
std::string filled(const KernelSource& source, std::string_view text, const Names& kernels, Names& missing,
                   const Replacements& replacements) {
  std::string kept;
  return cuda::fill(text, [&](std::string_view hole) -> std::string_view {
    const auto kernel = kernel_in(hole), device_part = device_part_in(hole);
    if (!kernel && !device_part) return source.holes.at(hole).text;
    if (kernel && !kernels.contains(*kernel)) return {};
    if (kernel) missing.erase(*kernel);
    if (device_part && replacements.contains(*device_part)) return replacements.at(*device_part);
    return kept = filled(source, cuda::part(text, hole), kernels, missing, replacements);
  });
}

Module all_of(const KernelSource& source) {
  Module all;
  for (const Module& module : source.modules) all.insert(all.end(), module.begin(), module.end());
  return all;
}

template <class WriteHole>
Bytes canonical_bytes(const KernelSource& source, const WriteHole& write_hole) {
  CanonicalWriter out;
  for (const Module& module : source.modules) {
    out.list(module.size());
    for (const ModuleFile& file : module) {
      out.text(cuda::kernel_file(file.path).digest).list(file.kernels.size());
      for (const std::string_view kernel : file.kernels) out.text(kernel);
    }
  }
  const Module all = all_of(source);
  const Names kernels = kernels_of(all);
  Names written;
  // The digests and the kernels say which holes follow, and their names with them.
  for (const KernelFile* file : closure(all)) {
    out.text(file->digest);
    std::vector<std::string_view> names;
    add_holes(names, file->text, kernels);
    for (const std::string_view name : names) {
      if (written.insert(name).second) write_hole(out, source.holes.at(name));
    }
  }
  return out.written();
}

using problem::TensorRole;

/// The elements of FP8 or of 16 bits that 16 bytes hold.
std::int64_t word_of(DType dtype) { return is_float8(dtype) ? 16 : 8; }

/// Whether copies of 16 bytes can take a tensor's rows, which have so many elements.
bool has_aligned_rows(const device::TensorArgument& tensor, std::int64_t elements, DType dtype) {
  const std::int64_t word = word_of(dtype);
  return tensor.dim == 1 && elements % word == 0 && tensor.batch % word == 0 && tensor.head % word == 0 &&
         tensor.row % word == 0 && reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0;
}

constexpr std::size_t kAlignment = 16;
constexpr std::size_t kUsualPieces = 4;  ///< of one layout

/// A call id unique across processes (48 bits). It tags counters in a workspace that is never cleared.
std::uint64_t next_call_number() {
  static std::atomic<std::uint64_t> last{std::uint64_t{std::random_device{}()} << 16};
  return ++last & 0xffff'ffff'ffff;
}

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

}  // namespace

// NOLINTNEXTLINE(performance-unnecessary-value-param): it is moved
void Holes::add(std::string_view name, Value value) {
  if (!values_.try_emplace(name, std::move(value)).second) fail_bug("hole '", name, "' of kernel text is filled twice");
}

const Holes::Value& Holes::at(std::string_view name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) fail_bug("nothing to fill hole '", name, "' of kernel text with");
  return found->second;
}

std::string render(const KernelSource& source, const Module& module, const Replacements& replacements) {
  const Names kernels = kernels_of(module);
  Names missing = kernels;
  std::string text;
  for (const KernelFile* file : closure(module)) text += filled(source, file->text, kernels, missing, replacements);
  if (!missing.empty()) fail_bug("no file of the module has the kernel '", *missing.begin(), "'");
  return text;
}

std::vector<std::string> render_modules(const KernelSource& source) {
  std::vector<std::string> texts;
  texts.reserve(source.modules.size());
  for (const Module& module : source.modules) texts.push_back(render(source, module));
  return texts;
}

std::string render_all(const KernelSource& source, const Replacements& replacements) {
  return render(source, all_of(source), replacements);
}

Bytes key_of(const KernelSource& source) {
  return canonical_bytes(source, [](CanonicalWriter& out, const Holes::Value& hole) {
    if (hole.follows_from)
      out.bytes(*hole.follows_from);
    else
      out.text(hole.text);
  });
}

Bytes structure_of(const KernelSource& source) {
  return canonical_bytes(source, [](CanonicalWriter& out, const Holes::Value& hole) {
    if (hole.structure)
      out.bytes(*hole.structure);
    else if (hole.follows_from)
      out.bytes(*hole.follows_from);
    else
      out.text(hole.text);
  });
}

const char* linkage(const Program& program) {
  return program.nodes().size() > kMaxInlinedNodes ? "SCOREMOD_OUT_OF_LINE" : "SCOREMOD_FUNCTION";
}

std::string with_operands(const cuda::ProgramSource& source, const std::string& statements) {
  std::string text;
  for (const std::uint32_t operand : source.operands())
    text += concat("const void* ", cuda::ProgramSource::operand_name(operand), " = p.operands[", operand, "].data;\n");
  return text + statements;
}

std::string keep_variable(const Program& program) {
  return program.keep() == kNoNode ? "true" : cuda::ProgramSource::variable(program.keep());
}

std::vector<NodeId> forward_nodes(const Program& program) {
  std::vector<NodeId> nodes{program.value()};
  if (program.keep() != kNoNode) nodes.push_back(program.keep());
  return nodes;
}

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

const Program& program_of(const compiler::CompiledProblem& problem, Direction direction) {
  return direction == Direction::kForward ? problem.forward.program : problem.backward->program;
}

}  // namespace scoremod::backend::kernels
