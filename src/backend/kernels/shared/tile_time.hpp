#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>

#include "scoremod/problem.hpp"
#include "scoremod/program.hpp"

#include "backend/candidate.hpp"
#include "backend/kernels/family.hpp"
#include "backend/plan.hpp"
#include "compiler/compiled_problem.hpp"

// Models of the time that tiled kernels take: the tiles that a mask leaves, what a program adds to each of their
// scores, and the rest.

namespace scoremod::backend::kernels {

struct TileShape;

/// The queries and the keys of a tile of scores.
struct ScoreTile {
  int queries = 0, keys = 0;
};

/// The parts of all tiles of a head that kernels run, and that they evaluate the mask in (which are among them).
struct MaskWork {
  double run = 1, partial = 0;
  bool uneven = false;       ///< some rows of tiles run more than others
  bool few_longest = false;  ///< the first or the last row of tiles runs much more than most do
};

/// The part of all pairs of a query and a key that varlen sequences fill if they are as long as each other.
double filled_part(const AttentionProblem& problem);

/// The tiles that a direction's mask leaves, from the program: intervals are evaluated over boxes of tiles for some
/// rows of tiles, evenly spaced. If an operand decides, the kind of the mask says what is usual. It takes some 0.1 ms.
MaskWork mask_work(const compiler::CompiledProblem& problem, Direction direction, ScoreTile tile);

/// The work that a mask leaves, which variants of neighbouring shapes share: it is estimated when the first one asks.
class SharedMaskWork {
 public:
  const MaskWork& of(const Work& work, ScoreTile tile) const;

 private:
  mutable std::once_flag once_;
  mutable MaskWork mask_;
};

/// The time that a program adds to attention kernels, for all scores of the shape that costs were measured at
/// (backend/measured_at.hpp). It is in milliseconds on an H200.
struct NodeCosts {
  double value = 0;  ///< of the forward's value, or the derivative's value and gradient of the score
  double keep = 0;   ///< of the mask alone
};

/// The cost of evaluating a node for each score.
double node_cost(const Node& node, const Program& program);

/// The costs of the program that a direction's kernels evaluate. They read position_tables() unless `evaluates_all`,
/// and operand number `loaded_bias`, if any, from tiles that TMA loads. Nodes that vary along queries or keys alone
/// are evaluated once for several scores, and those that vary along neither cost nothing.
NodeCosts node_costs(const Program& program, bool evaluates_all = false, std::optional<std::uint32_t> loaded_bias = {});

/// The time of a direction without a program, in milliseconds of an H200 at the shape of measured_at.hpp. Rows of tiles
/// take some beside their tiles.
struct TiledTimes {
  double tiles, rows;
  double dimless;     ///< the part that does not grow with the head dims
  double wide_heads;  ///< how much longer if accumulators of wide heads leave no room for large tiles
  double uneven;      ///< how much longer if rows of tiles run unequal numbers of them
  double launches;
  double evaluations;  ///< of the program for each score: a backward's kernels of queries and of keys make one each
};

/// How long one direction of a problem takes with tiles of this shape, scaled from `direct`, what a Hopper GPU
/// took (bench/results/attention_kernels.json and, by lengths and masks, peers.json). `mask` is mask_work() of the
/// direction. Tiles are `small` if a matrix that is read from shared memory serves half as many MMAs. Reads of operand
/// `loaded_bias` are free, because TMA loads its tiles. Pure.
Prediction tiled_time(const compiler::CompiledProblem& problem, Direction direction, const TileShape& shape,
                      const MaskWork& mask, const DeviceRates& rates, const TiledTimes& direct, bool small,
                      std::optional<std::uint32_t> loaded_bias = std::nullopt);

/// The predicted time of operand gradients from tiles of scores; `mask` is of the backward.
Prediction operand_time(const compiler::CompiledProblem& problem, std::span<const OperandTarget> targets,
                        const TileShape& shape, const MaskWork& mask, const DeviceRates& rates);

/// The growth of tiled_time() if these are summed beside dq, dk and dv, in milliseconds.
double gains_time(const compiler::CompiledProblem& problem, std::span<const OperandTarget> targets,
                  const TileShape& shape, const MaskWork& mask, const DeviceRates& rates);

}  // namespace scoremod::backend::kernels
