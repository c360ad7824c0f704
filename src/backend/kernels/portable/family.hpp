#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "scoremod/problem.hpp"

#include "backend/kernels/family.hpp"
#include "backend/kernels/shared/tiled_variant.hpp"
#include "backend/plan.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::kernels {

/// Kernels of mma.sync and cp.async, for sm_80 and later.
extern const KernelFamily kPortableFamily;

/// The shape of portable kernels, and of those that sum operand gradients apart.
struct PortableShape : TileShape {
  int step = 32;      ///< queries that the kernel of dk and dv loads at once
  int part = 32;      ///< of these: queries whose scores it has at once
  int key_step = 32;  ///< keys that the kernel of dq takes at once
  /// Separate kernels write dk and dv: the accumulators of both would not fit into the registers.
  bool separate_dv = false;
  /// Delta is recomputed as the sum of a row's weights times their gradients, and not from o and d_o. The rounding of o
  /// is much of the error if few rows or keys are summed over. It costs another walk over the keys.
  bool recomputed_delta = false;

  int threads() const { return consumer_threads(); }
  KernelTraits traits() const;
  bool operator==(const PortableShape&) const = default;
};

std::shared_ptr<const TiledVariant> portable_variant(const PortableShape& shape);

/// The shapes to build, the better first; the last is taken whatever becomes of it, and fits every device. Problems
/// whose lengths differ have the same shapes.
std::vector<PortableShape> portable_shapes(const AttentionProblem& problem, Direction direction);
/// The first of them: with 16-bit elements, the fastest on an H200 among shapes without register spills.
PortableShape portable_shape(const AttentionProblem& problem, Direction direction);

/// The shared memory of the kernels of dk and dv, and of gradients along keys.
device::PortableKeysStorage portable_keys_storage(const PortableShape& shape, const AttentionProblem& problem);

/// The source of kernels that sum these targets' gradients and do nothing else. `shape` is the backward's.
KernelSource operand_source(const compiler::CompiledProblem& problem, std::span<const OperandTarget> targets,
                            const PortableShape& shape);
/// The layout of a call that computes nothing but the gradients of these operands.
CallLayout operand_layout(const compiler::CompiledProblem& problem, std::span<const OperandTarget> targets,
                          const PortableShape& shape);

}  // namespace scoremod::backend::kernels
