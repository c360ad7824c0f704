#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "backend/cudnn/graph/attention_graph.hpp"
#include "backend/cudnn/patterns/pattern_table.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::cudnn {

/// The first operand whose gradient cuDNN itself can write beside dq, dk and dv, if there is one. It has the problem's
/// dtype, f16 or bf16, varies along the queries and the keys, and its dimensions do not repeat. Its gradient is that of
/// the value as it is: the value is a sum of it and other terms. A deterministic problem has none, because cuDNN's
/// order of sums over batches and heads is unknown.
///
/// cuDNN 9.19 writes numbers of the problem's dtype whatever the tensor's is. On an H200, 116 of 120 cases with the
/// other half precision were wrong, and none of 120 with the same. It takes no f32 there
/// (CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE: reduction output datatype in flash bprop should be fp16/bf16). It takes no
/// value other than the score with terms added to it (CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN). It keeps the gradient
/// of all scores in its workspace: batch * heads_q * seq_q * seq_kv elements.
std::optional<std::uint32_t> fused_gradient_operand(const compiler::CompiledProblem& problem);

/// The gradient of such an operand, as cuDNN writes it.
BiasGradient bias_gradient(const AttentionProblem& problem, std::uint32_t operand);

/// Why the table forbids that gradient; empty where it is right or was never tried: verification decides then.
std::string gradient_objection(const PatternTable& table, const BiasGradient& gradient);

}  // namespace scoremod::backend::cudnn
