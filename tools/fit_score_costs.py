#!/usr/bin/env python3
"""Fits what each step of a score modifier costs to the times that the pattern explorer took.

usage: scoremod_cudnn explore --work 9.19.0 | tools/fit_score_costs.py

Writes src/backend/cudnn/patterns/score_costs.cpp. The cases' times are of src/backend/cudnn/patterns/tables/sm_90-9.19.0.json; two more come from
the benchmark on the same device (bench/results/h200.json), which alone has a bias that the adjoint does not read. Rows and tiles are those of
attention without a mask at the lengths of bench/results/peers.json, which has our kernels' times beside them. Needs NumPy and SciPy. Prints how
far the fit is from the times that it was made of.
"""

import json
import statistics
import sys
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

ROOT = Path(__file__).resolve().parent.parent
DIRECTIONS = ("forward", "backward")
# The factor of the bench's times under steady load: it ran each case for long enough that the clock fell (tests/golden/prediction_test.cpp).
STEADY_LOAD = 1.1
LAUNCHES = {"forward": 0.005, "backward": 0.012}  # milliseconds (attention_time.cpp)
# Timed with another lowering than today's, or with what no lowering writes.
LEFT_OUT = {("zoo.documents", "forward"), ("adjoint.unguarded", "forward"), ("adjoint.unguarded", "backward")}
LEFT_OUT_PREFIXES = ("budget.", "direct.")
TILE, HEADS = 128, 64
# How strongly costs that the times leave undecided are drawn to 0 and to each other.
RIDGE = 0.01


def timed_cases(lines):
    """[(case, milliseconds)] of the listed cases that were timed."""
    table = json.loads((ROOT / "src/backend/cudnn/patterns/tables/sm_90-9.19.0.json").read_text())
    times = {}
    for row in table["results"]:
        if row["ms"]:
            times.setdefault((row["pattern"], row["direction"], row["program"]), []).append(row["ms"])
    cases = [json.loads(line) for line in lines]
    found = [(case, times.get((case["pattern"], case["direction"], case["program"]))) for case in cases]
    return cases, [(case, statistics.median(ms)) for case, ms in found if ms]


def bench_time(name, direction):
    results = json.loads((ROOT / "bench/results/h200.json").read_text())["results"]
    return next(row["ms"] for row in results if (row["case"], row["direction"]) == (name, direction)) / STEADY_LOAD


def step_costs(cases, timed, direction):
    """{step: milliseconds} that one more of it adds to attention without a modifier."""
    plain = next(ms for case, ms in timed if (case["pattern"], case["direction"]) == ("plain", direction))
    rows = [
        (case["work"], ms)
        for case, ms in timed
        if case["direction"] == direction
        and not case["band"]
        and not case["gradient"]
        and (case["pattern"], direction) not in LEFT_OUT
        and not case["pattern"].startswith(LEFT_OUT_PREFIXES)
    ]
    if direction == "backward":
        # No timed case adds an operand of all queries and keys without reading it in the adjoint again.
        work = next(case["work"] for case in cases if (case["pattern"], case["direction"]) == ("zoo.full_bias", direction))
        for dtype in ("bf16", "f16", "f32"):
            read = {step.replace("qk.f32", f"qk.{dtype}"): count for step, count in work.items()}
            rows += [(read, bench_time("bias", direction))] * 3
    steps = sorted({step for work, _ in rows for step in work})
    counts = np.array([[work.get(step, 0) for step in steps] for work, _ in rows], float)
    times = np.array([ms for _, ms in rows])
    # Relative errors count.
    matrix = np.vstack([counts / times[:, None], RIDGE * np.eye(len(steps))])
    costs, _ = nnls(matrix, np.concatenate([(times - plain) / times, np.zeros(len(steps))]))
    error = np.abs((plain + counts @ costs) / times - 1)
    print(f"{direction}: {len(rows)} times, median error {np.median(error):.4f}, 90 % below {np.quantile(error, 0.9):.4f}, worst {error.max():.3f}")
    return dict(zip(steps, costs, strict=True))


def tile_costs(direction):
    """Milliseconds of a row of tiles and of a tile, at 64 heads, from attention without a mask at several lengths of as many tokens."""
    record = json.loads((ROOT / "bench/results/peers.json").read_text())
    shapes = {name: shape for name, shape in record["cases"].items() if shape["modifier"] == "full" and shape["shape"] in ("", "1k", "2k", "8k", "16k")}
    matrix = []
    for row in record["results"]:
        if (row["implementation"], row["direction"]) == ("scoremod_cudnn", direction) and row["case"] in shapes:
            shape = shapes[row["case"]]
            tiles = shape["queries"] // TILE
            matrix.append(np.array([tiles, tiles**2]) * shape["batch"] * shape["heads"] / HEADS / (row["ms"] - LAUNCHES[direction]))
    costs = np.linalg.lstsq(np.array(matrix), np.ones(len(matrix)), rcond=None)[0]
    print(f"{direction}: {len(matrix)} lengths, worst error {np.abs(np.array(matrix) @ costs - 1).max():.3f}")
    return costs


def source(costs, tiles):
    steps = sorted(costs["forward"] | costs["backward"])
    text = HEAD
    for step in steps:
        numbers = (f"{costs[d][step]:.4f}" if step in costs[d] else "kUnseen" for d in DIRECTIONS)
        text += f'    {{"{step}", {", ".join(numbers)}}},\n'
    (row, tile), (row_backward, tile_backward) = (tiles[d] for d in DIRECTIONS)
    text += f"}};\n\nconstexpr TileCosts kForward{{{row:.6f}, {tile:.7f}}}, kBackward{{{row_backward:.6f}, {tile_backward:.7f}}};\n"
    return text + TAIL


HEAD = """// Made by tools/fit_score_costs.py from the times of patterns/sm_90-9.19.0.json and of h200.json and peers.json of
// bench/results.
#include "backend/cudnn/patterns/score_costs.hpp"

#include <algorithm>
#include <iterator>

namespace scoremod::backend::cudnn {
namespace {

constexpr double kUnseen = -1;

struct ScoreCost {
  std::string_view work;
  double forward, backward;
};

/// In the order of their names.
constexpr ScoreCost kCosts[] = {
"""

TAIL = """
}  // namespace

TileCosts tile_costs(Direction direction) { return direction == Direction::kForward ? kForward : kBackward; }

std::optional<double> score_cost(std::string_view work, Direction direction) {
  const auto found = std::ranges::lower_bound(kCosts, work, {}, &ScoreCost::work);
  if (found == std::end(kCosts) || found->work != work) return std::nullopt;
  const double cost = direction == Direction::kForward ? found->forward : found->backward;
  return cost < 0 ? std::nullopt : std::optional(cost);
}

}  // namespace scoremod::backend::cudnn
"""


def main():
    if len(sys.argv) > 1:
        sys.exit(__doc__)
    cases, timed = timed_cases(sys.stdin)
    costs = {direction: step_costs(cases, timed, direction) for direction in DIRECTIONS}
    tiles = {direction: tile_costs(direction) for direction in DIRECTIONS}
    (ROOT / "src/backend/cudnn/patterns/score_costs.cpp").write_text(source(costs, tiles), encoding="utf-8")


if __name__ == "__main__":
    main()
