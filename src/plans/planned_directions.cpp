#include "plans/planned_directions.hpp"

#include <atomic>

namespace scoremod::plans {
namespace {

std::atomic<std::uint64_t> forwards = 0;
std::atomic<std::uint64_t> backwards = 0;

}  // namespace

void count_planned_forward() { ++forwards; }
void count_planned_backward() { ++backwards; }

PlannedDirections planned_directions() { return {forwards, backwards}; }

}  // namespace scoremod::plans
