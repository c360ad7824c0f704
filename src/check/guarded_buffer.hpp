#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/memory_space.hpp"
#include "problem/strided_tensor.hpp"

namespace scoremod::checking {

using problem::lse_tensor;
using problem::StridedTensor;
using problem::tensor_of;

/// A tensor's memory between two guard bands, which shows every write where there should be none. It lies on the host;
/// for a device it has a copy there, guard bands included, which send() and fetch() keep equal.
class GuardedBuffer {
 public:
  /// The first element lies `misalignment` bytes after a multiple of 64.
  explicit GuardedBuffer(StridedTensor tensor, const backend::MemorySpace& space = backend::host_memory(),
                         std::size_t misalignment = 0);

  /// The first element as a call in the space is given it.
  std::byte* address() { return const_cast<std::byte*>(std::as_const(*this).address()); }
  const std::byte* address() const { return copy_.data() == nullptr ? data() : copy_.data() + copy_shift_ + start_; }
  void send();
  void fetch();

  std::byte* data() { return storage_.data() + start_; }
  const std::byte* data() const { return storage_.data() + start_; }
  std::size_t bytes() const { return tensor_.bytes(); }
  const StridedTensor& tensor() const { return tensor_; }

  /// Makes it an input that holds `contents`, elements and gaps; from now on no byte may change. `contents` must be
  /// large enough.
  void hold(std::span<const std::byte> contents);
  /// Makes it an output: every byte of an element is 0xff, NaN in all float dtypes; from now on only elements may
  /// change.
  void expect_output();
  /// Makes it an input as it stands.
  void hold_as_is();

  /// A description of writes outside the buffer, if there are any.
  std::optional<std::string> damage() const;
  /// The elements in dense order.
  std::vector<double> values() const;

 private:
  std::string describe(std::size_t first, std::size_t count) const;

  StridedTensor tensor_;
  std::vector<std::byte> storage_;
  std::size_t start_ = 0;
  const backend::MemorySpace* space_;
  backend::OwnedMemory copy_;        ///< none where the space is the host's
  std::size_t copy_shift_ = 0;       ///< gives both the same misalignment
  std::vector<std::byte> expected_;  ///< the storage as it must stay
  bool output_ = false;
};

}  // namespace scoremod::checking
