#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "scoremod/c_api.h"
#include "scoremod/inputs.hpp"
#include "scoremod/problem.hpp"
#include "scoremod/sizes.hpp"

namespace scoremod::test {

/// A scoremod_buffer or scoremod_const_buffer before its memory is made.
struct DrawnBuffer {
  std::vector<std::byte> contents;
  bool is_null = false;
  std::size_t bytes = 0;   ///< what the call says that there are
  std::size_t behind = 0;  ///< bytes between its end and a page that nobody may touch
};

struct DrawnTensor {
  std::string name;  ///< of the member: "q", "o", "amax_dq"
  bool is_output = false;
  DrawnBuffer buffer;
};

struct DrawnOperand {
  std::optional<std::string> name;  ///< null without one
  DrawnBuffer buffer;
};

/// An array and its count, which may differ from what there is: null, or fewer elements.
template <class Element>
struct DrawnArray {
  std::vector<Element> elements;
  bool is_null = false;
  std::size_t count() const { return claimed.value_or(elements.size()); }
  std::optional<std::size_t> claimed = {};
};

/// The struct_size of a struct, and what its bytes behind those that the header has hold.
struct DrawnSize {
  std::optional<std::size_t> claimed = {};  ///< absent: the header's
  std::byte unknown{0};
};

/// How a call reaches the library.
enum class Road : std::uint8_t { kFixed, kAt, kPrepared, kPreparedAtSizes };

/// One call of the C interface, right as call_of() makes it. mistakes.hpp changes it.
struct DrawnCall {
  Road road = Road::kFixed;
  bool is_backward = false;
  std::vector<DrawnTensor> tensors;
  DrawnArray<DrawnOperand> operands, d_operands;
  scoremod_call_options options{};
  bool has_options = true;
  DrawnBuffer workspace;
  Sizes sizes;
  DrawnSize args_size, options_size, sizes_size, call_size;
};

/// The outcome of a call.
struct Outcome {
  scoremod_status status = SCOREMOD_OK;
  std::string message;
  /// After the call: of each operand's gradient, then of each tensor that is an output.
  std::vector<std::vector<std::byte>> outputs;

  bool operator==(const Outcome&) const = default;
};

/// The outputs of a forward that its backward reads.
struct DrawnForward {
  std::vector<std::byte> o, lse;
};

/// The right call of a problem on these inputs: a backward where `forward` is given.
DrawnCall right_call(const AttentionProblem& problem, const ProblemInputs& inputs, const CallOptions& options,
                     const DrawnForward* forward);

/// sizeof the arguments of a direction.
std::size_t struct_size_of(bool is_backward);

/// A problem that one backend runs, compiled with its sizes and with all of them open.
class CompiledTwice {
 public:
  CompiledTwice(const AttentionProblem& problem, const char* backend);
  ~CompiledTwice();
  CompiledTwice(const CompiledTwice&) = delete;
  CompiledTwice& operator=(const CompiledTwice&) = delete;

  /// Makes the call in memory of exactly the bytes that it says, where inputs can't be written.
  Outcome run(const DrawnCall& call) const;

 private:
  scoremod_attention* fixed_ = nullptr;
  scoremod_attention* open_ = nullptr;
};

}  // namespace scoremod::test
