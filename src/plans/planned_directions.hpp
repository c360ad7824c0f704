#pragma once

#include <cstdint>

namespace scoremod::plans {

/// Directions of problems that were planned since the process began, whatever became of it.
struct PlannedDirections {
  std::uint64_t forwards = 0;
  std::uint64_t backwards = 0;
};

/// To be called by whoever has backends plan a direction.
void count_planned_forward();
void count_planned_backward();

PlannedDirections planned_directions();

}  // namespace scoremod::plans
