#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "scoremod/attention.hpp"
#include "scoremod/c_api.h"

#include "c_structs/choices.hpp"
#include "c_structs/given_struct.hpp"

namespace scoremod::fuzz {

/// Options of compiling; none stands for a null pointer.
struct DrawnCompile {
  std::optional<scoremod_compile_options> options;  ///< without the arrays' pointers
  std::vector<const char*> passes, backends;
  DrawnSize size;
};

DrawnCompile draw_compile(Choices& choices);

/// Options of compiling as C takes them. `drawn` outlives this.
class MadeCompile {
 public:
  explicit MadeCompile(const DrawnCompile& drawn);

  const scoremod_compile_options* get() { return given_ ? given_->get() : nullptr; }
  /// Makes the C++ interface's form of it. Throws Error(kInvalidArgument) for a mistake that only C has.
  CompileOptions plain() const;

 private:
  std::optional<GivenStruct<scoremod_compile_options>> given_;
};

}  // namespace scoremod::fuzz
