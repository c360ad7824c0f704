#include "backend/cuda/float8/float8_conversions.hpp"

#include <algorithm>
#include <string_view>

#include "backend/cuda/device/context.hpp"
#include "backend/cuda/modules/kernel_cache.hpp"
#include "backend/cuda/modules/kernel_module.hpp"
#include "backend/cuda/text/kernel_text.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::cuda {
namespace {

// The kernels' text uses these numbers.
static_assert(static_cast<int>(DType::kF32) == 0 && static_cast<int>(DType::kF16) == 1);
static_assert(static_cast<int>(DType::kBF16) == 2 && static_cast<int>(DType::kE4M3) == 5);
static_assert(static_cast<int>(DType::kE5M2) == 6);

constexpr int kThreads = 256;
/// A few for each of the multiprocessors of the largest devices.
constexpr std::int64_t kMaxBlocks = 2048;
/// Elements of a row that a thread converts at once.
constexpr std::int64_t kRun = 8;

class LoadedConversions final : public Float8Conversions {
 public:
  LoadedConversions()
      : context_(current_context()),
        module_(cached_kernels(float8_conversion_source())),
        convert_(module_.kernel("convert_tensor")),
        clear_(module_.kernel("clear_largest")),
        spread_(module_.kernel("spread_head_scales")) {}

  void enqueue(const HeadScales& scales, void* stream) const override {
    require_context(context_);
    KernelArguments arguments;
    arguments.add(scales.from).add(scales.step).add(scales.to).add(scales.heads).add(scales.group);
    KernelModule::launch(spread_, {1, 1, 1}, kThreads, arguments, stream);
  }

  void enqueue(const Float8Conversion& c, void* stream) const override {
    require_context(context_);
    if (c.largest != nullptr) KernelModule::launch(clear_, {1, 1, 1}, 1, KernelArguments().add(c.largest), stream);
    KernelArguments arguments;
    const auto add = [&](const AttentionProblem& problem, const void* data) {
      const Strides strides = problem::strides_of(problem, c.role);
      arguments.add(data).add(static_cast<std::int32_t>(problem::dtype_of(problem, c.role)));
      arguments.add(strides.batch).add(strides.head).add(strides.sequence).add(strides.dim);
    };
    add(*c.from_problem, c.from);
    add(*c.to_problem, c.to);
    const problem::TensorShape shape = problem::memory_shape_of(*c.to_problem, c.role);
    arguments.add(shape.batch).add(shape.heads).add(shape.sequence).add(static_cast<std::int32_t>(shape.dim));
    arguments.add(c.times[0])
        .add(c.times_step)
        .add(c.times_group)
        .add(c.times[1])
        .add(c.by[0])
        .add(c.by[1])
        .add(c.scale)
        .add(c.largest)
        .add(c.block_scales);
    for (const std::int64_t step : c.scale_places.steps) arguments.add(step);
    arguments.add(c.scale_places.per_scale[2]).add(static_cast<std::int32_t>(c.scale_places.per_scale[3]));
    const std::int64_t runs = shape.batch * shape.heads * shape.sequence * ((shape.dim + kRun - 1) / kRun);
    KernelModule::launch(convert_, {std::min((runs + kThreads - 1) / kThreads, kMaxBlocks), 1, 1}, kThreads, arguments,
                         stream);
  }

 private:
  std::uint64_t context_;
  KernelModule module_;
  KernelModule::Kernel convert_, clear_, spread_;
};

}  // namespace

std::string float8_conversion_source() {
  return concat(file_text("backend/cuda/text/program_prelude.cuh"), file_text("backend/cuda/float8/float8_numbers.cuh"),
                file_text("backend/cuda/float8/float8_conversion.cuh"));
}

std::unique_ptr<const Float8Conversions> Float8Conversions::build() { return std::make_unique<LoadedConversions>(); }

}  // namespace scoremod::backend::cuda
