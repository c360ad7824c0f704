// Measures scoremod on the cases of a file, each beside a reference. On the host that is OpenBLAS doing its matrix
// products alone, on a GPU the same attention by hand with cudnn-frontend.

#include <iostream>
#include <optional>

#include <CLI/CLI.hpp>

#include "scoremod/error.hpp"

#include "blas_reference.hpp"
#include "new_sizes.hpp"
#include "output_file.hpp"
#include "peak_memory.hpp"
#include "performance_targets.hpp"
#include "predictions.hpp"
#include "text_file.hpp"
#ifdef SCOREMOD_HAS_CUDNN
#include "cudnn_reference.hpp"
#endif

namespace scoremod::bench {
namespace {

struct Arguments {
  measure::BenchmarkArguments benchmark;
  bool no_memory = false;
  std::int64_t peak_memory_child = 0;
  std::string device;
  std::string new_sizes;
  std::string predictions = "bench/results/prediction.json";
};

std::unique_ptr<measure::Reference> make_reference(const BenchCase& bench_case, measure::AttentionRun& run,
                                                   int threads) {
  if (!run.on_device()) return std::make_unique<BlasReference>(bench_case, threads);
#ifdef SCOREMOD_HAS_CUDNN
  return cudnn_reference(bench_case, run);
#else
  return nullptr;
#endif
}

/// Builds the references of all cases for a device that need not be there; returns an exit code.
int build_references([[maybe_unused]] const Arguments& arguments) {
  constexpr int kSkipped = 77;
  int status = 0;
#ifdef SCOREMOD_HAS_CUDNN
  if (cudnn_version() == "none") {
    std::cerr << "skipped: there is no cuDNN 9\n";
    return kSkipped;
  }
  const std::string device = input::read_text(arguments.device, "a device's properties");
  for (const std::string& cases : arguments.benchmark.files) {
    for (const BenchCase& bench_case : measure::load_cases(cases, true)) {
      std::cout << bench_case.name << ' ' << to_string(bench_case.direction) << ": ";
      try {
        const auto form = reference_form(bench_case);
        if (!form) {
          std::cout << "no reference" << std::endl;
          continue;
        }
        std::cout << "built, workspace " << CudnnGraph::build(bench_case, *form, device)->workspace_bytes() << " bytes"
                  << std::endl;
      } catch (const Error& error) {
        std::cout << to_string(error.code()) << ": " << error.what() << std::endl;
        status = 1;
      }
    }
  }
#else
  std::cerr << "built without the headers of cuDNN\n";
  status = kSkipped;
#endif
  return status;
}

nlohmann::ordered_json versions() {
  nlohmann::ordered_json versions{{"openblas", BlasProducts::version()}, {"compiler", "g++ " __VERSION__}};
#ifdef SCOREMOD_HAS_CUDNN
  versions["cudnn"] = cudnn_version();
  versions["cudnn_frontend"] = cudnn_frontend_version();
#endif
  return versions;
}

int run(Arguments& arguments) {
  if (arguments.peak_memory_child > 0) {
    print_peak_memory(arguments.peak_memory_child, arguments.benchmark.measurement.compile.threads);
    return 0;
  }
  if (!arguments.device.empty()) return build_references(arguments);
  if (!arguments.new_sizes.empty()) {
    std::cout << measure_new_sizes(arguments.new_sizes).dump() << '\n';
    return 0;
  }
  measure::BenchmarkArguments& benchmark = arguments.benchmark;
  if (!benchmark.out.empty()) input::expect_writable(benchmark.out);
  const int threads = benchmark.measurement.compile.threads;
  const measure::BenchmarkResult result = measure::run_benchmark(
      benchmark,
      [&](const BenchCase& bench_case, measure::AttentionRun& run) { return make_reference(bench_case, run, threads); },
      [](const std::string& line) { std::cout << line << std::flush; });
  std::optional<PeakMemory> memory;
  const bool on_host = !result.plans.on_device && result.first_error() == nullptr;
  if (on_host && !arguments.no_memory) memory = measure_peak_memory(32768, threads);
  // Not earlier: the process that compiles the cases must start before any CUDA library is loaded.
  benchmark.origin.versions = versions();
  if (!benchmark.out.empty()) {
    nlohmann::ordered_json report = report_json(result, benchmark);
    if (memory) report["memory"] = to_json(*memory);
    input::write_file(benchmark.out, measure::report_text(report));
  }
  std::cout << (result.plans.on_device ? device_targets(result) : host_targets(result, memory));
  if (result.plans.on_device && !arguments.predictions.empty()) {
    std::cout << compare_predictions(result, arguments.predictions);
  }
  const bool all_loaded = result.plans.filled_store_builds.value_or(0) == 0;
  return result.fine() && all_loaded && result.plans.error.empty() ? 0 : 1;
}

int main_of(int argc, char** argv) {
  Arguments arguments;
  arguments.benchmark.files = {"bench/cases.json"};
  arguments.benchmark.out = "bench/results/cpu.json";
  arguments.benchmark.measurement.compile.threads = 2;
  CLI::App app("Measures scoremod beside OpenBLAS's matrix products, or on a GPU beside cudnn-frontend used by hand");
  app.add_option("--cases", arguments.benchmark.files, "Lists of cases: JSON arrays of {name, problem, ...}")
      ->capture_default_str();
  app.add_option("--out", arguments.benchmark.out, "Where the results go as JSON; empty for nowhere")
      ->capture_default_str();
  app.add_flag("--no-memory", arguments.no_memory, "Leave out the measurement of memory");
  app.add_option("--build-references", arguments.device,
                 "Only build the references of cuDNN, for the device with the properties in this file");
  app.add_option(
      "--time-new-sizes", arguments.new_sizes,
      "Only measure the host's time of sizes that are new to an open attention, in this memory: cuda or host");
  app.add_option("--predictions", arguments.predictions,
                 "On a device: predicted times to compare with what was found; empty for none")
      ->capture_default_str();
  app.add_option(kPeakMemoryOption, arguments.peak_memory_child)->group("");
  measure::add_options(app, arguments.benchmark);
  CLI11_PARSE(app, argc, argv);
  return run(arguments);
}

}  // namespace
}  // namespace scoremod::bench

int main(int argc, char** argv) {
  try {
    return scoremod::bench::main_of(argc, argv);
  } catch (const scoremod::Error& error) {
    std::cerr << "scoremod_bench: " << to_string(error.code()) << " error: " << error.what() << '\n';
    return error.code() == scoremod::ErrorCode::kInvalidArgument ? 2 : 1;
  } catch (const std::exception& error) {
    std::cerr << "scoremod_bench: " << error.what() << '\n';
    return 1;
  }
}
