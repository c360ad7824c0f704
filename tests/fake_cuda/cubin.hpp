#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace scoremod::test::fake_cuda {

/// The facts of a kernel that a launch is checked by.
struct Kernel {
  struct Parameter {
    std::size_t offset = 0, bytes = 0;
  };

  std::string name;
  std::vector<Parameter> parameters;  ///< by ordinal
  std::int64_t static_shared_bytes = 0;
  std::int64_t registers = 0;    ///< of a thread
  std::int64_t max_threads = 0;  ///< of a block, by __launch_bounds__; 0 where the kernel has none

  std::size_t parameter_bytes() const;
};

/// The kernels of a cubin. Throws std::runtime_error for an image that is none.
std::vector<Kernel> kernels_of(const void* image);

}  // namespace scoremod::test::fake_cuda
