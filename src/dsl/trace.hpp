#pragma once

#include <cstdint>
#include <initializer_list>

#include "scoremod/dsl.hpp"
#include "scoremod/program.hpp"

#include "ir/builder.hpp"

namespace scoremod::dsl {

/// One call of scoremod::trace(): the program being built, and the thread's current trace while it lives. Traces nest.
class Trace {
 public:
  Trace();
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// The innermost trace of this thread. Throws Error(kInvalidArgument) when there is none.
  static Trace& current();

  /// The node of a handle; a literal becomes a constant. Throws when the handle is another trace's.
  NodeId node_of(Handle handle);
  Handle handle_of(NodeId node) const;
  /// The number of the operand, declared when its name is new. Throws when it is known with another declaration.
  std::uint32_t declare(const OperandDecl& decl);

  ir::Builder& builder() { return builder_; }

 private:
  bool encloses(std::uint64_t id) const;

  std::uint64_t id_;
  Trace* outer_;
  ir::Builder builder_;
};

}  // namespace scoremod::dsl
