#include "check/guarded_buffer.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/element.hpp"
#include "base/fail.hpp"

namespace scoremod::checking {
namespace {

constexpr std::size_t kGuardBytes = 256;
constexpr std::size_t kAlignment = 64;

/// No constant, so that filling memory with any one value is seen.
std::byte guard_byte(std::size_t position) { return static_cast<std::byte>((position * 37 + 11) & 0xff); }

}  // namespace

GuardedBuffer::GuardedBuffer(StridedTensor tensor, const backend::MemorySpace& space, std::size_t misalignment)
    : tensor_(std::move(tensor)), storage_(tensor_.bytes() + 2 * kGuardBytes + 2 * kAlignment), space_(&space) {
  const auto address = reinterpret_cast<std::uintptr_t>(storage_.data()) + kGuardBytes;
  start_ = kGuardBytes + (kAlignment - address % kAlignment) % kAlignment + misalignment;
  for (std::size_t i = 0; i < storage_.size(); ++i) storage_[i] = guard_byte(i);
  expected_ = storage_;
  if (space.kind() == MemoryKind::kHost) return;
  copy_ = backend::OwnedMemory(space, storage_.size() + kAlignment);
  const auto copied = reinterpret_cast<std::uintptr_t>(copy_.data()) + start_;
  copy_shift_ = (kAlignment + misalignment - copied % kAlignment) % kAlignment;
}

void GuardedBuffer::send() {
  if (copy_.data() != nullptr) space_->copy_in(copy_.data() + copy_shift_, storage_.data(), storage_.size());
}

void GuardedBuffer::fetch() {
  if (copy_.data() != nullptr) space_->copy_out(storage_.data(), copy_.data() + copy_shift_, storage_.size());
}

void GuardedBuffer::hold(std::span<const std::byte> contents) {
  if (contents.size() < bytes()) {
    fail_argument("the given '", tensor_.name, "' is too small: expected ", bytes(), " bytes, found ", contents.size());
  }
  std::memcpy(data(), contents.data(), bytes());
  hold_as_is();
}

void GuardedBuffer::expect_output() {
  const std::size_t size = size_of(tensor_.dtype);
  tensor_.for_each_offset([&](std::int64_t, std::int64_t offset) {
    std::memset(data() + static_cast<std::size_t>(offset) * size, 0xff, size);
  });
  expected_ = storage_;
  output_ = true;
}

void GuardedBuffer::hold_as_is() {
  expected_ = storage_;
  output_ = false;
}

std::optional<std::string> GuardedBuffer::damage() const {
  std::vector<std::byte> wanted = expected_;
  if (output_) {
    const std::size_t size = size_of(tensor_.dtype);
    tensor_.for_each_offset([&](std::int64_t, std::int64_t offset) {
      const std::size_t at = start_ + static_cast<std::size_t>(offset) * size;
      std::memcpy(wanted.data() + at, storage_.data() + at, size);
    });
  }
  if (wanted == storage_) return std::nullopt;
  std::size_t first = storage_.size(), count = 0;
  for (std::size_t i = 0; i < storage_.size(); ++i) {
    if (wanted[i] == storage_[i]) continue;
    first = std::min(first, i);
    ++count;
  }
  return describe(first, count);
}

std::string GuardedBuffer::describe(std::size_t first, std::size_t count) const {
  const std::string what = concat("'", tensor_.name, "': ", count, count == 1 ? " byte" : " bytes", " changed ");
  if (first < start_) return concat(what, "outside the tensor, the first ", start_ - first, " bytes before its start");
  if (first >= start_ + bytes()) {
    return concat(what, "outside the tensor, the first ", first - start_ - bytes(), " bytes after its end");
  }
  if (output_) return concat(what, "in the gaps between its elements, the first at byte ", first - start_);
  return concat(what, "in a tensor that is only to be read, the first at byte ", first - start_);
}

std::vector<double> GuardedBuffer::values() const {
  std::vector<double> out;
  out.reserve(static_cast<std::size_t>(tensor_.elements()));
  tensor_.for_each_offset(
      [&](std::int64_t, std::int64_t offset) { out.push_back(load_element<double>(data(), tensor_.dtype, offset)); });
  return out;
}

}  // namespace scoremod::checking
