#pragma once

#include "backend/backend.hpp"

namespace scoremod::planner {

/// A candidate's artifact on a device that is here: from this process's memory, from the store, or built and stored.
/// What the engine refuses is remembered too, for as long as the process lives. Throws as Recipe::build() does.
backend::BuildResult obtain_artifact(const backend::Backend& engine, const backend::Candidate& candidate,
                                     const backend::Target& target);

}  // namespace scoremod::planner
