#pragma once

#include <string>

#include "backend/backend.hpp"
#include "plans/plan_store.hpp"

namespace scoremod::planner {

/// A candidate's artifact on a device that is here: from this process's memory, from the store, or built and stored.
/// Throws as Recipe::build() does.
backend::BuildResult obtain_artifact(const backend::Backend& engine, const backend::Candidate& candidate,
                                     const backend::Target& target);

/// Builds an artifact, for a device that need not be here, unless the backend is known to refuse. This process
/// remembers refusals, and so does the store if the candidate has a key for that. Throws as Recipe::build() does.
backend::BuildResult build_artifact(const backend::Backend& engine, const backend::Candidate& candidate,
                                    const backend::Target& target);

/// Whether obtain_artifact() is likely to build nothing. Reads and builds nothing itself.
bool has_artifact(const backend::Backend& engine, const backend::Candidate& candidate, const backend::Target& target);

/// Whether the store has the artifact now, under the candidate's plan key.
bool store_artifact(const backend::Backend& engine, const backend::Candidate& candidate,
                    const backend::Artifact& artifact, const backend::Target& target, plans::PlanStore& store);

/// Whether the store has the backend's words of refusal now, under the candidate's key for them; false without such a
/// key.
bool store_refusal(const backend::Backend& engine, const backend::Candidate& candidate, const std::string& words,
                   const backend::Target& target, plans::PlanStore& store);

}  // namespace scoremod::planner
