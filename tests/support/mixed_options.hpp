#pragma once

#include "check/random_problem.hpp"

namespace scoremod::test {

/// Options of random problems that have each field and each layout that the host's backends run, now and then, beside
/// each other.
checking::RandomProblemOptions mixed_options();

}  // namespace scoremod::test
