#pragma once

#include <map>
#include <string>

#include "backend/cudnn/lowering/modifier_graph.hpp"

namespace scoremod::backend::cudnn {

/// The work of a modifier for each score in cuDNN's kernel, and how often, by the names of score_costs.hpp. They are
/// "tanh" and other modes; those of integers end in the type, as "cmp_le.i32". A select is named by whether one of its
/// values is infinite ("binary_select.cut") or another constant ("binary_select.constant"). A read of a tensor is named
/// by the axes that it varies along and its dtype ("read.q.f32", "read.qk.bf16", "read.fixed.i32"). It is
/// "adjoint.read..." if the gradient of the score needs it. Band nodes are left out: they decide which tiles are run.
std::map<std::string, int> score_work(const ModifierGraph& graph);

}  // namespace scoremod::backend::cudnn
