#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

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
#include "backend/cuda/modules/runtime_compiler.hpp"
#include "backend/kernels/backend/kernels_backend.hpp"
#include "backend/kernels/shared/tiled_variant.hpp"
#include "backend/kernels/workspace/call.hpp"
#include "base/fail.hpp"

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

/// To be raised when build() refuses for other reasons.
constexpr int kRefusalRevision = 1;

struct Compiled {
  std::string image, report;
};

Compiled compiled(const std::string& text, int compute_capability, cuda::Instructions instructions) {
  Compiled made;
  made.image = cuda::compile_kernels(text, compute_capability, &made.report, instructions);
  return made;
}

/// All modules, side by side: the first in this thread.
std::vector<Compiled> compiled(const std::vector<std::string>& texts, int compute_capability,
                               cuda::Instructions instructions) {
  std::vector<std::future<Compiled>> others;
  for (std::size_t i = 1; i < texts.size(); ++i) {
    others.push_back(std::async(std::launch::async, [&texts, i, compute_capability, instructions] {
      return compiled(texts[i], compute_capability, instructions);
    }));
  }
  std::vector<Compiled> made{compiled(texts.front(), compute_capability, instructions)};
  for (std::future<Compiled>& other : others) made.push_back(other.get());
  return made;
}

bool has_strides(const AttentionProblem& problem) {
  const auto has = [](const std::optional<TensorLayout>& tensor) { return tensor && tensor->strides; };
  return problem.q.strides || problem.k.strides || problem.v.strides || problem.o.strides || has(problem.d_o) ||
         has(problem.dq) || has(problem.dk) || has(problem.dv);
}

/// Whether two problems of one structure, of which `other` has these branches, have the same.
bool has_branches(const AttentionProblem& problem, const AttentionProblem& other, const Branches& branches) {
  if (has_strides(problem) || has_strides(other)) return branches_of(problem) == branches;
  // Each stride of a dense tensor is a multiple of its head dim, which is of the structure.
  return (problem.heads_q == problem.heads_kv) == (other.heads_q == other.heads_kv);
}

}  // namespace

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

KernelsRecipe::KernelsRecipe(compiler::CompiledProblem problem, Direction direction, const KernelFamily& family,
                             std::shared_ptr<const Variant> variant, std::vector<OperandTarget> targets)
    : problem_(std::move(problem)),
      branches_(branches_of(problem_.problem)),
      direction_(direction),
      family_(family),
      variant_(std::move(variant)),
      targets_(std::move(targets)) {}

BuildResult KernelsRecipe::build(const Target& target) const {
  const std::vector<std::string> texts = render_modules(source());
  std::string report;
  std::vector<std::string> images;
  for (Compiled& module : compiled(texts, target.device.compute_capability, variant_->instructions())) {
    report += module.report;
    images.push_back(std::move(module.image));
  }
  const auto refused = [&](const auto&... why) {
    return BuildResult{nullptr, concat(variant_->label(work()), ": ", why...)};
  };
  if (serializes_products(report)) return refused("ptxas serializes WGMMAs");
  const std::int64_t spill_bytes = register_spill_bytes(report);
  if (spill_bytes > variant_->harmless_spill() && !variant_->may_spill())
    return refused(spill_bytes, " bytes of registers spill");
  return {std::make_shared<const Images>(std::move(images)), ""};
}

std::optional<CallLayout> KernelsRecipe::layout_at_sizes_of(const compiler::CompiledProblem& problem,
                                                            const DeviceProperties& device) const {
  // Which gradients are summed beside dq, dk and dv hangs on the sizes.
  if (!targets_.empty() || !has_branches(problem.problem, problem_.problem, branches_)) return std::nullopt;
  const Work work{problem, direction_, {}};
  if (!family_.objections(work, &device).empty()) return std::nullopt;
  std::shared_ptr<const Variant> same = variant_->at_sizes_of(work, device);
  if (!same) same = same_variant(work, device);
  if (!same) return std::nullopt;
  CallLayout layout = same->layout(work);
  if (!memory_objections(layout.launches(), device).empty()) return std::nullopt;
  return layout;
}

std::optional<ExecutablePlan> KernelsRecipe::plan_at_sizes_of(const compiler::CompiledProblem& problem,
                                                              const DeviceProperties& device, const Artifact& artifact,
                                                              const PlanOptions& options) const {
  std::optional<CallLayout> layout = layout_at_sizes_of(problem, device);
  if (!layout) return std::nullopt;
  return plan_of(problem, std::move(*layout), artifact, options);
}

std::optional<ExecutablePlan> KernelsRecipe::plan_on_few_blocks(const Artifact& artifact) const {
  const std::shared_ptr<const Variant> few = variant_->on_few_ctas();
  if (!few) return std::nullopt;
  return plan_of(problem_, few->layout(work()), artifact, {});
}

std::shared_ptr<const Variant> KernelsRecipe::same_variant(const Work& work, const DeviceProperties& device) const {
  std::vector<UnsupportedReason> left_out;
  for (auto& variant : family_.variants(work, device, left_out))
    if (variant->is_same(*variant_)) return std::move(variant);
  return nullptr;
}

void KernelsRecipe::write_refusal_terms(CanonicalWriter& to) const {
  to.integer(kRefusalRevision).integer(variant_->harmless_spill()).boolean(variant_->may_spill());
  to.integer(cuda::compiler_version());
}

std::shared_ptr<const Artifact> KernelsRecipe::load(std::span<const std::byte> bytes, const Target&) const {
  return std::make_shared<const Images>(bytes);
}

ExecutablePlan KernelsRecipe::plan(std::shared_ptr<const Artifact> artifact, const PlanOptions& options) const {
  ExecutablePlan plan = plan_of(problem_, variant_->layout(work()), *artifact, options);
  plan.note = variant_->label(work());
  return plan;
}

ExecutablePlan KernelsRecipe::plan_of(const compiler::CompiledProblem& problem, CallLayout layout,
                                      const Artifact& artifact, const PlanOptions& options) const {
  std::shared_ptr<LoadedModules> modules = dynamic_cast<const Images&>(artifact).loaded(options.context);
  KernelCall call(problem, direction_, std::move(layout));
  ExecutablePlan plan;
  if (direction_ == Direction::kForward)
    plan.forward = forward_plan(std::move(call), std::move(modules));
  else
    plan.backward = backward_plan(std::move(call), std::move(modules));
  return plan;
}

// Both functions search without <regex>, of which GCC 12 warns with a sanitizer (GCC bug 105562).

bool serializes_products(const std::string& report) {
  for (std::size_t at = report.find("wgmma"); at != std::string::npos; at = report.find("wgmma", at + 1)) {
    const std::size_t serialized = report.find("serialized", at);
    if (serialized < report.find('\n', at)) return true;
  }
  return false;
}

std::int64_t register_spill_bytes(const std::string& report) {
  constexpr std::string_view kWords = " bytes spill ";
  std::int64_t most = 0;
  for (std::size_t at = report.find(kWords); at != std::string::npos; at = report.find(kWords, at + 1)) {
    std::size_t begin = at;
    while (begin > 0 && report[begin - 1] >= '0' && report[begin - 1] <= '9') --begin;
    std::int64_t bytes = 0;
    std::from_chars(report.data() + begin, report.data() + at, bytes);
    most = std::max(most, bytes);
  }
  return most;
}

}  // namespace scoremod::backend::kernels
