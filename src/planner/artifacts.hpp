#pragma once

#include "backend/backend.hpp"
#include "plans/plan_store.hpp"

namespace scoremod::planner {

/// A candidate's artifact on a device that is here: from this process's memory, from the store, or built and stored.
/// What the engine refuses is remembered too, for as long as the process lives. Throws as Recipe::build() does.
backend::BuildResult obtain_artifact(const backend::Backend& engine, const backend::Candidate& candidate,
                                     const backend::Target& target);

/// Whether obtain_artifact() is likely to build nothing. Reads and builds nothing itself.
bool has_artifact(const backend::Backend& engine, const backend::Candidate& candidate, const backend::Target& target);

/// Whether the store has the artifact now, under the candidate's plan key.
bool store_artifact(const backend::Backend& engine, const backend::Candidate& candidate,
                    const backend::Artifact& artifact, const backend::Target& target, plans::PlanStore& store);

}  // namespace scoremod::planner
