#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace scoremod::backend::cuda {

/// How many blocks, along x, y and z.
using Grid = std::array<std::int64_t, 3>;

/// The values of a kernel's parameters, in order, as a launch takes them.
class KernelArguments {
 public:
  /// T must have the size and alignment of the kernel's parameter: 4 or 8 bytes. A word's first bytes are the value, as
  /// the byte order of every host that CUDA runs on has it.
  template <class T>
  KernelArguments& add(const T& value) {
    static_assert(sizeof(T) == sizeof(std::uint32_t) || sizeof(T) == sizeof(std::uint64_t));
    if constexpr (sizeof(T) == sizeof(std::uint32_t))
      words_.push_back(std::bit_cast<std::uint32_t>(value));
    else
      words_.push_back(std::bit_cast<std::uint64_t>(value));
    return *this;
  }
  const std::vector<std::uint64_t>& words() const { return words_; }

 private:
  std::vector<std::uint64_t> words_;
};

/// Kernels in the memory of the device that was current when they were loaded. After destruction they are unloaded once
/// the device has done all enqueued work; no captured graph may use them then.
class KernelModule {
 public:
  /// `image` comes from compile_kernels(). Throws Error(kEnvironment) with the driver's text.
  explicit KernelModule(const std::string& image);
  ~KernelModule();
  KernelModule(const KernelModule&) = delete;
  KernelModule& operator=(const KernelModule&) = delete;

  using Kernel = void*;
  Kernel kernel(const char* name) const;
  /// Null where the module has no such kernel.
  Kernel find(const char* name) const;

  /// Enqueues a kernel; an empty grid enqueues nothing. `stream` may capture.
  static void launch(Kernel kernel, const Grid& grid, int threads, const KernelArguments& arguments, void* stream);

  /// Launches a kernel with one parameter, a struct that begins at `argument`, and with dynamic shared memory.
  static void launch(Kernel kernel, const Grid& grid, int threads, std::size_t shared_bytes, const void* argument,
                     void* stream);
  /// To be called once for a kernel that is launched with more than 48 KiB of it. Throws Error(kEnvironment) where the
  /// device has less.
  static void allow_shared_memory(Kernel kernel, std::size_t bytes);

 private:
  std::uint64_t context_ = 0;
  void* module_ = nullptr;
};

}  // namespace scoremod::backend::cuda
