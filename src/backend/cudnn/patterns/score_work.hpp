#pragma once

#include <map>
#include <string>

#include "backend/cudnn/lowering/modifier_graph.hpp"

namespace scoremod::backend::cudnn {

/// What a modifier makes cuDNN's kernel do for each score, and how often, by the names of score_costs.hpp: "tanh" and
/// other modes; those of integers as "cmp_le.i32"; a select by whether one of its values is infinite
/// ("binary_select.cut") or another constant ("binary_select.constant"); a read of a tensor by what it varies along and
/// its dtype ("read.q.f32", "read.qk.bf16", "read.fixed.i32"; "adjoint.read..." where the gradient of the score needs
/// it). Band nodes are left out: they decide which tiles are run.
std::map<std::string, int> score_work(const ModifierGraph& graph);

}  // namespace scoremod::backend::cudnn
