#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/cudnn/graph/attention_graph.hpp"
#include "backend/cudnn/graph/device_target.hpp"
#include "backend/cudnn/graph/plan_key.hpp"
#include "backend/cudnn/lowering/lower.hpp"

namespace scoremod::backend::cudnn {

/// Raise it when a change of trials or of StructuralKey makes older verdicts insufficient.
inline constexpr int kVerificationRevision = 3;

/// The key of a lowering's trial: two lowerings with equal keys are both right or both wrong, by one engine. Sizes
/// count only as 1 or more, as kernels see them. A stride is 0, 1 or more, and a constant 0, 1, positive, negative or
/// not a number.
struct StructuralKey {
  std::string architecture;   ///< such as "sm_90"
  std::string cudnn_version;  ///< such as "9.19.0"
  Direction direction = Direction::kForward;
  DType dtype = DType::kBF16;
  bool sink = false;  ///< of a forward
  bool ragged_q = false, ragged_kv = false;
  std::int64_t page_rows = 0;                 ///< tokens of a page; 0 without a paged KV cache
  bool pages_by_heads = false;                ///< a page has one head's tokens after the other's
  bool lays_out_gradients = false;            ///< of a backward: d_o, dq, dk or dv lies otherwise than o, q, k or v
  bool deterministic = false;                 ///< of a backward
  std::optional<BiasGradient> bias_gradient;  ///< written beside dq, dk and dv
  std::int64_t dim_qk = 0, dim_v = 0;
  bool one_batch = false, one_kv_head = false, one_query_head = false;  ///< one_query_head: for each KV head
  bool one_row = false;
  std::strong_ordering rows_to_keys = std::strong_ordering::equal;  ///< how seq_q compares with seq_kv
  struct Computed {
    Type type = Type::kF32;
    std::array<bool, kAxisCount> axes{};
  };
  std::vector<Computed> computed;  ///< operands that a kernel of scoremod's computes beforehand
  ModifierGraph modifier;          ///< with dims of 1 and 2, strides of 0, 1 and 2, and constants of 0, 1, 2 and -2
  int revision = kVerificationRevision;
  int plan_revision = kPlanRevision;
};

StructuralKey structural_key(const LoweredModifier& modifier, const AttentionProblem& problem, const PlanTask& task,
                             const DeviceTarget& target);

/// Every member as text, which is equal where the keys are: for people and for the files of verdicts.
std::string canonical_text(const StructuralKey& key);

}  // namespace scoremod::backend::cudnn
