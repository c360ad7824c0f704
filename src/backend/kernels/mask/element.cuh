// The mask of one element, for kernels that make the block mask, or walk over keys without one.
#pragma once

#include "backend/kernels/shared/program.cuh"

/*{keeps}*/
// The mask of an element.
/*{linkage}*/ SCOREMOD_FUNCTION /*{}*/ bool keeps(const Arguments& p, int b, int h, int q, int kv) {
  const int offset_b = index_offset(p.call.offset_b), offset_h = index_offset(p.call.offset_h),
            offset_q = index_offset(p.call.offset_q), offset_kv = index_offset(p.call.offset_kv);
  const bool page = has_page(p.call, b, kv);
  /*{statements}*/ const bool keep = kv <= q; /*{}*/
  return /*{keep}*/ keep /*{}*/ && page;
}
/*{}*/
