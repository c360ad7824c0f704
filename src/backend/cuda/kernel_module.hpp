#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace scoremod::backend::cuda {

/// How many blocks, along x, y and z.
using Grid = std::array<std::int64_t, 3>;
/// The largest grid of every architecture.
inline constexpr Grid kMaxGrid{(std::int64_t{1} << 31) - 1, 65535, 65535};

/// The values of a kernel's parameters, in order, as a launch takes them.
class KernelArguments {
 public:
  /// T must have the size and alignment of the kernel's parameter.
  template <class T>
  KernelArguments& add(const T& value) {
    static_assert(sizeof(T) <= sizeof(std::uint64_t) && std::is_trivially_copyable_v<T>);
    words_.push_back(0);
    std::memcpy(static_cast<void*>(&words_.back()), static_cast<const void*>(std::addressof(value)), sizeof(T));
    return *this;
  }
  const std::vector<std::uint64_t>& words() const { return words_; }

 private:
  std::vector<std::uint64_t> words_;
};

/// Kernels in the memory of the device that was current when they were loaded. Unloaded on destruction; nothing that
/// was enqueued or captured may use them then.
class KernelModule {
 public:
  /// `image` is what compile_kernels() gave. Throws Error(kEnvironment) with the driver's text.
  explicit KernelModule(const std::string& image);
  ~KernelModule();
  KernelModule(const KernelModule&) = delete;
  KernelModule& operator=(const KernelModule&) = delete;

  using Kernel = void*;
  Kernel kernel(const char* name) const;

  /// Enqueues a kernel; an empty grid enqueues nothing. `stream` may capture.
  static void launch(Kernel kernel, const Grid& grid, int threads, const KernelArguments& arguments, void* stream);

 private:
  void* context_ = nullptr;
  void* module_ = nullptr;
};

}  // namespace scoremod::backend::cuda
