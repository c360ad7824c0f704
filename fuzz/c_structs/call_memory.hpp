#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "scoremod/inputs.hpp"
#include "scoremod/problem_buffers.hpp"

#include "c_structs/choices.hpp"

namespace scoremod::fuzz {

/// Memory of exactly so many bytes, at a multiple of 64.
class Block {
 public:
  Block(std::string name, std::size_t bytes)
      : name_(std::move(name)), bytes_(bytes), data_(static_cast<std::byte*>(operator new(bytes, kAlignment))) {
    std::memset(data_.get(), 0xff, bytes);
  }

  const std::string& name() const { return name_; }
  std::size_t bytes() const { return bytes_; }
  std::byte* data() const { return data_.get(); }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Delete {
    void operator()(std::byte* data) const { operator delete(data, kAlignment); }
  };

  std::string name_;
  std::size_t bytes_;
  std::unique_ptr<std::byte, Delete> data_;
};

/// A place in a call's memory, the same in each of several memories: a caller's pointer and what it says of its bytes,
/// which are there.
struct Place {
  std::size_t block = 0;
  std::size_t shift = 0;
  std::size_t bytes = 0;
  bool is_null = false;
};

/// Everything that calls of a problem read and write. Two of the same problem have equal contents.
class CallMemory {
 public:
  CallMemory(const AttentionProblem& problem, std::size_t forward_workspace, std::size_t backward_workspace) {
    const ProblemInputs inputs = random_inputs(problem);
    add("q", inputs.q);
    add("k", inputs.k);
    add("v", inputs.v);
    add("d_o", inputs.d_o);
    for (const OwnedOperand& operand : inputs.operands) add(operand.name, operand.bytes);
    operands_ = inputs.operands.size();
    const ProblemBuffers outputs(problem, buffers_of(inputs));
    for (const OutputTensor& output : outputs.outputs()) blocks_.emplace_back(output.name, output.bytes.size());
    blocks_.emplace_back("forward workspace", forward_workspace);
    blocks_.emplace_back("backward workspace", backward_workspace);
  }

  const std::vector<Block>& blocks() const { return blocks_; }
  std::size_t operands() const { return operands_; }
  const Block& operand(std::size_t number) const { return blocks_[kTensors + number]; }

  /// The block of a name; null where no call of the problem has such a tensor.
  const Block* find(std::string_view name) const {
    for (const Block& block : blocks_) {
      if (block.name() == name) return &block;
    }
    return nullptr;
  }

  void* address(const Place& place) const {
    return place.is_null ? nullptr : blocks_[place.block].data() + place.shift;
  }

  bool operator==(const CallMemory& other) const {
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      if (std::memcmp(blocks_[i].data(), other.blocks_[i].data(), blocks_[i].bytes()) != 0) return false;
    }
    return true;
  }

  /// Takes the contents of another memory of the problem.
  void copy(const CallMemory& other) {
    for (std::size_t i = 0; i < blocks_.size(); ++i)
      std::memcpy(blocks_[i].data(), other.blocks_[i].data(), blocks_[i].bytes());
  }

 private:
  static constexpr std::size_t kTensors = 4;

  void add(const std::string& name, const std::vector<std::byte>& contents) {
    const Block& block = blocks_.emplace_back(name, contents.size());
    if (!contents.empty()) std::memcpy(block.data(), contents.data(), contents.size());
  }

  std::vector<Block> blocks_;
  std::size_t operands_ = 0;
};

/// The block of a name, or, by mistake, no memory, too little of it, some that is misaligned, or that of another
/// tensor.
inline Place draw_place(Choices& choices, const CallMemory& memory, std::string_view name) {
  const Block* own = memory.find(name);
  Place place;
  if (own == nullptr) {
    place.is_null = choices.byte() != 1;
  } else {
    place.block = static_cast<std::size_t>(own - memory.blocks().data());
  }
  const auto mistake = choices.byte();
  if (mistake == 6 || (own == nullptr && !place.is_null)) place.block = choices.byte() % memory.blocks().size();
  const std::size_t bytes = memory.blocks()[place.block].bytes();
  place.bytes = place.is_null ? 0 : bytes;
  if (mistake == 1) place = {place.block, 0, 0, true};
  if (mistake == 2) place.is_null = true, place.bytes = bytes;
  if (mistake == 3 && bytes > 0) place.bytes = bytes - 1;
  if (mistake == 4) place.bytes = 0;
  // Memory that begins later ends where it did: the address sanitizer sees who reads as much as the right call does.
  if (mistake == 5) place.shift = std::min(bytes, choices.among<std::size_t>({1, 4, 64}));
  if (mistake == 5) place.bytes = bytes - place.shift;
  return place;
}

}  // namespace scoremod::fuzz
