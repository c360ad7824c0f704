#include "explain/mask_map.hpp"

#include <algorithm>

#include "masks/tile_mask_analyzer.hpp"

namespace scoremod::explaining {
namespace {

char symbol_of(masks::TileMask tile) {
  switch (tile) {
    case masks::TileMask::kEmpty: return '.';
    case masks::TileMask::kFull: return '#';
    case masks::TileMask::kMixed: return '+';
  }
  return '+';
}

/// Tiles are not smaller than needed, so that a short sequence has one for each element.
std::int64_t tile_size(std::int64_t length) { return (length + kMapSide - 1) / kMapSide; }

}  // namespace

MaskExplanation::Map mask_map(const compiler::CompiledProblem& compiled) {
  const AttentionProblem& problem = compiled.problem;
  const masks::TileMaskAnalyzer analyzer(compiled.forward.program);
  MaskExplanation::Map map{tile_size(problem.seq_q), tile_size(problem.seq_kv), {}};
  if (analyzer.keeps_all()) return map;
  masks::TileMaskAnalyzer::Scratch scratch = analyzer.make_scratch();
  const masks::OperandRanges unknown;
  for (std::int64_t q = 0; q < problem.seq_q; q += map.tile_q) {
    std::string& row = map.rows.emplace_back();
    for (std::int64_t kv = 0; kv < problem.seq_kv; kv += map.tile_kv) {
      const analysis::IndexBox tile{{{0, 0},
                                     {0, 0},
                                     {q, std::min(q + map.tile_q, problem.seq_q) - 1},
                                     {kv, std::min(kv + map.tile_kv, problem.seq_kv) - 1}}};
      row += symbol_of(analyzer.analyze(tile, unknown, scratch));
    }
  }
  return map;
}

}  // namespace scoremod::explaining
