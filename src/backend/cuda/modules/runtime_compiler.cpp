#include "backend/cuda/modules/runtime_compiler.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "backend/cuda/device/library.hpp"
#include "base/fail.hpp"
#include "base/timeline.hpp"

namespace scoremod::backend::cuda {
namespace {

// NVRTC's interface as far as it is used here, the same in CUDA 12 and 13. Declared here, because its header is not in
// the packages that the CUDA headers come from.
using Program = struct NvrtcProgram*;
using Result = int;
constexpr Result kSuccess = 0;
constexpr Result kInvalidOption = 5;      // NVRTC_ERROR_INVALID_OPTION
constexpr Result kCompilationFailed = 6;  // NVRTC_ERROR_COMPILATION

struct Nvrtc {
  Result (*create)(Program*, const char* source, const char* name, int headers, const char* const*, const char* const*);
  Result (*destroy)(Program*);
  Result (*compile)(Program, int options, const char* const*);
  Result (*log_size)(Program, std::size_t*);
  Result (*log)(Program, char*);
  Result (*cubin_size)(Program, std::size_t*);
  Result (*cubin)(Program, char*);
  Result (*ptx_size)(Program, std::size_t*);
  Result (*ptx)(Program, char*);
  Result (*arch_count)(int*);
  Result (*archs)(int*);
  const char* (*error)(Result);
  Result (*version)(int* major, int* minor);
};

template <class Function>
void find(Function& function, const char* name) {
  function = reinterpret_cast<Function>(symbol_of(nvrtc_library(), name));
}

const Nvrtc& nvrtc() {
  static const Nvrtc functions = [] {
    if (nvrtc_library().handle == nullptr) {
      fail_environment("no NVRTC, which compiles the kernels of this program: ", nvrtc_library().reason);
    }
    Nvrtc found{};
    find(found.create, "nvrtcCreateProgram");
    find(found.destroy, "nvrtcDestroyProgram");
    find(found.compile, "nvrtcCompileProgram");
    find(found.log_size, "nvrtcGetProgramLogSize");
    find(found.log, "nvrtcGetProgramLog");
    find(found.cubin_size, "nvrtcGetCUBINSize");
    find(found.cubin, "nvrtcGetCUBIN");
    find(found.ptx_size, "nvrtcGetPTXSize");
    find(found.ptx, "nvrtcGetPTX");
    find(found.arch_count, "nvrtcGetNumSupportedArchs");
    find(found.archs, "nvrtcGetSupportedArchs");
    find(found.error, "nvrtcGetErrorString");
    find(found.version, "nvrtcVersion");
    return found;
  }();
  return functions;
}

void check(Result result, const char* call) {
  if (result != kSuccess) fail_environment(call, ": ", nvrtc().error(result));
}

/// The newest architecture that NVRTC knows and devices of this capability can run.
int architecture(int compute_capability) {
  int count = 0;
  check(nvrtc().arch_count(&count), "nvrtcGetNumSupportedArchs");
  std::vector<int> known(static_cast<std::size_t>(count));
  check(nvrtc().archs(known.data()), "nvrtcGetSupportedArchs");
  int best = 0;
  for (const int arch : known) best = arch <= compute_capability ? std::max(best, arch) : best;
  if (best == 0) {
    fail_environment("this NVRTC has no architecture that a device of compute capability ", compute_capability / 10,
                     ".", compute_capability % 10, " can run; its oldest is ",
                     known.empty() ? 0 : *std::ranges::min_element(known));
  }
  return best;
}

/// One program, destroyed with the object.
class Compilation {
 public:
  explicit Compilation(const std::string& source) {
    check(nvrtc().create(&program_, source.c_str(), "scoremod.cu", 0, nullptr, nullptr), "nvrtcCreateProgram");
  }
  ~Compilation() { nvrtc().destroy(&program_); }
  Compilation(const Compilation&) = delete;
  Compilation& operator=(const Compilation&) = delete;

  void compile(const std::string& arch, bool report) {
    std::vector options{arch.c_str(),  "--std=c++17",     "--fmad=false",
                        "--ftz=false", "--prec-div=true", "--prec-sqrt=true"};
    Result result = kInvalidOption;
    if (report) {
      options.push_back("--ptxas-options=-v");
      // A hit in the driver's cache has no messages of ptxas. Earlier NVRTC versions know neither the option nor a
      // cache.
      options.push_back("--no-cache");
      result = compile(options);
      if (result == kInvalidOption) options.pop_back();
    }
    if (result == kInvalidOption) result = compile(options);
    if (result == kCompilationFailed) fail_bug("a generated kernel does not compile: ", log());
    check(result, "nvrtcCompileProgram");
  }

  std::string cubin() const { return text(nvrtc().cubin_size, nvrtc().cubin, "nvrtcGetCUBIN"); }
  std::string ptx() const { return text(nvrtc().ptx_size, nvrtc().ptx, "nvrtcGetPTX"); }
  std::string log() const { return text(nvrtc().log_size, nvrtc().log, "nvrtcGetProgramLog"); }

 private:
  Result compile(const std::vector<const char*>& options) {
    return nvrtc().compile(program_, static_cast<int>(options.size()), options.data());
  }

  std::string text(Result (*size)(Program, std::size_t*), Result (*get)(Program, char*), const char* call) const {
    std::size_t bytes = 0;
    check(size(program_, &bytes), call);
    std::string out(bytes, '\0');
    check(get(program_, out.data()), call);
    return out;
  }

  Program program_ = nullptr;
};

/// The names of the kernels that ptxas reports on.
std::string kernels_of(const std::string& report) {
  constexpr std::string_view kBefore = "Compiling entry function '";
  std::string names;
  for (std::size_t at = report.find(kBefore); at != std::string::npos; at = report.find(kBefore, at + 1)) {
    const std::size_t begin = at + kBefore.size();
    names += concat(names.empty() ? "" : ", ", report.substr(begin, report.find('\'', begin) - begin));
  }
  return names;
}

}  // namespace

int compiler_version() {
  int major = 0, minor = 0;
  check(nvrtc().version(&major, &minor), "nvrtcVersion");
  return major * 1000 + minor * 10;
}

std::string compile_kernels(const std::string& source, int compute_capability, std::string* report,
                            Instructions instructions) {
  TimedStep step("NVRTC", concat(source.size(), " bytes of source"));
  const int arch = architecture(compute_capability);
  Compilation compilation(source);
  // A cubin runs on its own major version only; PTX is finished by the driver.
  const bool binary = arch / 10 == compute_capability / 10, own = instructions == Instructions::kOfArchitecture;
  if (own && arch != compute_capability) {
    fail_environment("this NVRTC does not know the instructions that devices of compute capability ",
                     compute_capability / 10, ".", compute_capability % 10, " alone have");
  }
  compilation.compile(concat("--gpu-architecture=", binary ? "sm_" : "compute_", arch, own ? "a" : ""),
                      report != nullptr);
  if (report != nullptr) *report = compilation.log();
  if (report != nullptr && step.is_written()) step.name(kernels_of(*report));
  return binary ? compilation.cubin() : compilation.ptx();
}

}  // namespace scoremod::backend::cuda
