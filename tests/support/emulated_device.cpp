#include "support/emulated_device.hpp"

#include <algorithm>
#include <set>
#include <utility>
#include <variant>

#include "base/fail.hpp"
#include "base/float16.hpp"
#include "support/emulated_hopper.hpp"
#include "support/tiled_call.hpp"

namespace scoremod::test {
namespace {

using backend::kernels::KernelLaunch;

std::uint16_t encode(float value, bool bf16) { return bf16 ? encode_bf16(value) : encode_f16(value); }

void plant(std::string& text, const EmulatedLaunches::Fault& fault) {
  if (fault.first.empty()) return;
  const std::size_t at = text.find(fault.first);
  if (at == std::string::npos) fail_bug("the kernels have no text '", fault.first, "'");
  text.replace(at, fault.first.size(), fault.second);
}

std::string with_entry(std::string text, const std::vector<KernelLaunch>& launches) {
  text += emulated_entry();
  std::set<std::string> names;
  for (const KernelLaunch& launch : launches) names.insert(launch.kernel);
  if (text.find(" attention_block_mask(") != std::string::npos) names.insert("attention_block_mask");
  for (const std::string& name : names) {
    const bool mapped =
        std::ranges::any_of(launches, [&](const KernelLaunch& each) { return each.kernel == name && each.mapped; });
    text += concat("SCOREMOD_RUN(", name, mapped ? ", MappedArguments)\n" : ", Arguments)\n");
  }
  return text + "  return 0;\n}\n";
}

void run_kernels(const backend::kernels::KernelCall& kernels, const EmulatedLaunches& launches,
                 backend::kernels::ArgumentBytes& argument, unsigned seed) {
  if (kernels.is_mapped()) write_emulated_maps(kernels.problem(), argument);
  launches.run(argument, seed);
}

}  // namespace

std::string emulated_text(const backend::kernels::KernelSource& source) {
  return render_all(source, {{"shared", emulated_primitives()},
                             {"hopper", emulated_hopper_primitives()},
                             {"float8", emulated_float8_primitives()}});
}

EmulatedLaunches::EmulatedLaunches(std::string text, const std::vector<KernelLaunch>& launches, const Fault& fault,
                                   const Fault& another_fault)
    : launches_(launches),
      library_(
          [&] {
            plant(text, fault);
            plant(text, another_fault);
            return with_entry(std::move(text), launches);
          }(),
          "", SCOREMOD_TEST_EMULATED_HEADERS, SCOREMOD_TEST_EMULATED_OBJECTS) {}

void EmulatedLaunches::run(backend::kernels::ArgumentBytes argument, unsigned seed) const {
  for (const KernelLaunch& launch : launches_) run_one(launch, argument, seed);
}

void EmulatedLaunches::run_one(const KernelLaunch& launch, backend::kernels::ArgumentBytes argument,
                               unsigned seed) const {
  using Run = std::size_t (*)(const char*, const void*, std::size_t, long long, int, std::size_t, unsigned,
                              std::uint16_t (*)(float, bool));
  const auto run_kernel = library_.function<Run>("run_kernel");
  const std::byte* parameter = launch.parameter(argument);
  const auto bytes = static_cast<std::size_t>(argument.end() - parameter);
  const std::size_t read = run_kernel(launch.kernel.c_str(), parameter, bytes, launch.blocks, launch.threads,
                                      launch.shared_bytes, seed, encode);
  if (read == 0) fail_bug("no kernel ", launch.kernel);
  if (read > bytes) fail_bug("a launch of ", launch.kernel, " reads ", read, " bytes of an argument of ", bytes);
}

EmulatedKernels::EmulatedKernels(const compiler::CompiledProblem& problem, backend::Direction direction,
                                 const backend::kernels::AnyShape& shape, const EmulatedLaunches::Fault& fault,
                                 const EmulatedLaunches::Fault& another_fault)
    : kernels_(attention_call(problem, direction, shape)),
      launches_(emulated_text(backend::kernels::attention_source(problem, direction, shape)), kernels_.launches(),
                fault, another_fault) {
  launches_.find_states(kernels_);
}

EmulatedKernels::EmulatedKernels(const backend::kernels::Work& work, const backend::kernels::Variant& variant,
                                 const EmulatedLaunches::Fault& fault)
    : kernels_(work.problem, work.direction, variant.layout(work)),
      launches_(emulated_text(variant.source(work)), kernels_.launches(), fault) {
  launches_.find_states(kernels_);
}

void EmulatedKernels::run(backend::kernels::ArgumentBytes argument, unsigned seed) const {
  run_kernels(kernels_, launches_, argument, seed);
}

EmulatedOperandKernels::EmulatedOperandKernels(const compiler::CompiledProblem& problem,
                                               const std::vector<backend::kernels::OperandTarget>& targets,
                                               const backend::kernels::AnyShape& shape,
                                               const std::pair<std::string, std::string>& fault,
                                               backend::kernels::Gains gains)
    : kernels_(gains == backend::kernels::Gains::kBeside
                   ? attention_call(problem, backend::Direction::kBackward, shape, targets)
                   : operand_call(problem, targets, std::get<backend::kernels::PortableShape>(shape))),
      launches_(gains == backend::kernels::Gains::kBeside
                    ? emulated_text(
                          backend::kernels::attention_source(problem, backend::Direction::kBackward, shape, targets))
                    : emulated_text(backend::kernels::operand_source(problem, targets,
                                                                     std::get<backend::kernels::PortableShape>(shape))),
                kernels_.launches(), fault) {
  launches_.find_states(kernels_);
}

void EmulatedOperandKernels::run(backend::kernels::ArgumentBytes argument, unsigned seed) const {
  run_kernels(kernels_, launches_, argument, seed);
}

}  // namespace scoremod::test
