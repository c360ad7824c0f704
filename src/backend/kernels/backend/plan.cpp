#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "backend/cuda/device/context.hpp"
#include "backend/cuda/device/cuda_event.hpp"
#include "backend/cuda/device/cuda_memory.hpp"
#include "backend/cuda/device/driver_call.hpp"
#include "backend/cuda/device/own_stream.hpp"
#include "backend/cuda/device/retirement.hpp"
#include "backend/cuda/device/runtime_call.hpp"
#include "backend/cuda/device/workspace_alignment.hpp"
#include "backend/cuda/modules/kernel_module.hpp"
#include "backend/cuda/text/program_source.hpp"
#include "backend/kernels/backend/kernels_backend.hpp"
#include "backend/of_structure.hpp"
#include "base/fail.hpp"
#include "ir/builder.hpp"
#include "problem/dropout_mask.hpp"
#include "problem/implied_operands.hpp"
#include "problem/row_addressing.hpp"

namespace scoremod::backend::kernels {
namespace {

using problem::TensorRole;

/// Bytes of a row that one copy brings: as many as are exchanged among themselves.
constexpr std::size_t kBoxBytes = 128;

CUtensorMapDataType map_type(DType dtype) {
  if (is_float8(dtype)) return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  return dtype == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
}

bool write_map(const AttentionProblem& problem, const problem::TensorShape& shape, const device::TensorArgument& tensor,
               CacheLines lines, std::byte (&to)[TensorMaps::kBytes]) {
  static_assert(sizeof(CUtensorMap) == TensorMaps::kBytes);
  // Rows that are the same memory are none that a map can have.
  if ((shape.sequence > 1 && tensor.row <= 0) || (shape.heads > 1 && tensor.head <= 0) ||
      (shape.batch > 1 && tensor.batch <= 0))
    return false;
  const auto size = [](std::int64_t of) { return static_cast<cuuint64_t>(of); };
  const std::array<cuuint64_t, 4> sizes{size(shape.dim), size(shape.sequence), size(shape.heads), size(shape.batch)};
  // The stride of a size of 1 may be anything, but what the driver takes.
  const std::size_t element = size_of(problem.dtype);
  const auto stride = [&](long long elements) {
    return elements <= 0 ? cuuint64_t{16} : static_cast<cuuint64_t>(elements) * element;
  };
  const std::array<cuuint64_t, 3> strides{stride(tensor.row), stride(tensor.head), stride(tensor.batch)};
  const std::array<cuuint32_t, 4> box{static_cast<cuuint32_t>(kBoxBytes / element),
                                      static_cast<cuuint32_t>(box_rows_of(problem)), 1, 1},
      steps{1, 1, 1, 1};
  CUtensorMap map{};
  const CUresult status = SCOREMOD_DRIVER(cuTensorMapEncodeTiled)(
      &map, map_type(problem.dtype), 4, tensor.data, sizes.data(), strides.data(), box.data(), steps.data(),
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      lines == CacheLines::k128Bytes ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B : CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) return false;
  std::memcpy(to, &map, sizeof(map));
  return true;
}

/// States of tiles take a byte for each, so that a thousand sizes of some thousand tokens stay below this.
constexpr std::size_t kMuch = std::size_t{64} << 20;

/// The kernels of a call in the device's memory.
class LoadedKernels {
 public:
  LoadedKernels(std::shared_ptr<LoadedModules> modules, KernelCall&& call)
      : modules_(std::move(modules)), call_(std::move(call)) {
    for (const KernelLaunch& launch : call_.launches()) loaded_.push_back(modules_->kernel(launch));
    launch_once();
  }

  /// Calls on other streams may still be running.
  ~LoadedKernels() {
    if (once_ != nullptr) modules_->keep_until_unloaded(std::move(once_));
  }
  LoadedKernels(const LoadedKernels&) = delete;
  LoadedKernels& operator=(const LoadedKernels&) = delete;

  std::size_t workspace_bytes() const { return cuda::with_room_to_align(call_.workspace_bytes()); }

  template <class Tensors>
  void execute(const Tensors& tensors, const CallParameters& parameters, std::span<std::byte> workspace) const {
    cuda::require_context(modules_->context());
    ArgumentBytes argument = call_.arguments(tensors, parameters, cuda::aligned(workspace).data());
    if (call_.is_mapped()) write_tensor_maps(call_, argument);
    if (!is_once_done_.load(std::memory_order_acquire)) follow_once(parameters.stream);
    for (std::size_t i = 0; i < loaded_.size(); ++i) {
      const KernelLaunch& launch = call_.launches()[i];
      cuda::KernelModule::launch(loaded_[i], {launch.blocks, 1, 1}, launch.threads, launch.shared_bytes,
                                 launch.parameter(argument), parameters.stream);
    }
  }

 private:
  void launch_once() {
    if (call_.launches_once().empty()) return;
    const cuda::RelaxedCapture relaxed;
    once_ = std::make_shared<OwnedMemory>(cuda::cuda_memory(), call_.bytes_once());
    call_.set_memory_once(once_->data());
    ArgumentBytes argument = call_.arguments_once();
    for (const KernelLaunch& launch : call_.launches_once()) {
      cuda::KernelModule::launch(modules_->kernel(launch), {launch.blocks, 1, 1}, launch.threads, launch.shared_bytes,
                                 launch.parameter(argument), cuda::own_stream());
    }
    once_launched_.emplace(cuda::own_stream());
    is_once_done_ = false;
  }

  /// Lets a call's kernels find what launch_once() writes. The first calls hold their stream back, so that no host
  /// waits for the device at sizes that it has not seen yet.
  void follow_once(void* stream) const {
    if (!once_launched_->has_passed()) {
      if (!cuda::cuda_memory().is_capturing(stream)) return once_launched_->hold_back(stream);
      once_launched_->wait();  // a graph can't depend on work outside of it
    }
    is_once_done_.store(true, std::memory_order_release);
  }

  std::shared_ptr<LoadedModules> modules_;
  KernelCall call_;
  std::vector<cuda::KernelModule::Kernel> loaded_;  ///< one for each launch
  std::shared_ptr<const OwnedMemory> once_;
  std::optional<cuda::CudaEvent> once_launched_;
  mutable std::atomic<bool> is_once_done_ = true;  ///< all calls may begin at once
};

template <class Plan, class Tensors>
class KernelsPlan final : public Plan {
 public:
  KernelsPlan(std::shared_ptr<LoadedModules> modules, KernelCall&& call)
      : kernels_(std::move(modules), std::move(call)) {}

  std::size_t workspace_bytes() const override { return kernels_.workspace_bytes(); }
  void execute(const Tensors& tensors, const CallParameters& parameters,
               std::span<std::byte> workspace) const override {
    kernels_.execute(tensors, parameters, workspace);
  }

 private:
  LoadedKernels kernels_;
};

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

/// The values of cuda::argument_constants().
struct ArgumentConstants {
  std::vector<int> values;
};

/// The arguments of a call of the problem, but for its tensors and places in its workspace; `mask` and the values of
/// cuda::argument_constants() are the direction's.
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

/// Places the tensors that calls of both directions have.
template <class Tensors>
void place_tensors_of_both(const AttentionProblem& p, const Tensors& tensors, device::AttentionArguments& call) {
  call.q = tensor_argument(p, TensorRole::kQ, tensors.q, tensors.operands);
  call.k = tensor_argument(p, TensorRole::kK, tensors.k, tensors.operands);
  call.v = tensor_argument(p, TensorRole::kV, tensors.v, tensors.operands);
  call.o = tensor_argument(p, TensorRole::kO, tensors.o, tensors.operands);
}

}  // namespace

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

std::array<MappedTensor, TensorMaps::kCount> mapped_tensors(const AttentionProblem& problem,
                                                            device::AttentionArguments& call) {
  const auto sized = [&](TensorRole role) { return problem::memory_shape_of(problem, role); };
  problem::TensorShape copied{call.copied.batch == 0 ? 1 : problem.batch, call.copied.head == 0 ? 1 : problem.heads_q,
                              problem.seq_q, problem.seq_kv};
  // With FP8 it is v^T (CallLayout::add_transposed_values()).
  if (is_float8(problem.dtype)) copied = {problem.batch, problem.heads_kv, problem.dim_v, call.copied.row};
  return {MappedTensor{&call.q, sized(TensorRole::kQ)},
          {&call.k, sized(TensorRole::kK)},
          {&call.v, sized(TensorRole::kV)},
          {&call.d_o, sized(TensorRole::kDO)},
          {&call.copied, copied}};
}

void write_tensor_maps(const KernelCall& call, ArgumentBytes& arguments) {
  const int without = call.maps() == Maps::kOptional ? device::kAlignedRows : 0;
  std::size_t number = 0;
  for (const MappedTensor& mapped : mapped_tensors(call.problem(), arguments.call())) {
    auto& map = arguments.maps().bytes[number++];
    device::TensorArgument& tensor = *mapped.tensor;
    if (tensor.data == nullptr || tensor.aligned == 0) continue;
    const bool has_map = write_map(call.problem(), mapped.shape, tensor, call.cache_lines(), map);
    tensor.aligned = has_map ? device::kMappedRows : without;
  }
}

LoadedModules::LoadedModules(const std::vector<std::string>& images) : context_(cuda::current_context()) {
  for (const std::string& image : images) modules_.push_back(std::make_unique<cuda::KernelModule>(image));
}

LoadedModules::~LoadedModules() {
  modules_.clear();
  if (!kept_.empty()) cuda::retire([kept = std::move(kept_)]() mutable { kept.clear(); });
}

cuda::KernelModule::Kernel LoadedModules::kernel(const KernelLaunch& launch) {
  const std::scoped_lock lock(mutex_);
  Found& found = found_[launch.kernel];
  if (found.kernel != nullptr && launch.shared_bytes <= found.shared_bytes) return found.kernel;
  const cuda::RelaxedCapture relaxed;
  if (found.kernel == nullptr) found.kernel = find(launch.kernel);
  // Without asking, a kernel has 48 KB together with its static shared memory, of which a launch knows nothing (CUDA
  // C++ Programming Guide, "Shared Memory 9.x").
  if (launch.shared_bytes > found.shared_bytes) {
    cuda::KernelModule::allow_shared_memory(found.kernel, launch.shared_bytes);
    found.shared_bytes = launch.shared_bytes;
  }
  return found.kernel;
}

void LoadedModules::keep_until_unloaded(std::shared_ptr<const OwnedMemory> memory) {
  const std::scoped_lock lock(mutex_);
  kept_bytes_ += memory->bytes();
  kept_.push_back(std::move(memory));
}

bool LoadedModules::keeps_much() const {
  const std::scoped_lock lock(mutex_);
  return kept_bytes_ > kMuch;
}

cuda::KernelModule::Kernel LoadedModules::find(const std::string& name) const {
  for (const auto& module : modules_) {
    if (const cuda::KernelModule::Kernel kernel = module->find(name.c_str())) return kernel;
  }
  fail_bug("no module has the kernel ", name);
}

std::unique_ptr<ForwardPlan> forward_plan(KernelCall&& call, std::shared_ptr<LoadedModules> modules) {
  return std::make_unique<KernelsPlan<ForwardPlan, ForwardTensors>>(std::move(modules), std::move(call));
}

std::unique_ptr<BackwardPlan> backward_plan(KernelCall&& call, std::shared_ptr<LoadedModules> modules) {
  return std::make_unique<KernelsPlan<BackwardPlan, BackwardTensors>>(std::move(modules), std::move(call));
}

Images::Images(std::span<const std::byte> bytes) {
  const auto* first = reinterpret_cast<const std::uint8_t*>(bytes.data());
  try {
    for (const nlohmann::json& module : nlohmann::json::from_cbor(first, first + bytes.size())) {
      const auto& image = module.get_binary();
      modules_.emplace_back(image.begin(), image.end());
    }
  } catch (const nlohmann::json::exception& error) {
    fail_environment("these stored kernels can't be used: ", error.what(), "; delete them and compile them anew");
  }
}

std::vector<std::byte> Images::serialize() const {
  nlohmann::json list = nlohmann::json::array();
  for (const std::string& module : modules_)
    list.push_back(nlohmann::json::binary(std::vector<std::uint8_t>(module.begin(), module.end())));
  const std::vector<std::uint8_t> cbor = nlohmann::json::to_cbor(list);
  const auto bytes = std::as_bytes(std::span(cbor));
  return {bytes.begin(), bytes.end()};
}

std::shared_ptr<LoadedModules> Images::loaded(std::optional<std::uint64_t> context) const {
  if (!context) context = cuda::current_context();
  const std::scoped_lock lock(mutex_);
  std::shared_ptr<LoadedModules>& modules = loaded_[*context];
  if (modules == nullptr || modules->keeps_much()) modules = std::make_shared<LoadedModules>(modules_);
  return modules;
}

}  // namespace scoremod::backend::kernels
