// The kernel "gradients" of a GradientSource: the contributions of the scores of a block of queries and keys to each
// target's sums. A warp has rows of a tile, a lane some of its columns; grid: column tiles, row tiles, heads.
#pragma once

#include "backend/cuda/operand_gradients/gradient_prelude.cuh"

enum {
  kThreads = /*{threads}*/ 256 /*{}*/,
  kTileRows = /*{tile_rows}*/ 64 /*{}*/,
  kTileColumns = /*{tile_columns}*/ 128 /*{}*/,
  kWarps = kThreads / 32,
  kRowsOfWarp = kTileRows / kWarps,
  kColumnsOfLane = kTileColumns / 32,
};

extern "C" __global__ void __launch_bounds__(kThreads)
    gradients(int offset_b, int offset_h, int offset_q, int offset_kv, const float* scores, const float* products,
              const float* lse, const float* deltas, int b, int h0, int q0, int rows, int k0, int first_key,
              int columns, int block_rows, int block_columns /*{parameters}*/, float* row_sums, float* column_sums,
              float* totals, float* table, void* stored /*{}*/) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  __shared__ float parts[kWarps][kTileColumns];
  /*{open_tables}*/
  /*{open_table}*/
  __shared__ /*{sum_type}*/ float /*{}*/ /*{table}*/ table_0 /*{}*/[/*{words}*/ 64 /*{}*/];
  for (int i = threadIdx.x; i < /*{words}*/ 64 /*{}*/; i += kThreads) /*{table}*/
    table_0 /*{}*/[i] = 0;
  /*{}*/
  __syncthreads();
  /*{}*/
  const int z = blockIdx.z, h = h0 + z;
  /*{open_sums}*/
  /*{open_total}*/
  float /*{sum}*/ total_0 /*{}*/ = 0.0f;
  /*{}*/
  /*{open_column}*/
  float /*{sum}*/ column_0 /*{}*/[kColumnsOfLane];
  for (int i = 0; i < kColumnsOfLane; ++i) /*{sum}*/
    column_0 /*{}*/[i] = 0.0f;
  /*{}*/
  /*{open_run}*/
  Run /*{run}*/ run_0 /*{}*/[kColumnsOfLane] = {};
  /*{}*/
  /*{}*/
  // A row's inputs are loaded while the row before it is computed: otherwise the device waits for memory.
  float next_scores[kColumnsOfLane], next_products[kColumnsOfLane], next_lse = 0.0f, next_delta = 0.0f;
  const auto load_row = [&](int r) {
    const long long row = (b * /*{heads}*/ 4LL /*{}*/ + h) * /*{seq_q}*/ 512 /*{}*/ + q0 + r;
    next_lse = lse[row];
    next_delta = deltas[row];
    const long long first = ((long long)z * block_rows + r) * block_columns;
#pragma unroll
    for (int j = 0; j < kColumnsOfLane; ++j) {
      const int own_column = blockIdx.x * kTileColumns + j * 32 + lane,
                column = own_column < columns ? own_column : columns - 1;
      next_scores[j] = scores[first + column];
      next_products[j] = products[first + column];
    }
  };
  const int first_row = blockIdx.y * kTileRows + warp * kRowsOfWarp;
  if (first_row < rows) load_row(first_row);
  for (int i = 0; i < kRowsOfWarp; ++i) {
    const int r = first_row + i;
    if (r >= rows) break;
    const int q = q0 + r;
    const float row_lse = next_lse, delta = next_delta;
    float row_scores[kColumnsOfLane], row_products[kColumnsOfLane];
#pragma unroll
    for (int j = 0; j < kColumnsOfLane; ++j) {
      row_scores[j] = next_scores[j];
      row_products[j] = next_products[j];
    }
    if (i + 1 < kRowsOfWarp && r + 1 < rows) load_row(r + 1);
    /*{open_rows}*/
    /*{open_row}*/
    float /*{sum}*/ row_0 /*{}*/ = 0.0f;
    /*{}*/
    /*{}*/
    // Lanes beyond the last column go along with it and contribute zero, so that warps stay whole.
#pragma unroll /*{unrolled}*/ 4 /*{}*/
    for (int j = 0; j < kColumnsOfLane; ++j) {
      const int own_column = blockIdx.x * kTileColumns + j * 32 + lane;
      const bool inside = own_column < columns;
      const int column = inside ? own_column : columns - 1, kv = first_key + column;
      const float score = row_scores[j];
      /*{forward}*/ const float value = score; /*{}*/
      const bool kept = inside && /*{keep}*/ kv <= q /*{}*/ &&
                        /*{value}*/ value /*{}*/ != -float_of_bits(0x7f800000u) &&
                        row_lse != -float_of_bits(0x7f800000u);
      const float probability = expf(/*{value}*/ value /*{}*/ - row_lse);
      const float upstream = kept ? probability * (row_products[j] - delta) : 0.0f;
      /*{adjoints}*/ const float adjoint = upstream * score; /*{}*/
      /*{contributions}*/
      /*{contribution}*/
      const float /*{name}*/ contribution_0 /*{}*/ = kept ? /*{adjoint}*/ adjoint /*{}*/ : 0.0f;
      /*{}*/
      /*{add_stored}*/
      if (inside && /*{output}*/ stored /*{}*/ != nullptr)
        /*{store}*/ store_f32 /*{}*/ (/*{output}*/ stored /*{}*/, /*{offset}*/ q + kv /*{}*/,
                                      /*{name}*/ contribution_0 /*{}*/);
      /*{}*/
      /*{add_to_own_entry}*/
      if (inside) /*{output}*/
        row_sums /*{}*/[/*{entry}*/ r * block_columns + kv - k0 /*{}*/] +=
            /*{name}*/ contribution_0 /*{}*/;
      /*{}*/
      /*{add_to_shared_entry}*/
      if (inside && /*{name}*/ contribution_0 /*{}*/ != 0.0f)
        add_to(/*{output}*/ row_sums /*{}*/, /*{entry}*/ kv - k0 /*{}*/, /*{name}*/ contribution_0 /*{}*/);
      /*{}*/
      /*{add_to_sum}*/ /*{sum}*/ row_0 /*{}*/ += /*{name}*/ contribution_0 /*{}*/; /*{}*/
      /*{add_to_table}*/
      add_to_table(/*{table}*/ table /*{}*/, /*{run}*/ run_0 /*{}*/[j], (int)(/*{entry}*/ kv /*{}*/),
                   /*{name}*/ contribution_0 /*{}*/);
      /*{}*/
      /*{}*/
    }
    /*{close_rows}*/
    /*{close_row}*/
    /*{sum}*/ row_0 /*{}*/ = warp_sum(/*{sum}*/ row_0 /*{}*/);
    if (lane == 0) add_to(/*{output}*/ row_sums /*{}*/, /*{entry}*/ q /*{}*/, /*{sum}*/ row_0 /*{}*/);
    /*{}*/
    /*{}*/
  }
  /*{close_sums}*/
  /*{close_run}*/
  for (int i = 0; i < kColumnsOfLane; ++i)
    add_run(/*{table}*/ table /*{}*/, /*{run}*/ run_0 /*{}*/[i].entry, /*{run}*/ run_0 /*{}*/[i].sum);
  /*{}*/
  /*{close_total}*/
  {
    const float sum = warp_sum(/*{sum}*/ total_0 /*{}*/);
    if (lane == 0) parts[warp][0] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
      float all = 0.0f;
      for (int i = 0; i < kWarps; ++i) all += parts[i][0];
      add_to(/*{output}*/ totals /*{}*/, /*{entry}*/ h /*{}*/, all);
    }
    __syncthreads();
  }
  /*{}*/
  /*{close_column}*/
  {
    for (int i = 0; i < kColumnsOfLane; ++i) parts[warp][i * 32 + lane] = /*{sum}*/ column_0 /*{}*/[i];
    __syncthreads();
    const int column = blockIdx.x * kTileColumns + threadIdx.x;
    if (threadIdx.x < kTileColumns && column < columns) {
      const int kv = first_key + column;
      float all = 0.0f;
      for (int i = 0; i < kWarps; ++i) all += parts[i][threadIdx.x];
      add_to(/*{output}*/ column_sums /*{}*/, /*{entry}*/ kv /*{}*/, all);
    }
    __syncthreads();
  }
  /*{}*/
  /*{}*/
  /*{close_tables}*/
  __syncthreads();
  /*{close_table}*/
  for (int i = threadIdx.x; i < /*{words}*/ 64 /*{}*/; i += kThreads)
    merge_word(/*{output}*/ table /*{}*/, /*{table}*/ table_0 /*{}*/, i);
  /*{}*/
  /*{}*/
}
