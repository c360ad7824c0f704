#include "backend/kernels/shared/tiled_variant.hpp"

#include "backend/kernels/shared/tiled_source.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::kernels {

const MaskWork& SharedMaskWork::of(const Work& work, const TileShape& shape) const {
  std::call_once(once_, [&] { mask_ = kernels::mask_work(work.problem, work.direction, shape); });
  return mask_;
}

KernelSource TiledVariant::source(const Work& work) const {
  KernelSource source = tiled_source(work, shape_, files(work.direction));
  fill(source.holes, work);
  return source;
}

Prediction TiledVariant::time_from(const Work& work, const DeviceRates& rates, const TiledTimes& direct,
                                   bool small) const {
  const MaskWork& mask = mask_work(work);
  Prediction predicted = tiled_time(work.problem, work.direction, shape_, mask, rates, direct, small);
  if (!work.targets.empty()) predicted.milliseconds += gains_time(work.problem, work.targets, shape_, mask, rates);
  return predicted;
}

std::string TiledVariant::label(const Work& work) const {
  const auto& operands = work.problem.problem.program.operands();
  return concat(to_string(shape_.family), " kernels with tiles of ", shape_.queries, "x", shape_.keys,
                shape_.persistent_ctas > 0 ? ", persistent" : "", shape_.ordered ? ", the longest rows first" : "",
                shape_.loaded_bias ? concat(", tiles of ", operands[*shape_.loaded_bias].name, " copied") : "",
                shape_.fused ? ", dq added up beside dk and dv" : "");
}

void TiledVariant::write(CanonicalWriter& out) const {
  const auto& [family, warps, row_tiles, queries, keys, step, part, key_step, element_bytes, blocks, separate_dv,
               recomputed_delta, fused, dq_order, stages, key_stages, persistent_ctas, loaded_bias, ordered,
               heads_together, teams, splits] = shape_;
  for (const int number : {static_cast<int>(family), warps, row_tiles, queries, keys, step, part, key_step,
                           element_bytes, blocks, static_cast<int>(dq_order), stages, key_stages, teams})
    out.integer(number);
  for (const bool flag : {separate_dv, recomputed_delta, fused, persistent_ctas > 0, ordered, splits > 1})
    out.boolean(flag);
  out.integer(loaded_bias ? static_cast<std::int64_t>(*loaded_bias) : -1);
}

}  // namespace scoremod::backend::kernels
