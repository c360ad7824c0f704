#include "device/device_fixture.hpp"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include <nlohmann/json.hpp>

#include "scoremod/error.hpp"

#include "backend/cuda/device/library.hpp"

namespace scoremod::test {
namespace {

constexpr std::size_t kGuard = 1024;
constexpr std::byte kGuardByte{0xa5};

}  // namespace

void OnDevice::SetUp() {
  if (!backend::cuda::library().available) GTEST_SKIP() << backend::cuda::library().reason;
  try {
    backend::cuda::current_device();
  } catch (const Error& error) {
    GTEST_SKIP() << "no CUDA device: " << error.what();
  }
}

DeviceCopy::DeviceCopy(const void* data, std::size_t bytes)
    : first_(kGuard + reinterpret_cast<std::uintptr_t>(data) % 64), bytes_(bytes), memory_(first_ + bytes + kGuard) {
  std::vector<std::byte> contents(memory_.bytes(), kGuardByte);
  std::memcpy(contents.data() + first_, data, bytes);
  memory_.upload(contents.data(), contents.size());
}

DeviceCopy::DeviceCopy(std::size_t bytes) : first_(kGuard), bytes_(bytes), memory_(first_ + bytes + kGuard) {
  std::vector<std::byte> contents(memory_.bytes(), kGuardByte);
  std::memset(contents.data() + first_, 0xff, bytes);
  memory_.upload(contents.data(), contents.size());
}

void DeviceCopy::download(void* data) const {
  std::vector<std::byte> contents(memory_.bytes());
  memory_.download(contents.data(), contents.size());
  for (std::size_t i = 0; i < contents.size(); ++i) {
    if (i >= first_ && i < first_ + bytes_) continue;
    if (contents[i] == kGuardByte) continue;
    ADD_FAILURE() << "byte " << static_cast<std::int64_t>(i) - static_cast<std::int64_t>(first_) << " of a tensor of "
                  << bytes_ << " bytes was written";
    break;
  }
  std::memcpy(data, contents.data() + first_, bytes_);
}

void record_line(const std::string& json) {
  if (const char* path = std::getenv("SCOREMOD_DEVICE_RESULTS")) std::ofstream(path, std::ios::app) << json + "\n";
}

void record(const std::string& test_case, const std::string& kind, const CheckReport& report,
            const std::string& prefix) {
  for (const std::string& problem : report.memory_problems) ADD_FAILURE() << test_case << ": " << problem;
  for (const OutputCheck& output : report.outputs) {
    if (output.name.rfind(prefix, 0) != 0) continue;
    for (const std::string& problem : output.problems) {
      ADD_FAILURE() << test_case << ", " << output.name << ": " << problem;
    }
    record_line(nlohmann::ordered_json{{"kind", kind},
                                       {"case", test_case},
                                       {"output", output.name},
                                       {"error", output.l2.error},
                                       {"tolerance", output.l2.tolerance()},
                                       {"size", output.l2.scale},
                                       {"max_error", output.max.error},
                                       {"max_tolerance", output.max.tolerance()},
                                       {"verdict", output.passed() ? "right" : "wrong"}}
                    .dump());
  }
}

}  // namespace scoremod::test
