#pragma once

#include <string>
#include <vector>

#include "scoremod/attention.hpp"

#include "backend/backend.hpp"

namespace scoremod::planner {

/// Which backends may run a problem, and who said so: the one place where that is decided, for all that plan.
struct Selection {
  std::vector<const backend::Backend*> backends;  ///< of one memory; without companions
  MemoryKind memory = MemoryKind::kHost;
  bool in_order = false;   ///< the order is the caller's wish; otherwise predicted times decide
  std::string decided_by;  ///< for people: "the caller", "SCOREMOD_BACKENDS", "predicted time"
};

/// By the options, or the environment where they say nothing. May be empty. Throws Error(kInvalidArgument) for names
/// that no backend has, and for a named backend of another memory than the one asked for.
Selection select(const CompileOptions& options);

/// The selected backends, and the companions that belong to them in every selection.
std::vector<const backend::Backend*> with_companions(std::vector<const backend::Backend*> backends);

}  // namespace scoremod::planner
