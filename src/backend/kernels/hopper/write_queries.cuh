// hopper_write_queries turns the sums of hopper_backward_fused into dq, a tile of queries by each CTA. Rows whose sums
// are not finite are computed again.
#pragma once

#include "backend/kernels/hopper/query_sums.cuh"
#include "backend/kernels/shared/query_gradients.cuh"

// The sums of a warp's 16 queries from first_query on, as it has them after a product.
SCOREMOD_FUNCTION void read_query_sums(const AttentionArguments& call, Sums<1, padded(kDimQk)>& dq, int b, int h,
                                       int first_query) {
#pragma unroll
  for (int block = 0; block < blocks_of(kDimQk); ++block) {
    const float* const sums = own_sums(call, box_number(call, b, h, first_query, block));
#pragma unroll
    for (int n = 0; n < 8 && block * 8 + n < padded(kDimQk) / 8; ++n) {
      alignas(16) float four[4];
      copy_word(four, sums + n * kNextSums);
#pragma unroll
      for (int e = 0; e < 4; ++e) dq.at[0][block * 8 + n][e] = four[e];
    }
  }
}

SCOREMOD_KERNEL(kThreads, 2) hopper_write_queries(SCOREMOD_ARGUMENT p) {
  SCOREMOD_SHARED(shared);
  const AttentionArguments& call = p.call;
  const int query_tile = blockIdx.x % call.query_tiles, head = blockIdx.x / call.query_tiles;
  const int b = head / call.heads_q, h = head % call.heads_q, queries = queries_of(call, b);
  if (query_tile * kQueries >= queries) return;
  const int first_query = query_tile * kQueries + threadIdx.x / 32 * 16;
  Sums<1, padded(kDimQk)> dq;
  read_query_sums(call, dq, b, h, first_query);
  const float factor = sum_factor(call), factors[1][2] = {{factor, factor}};
  store_through_tile<kDimQk, kDimQk>(dq, factors, rows_of(call.dq, b, h), (Half*)shared, first_query, queries);
  if (!any_of_block(any_not_finite(dq, first_query, queries))) return;
  for (int i = 0; i < kQueries && query_tile * kQueries + i < queries; ++i)
    backward_query_row(p, (float*)shared, b, h, query_tile * kQueries + i);
}
