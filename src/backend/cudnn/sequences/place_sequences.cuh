// place_sequences makes what cuDNN asks of varlen tensors and paged KV caches: the element at which each sequence
// begins, lengths, and page tables. Nobody validates offsets and tables in device memory, so nothing that it writes
// leads beyond the tensors. It also fills rows of tokens that no sequence has: o and gradients with 0, the LSE with
// -inf.
#pragma once

#include "backend/cuda/text/program_prelude.cuh"
#include "backend/cudnn/sequences/places_argument.cuh"

constexpr int kPlaceLanes = 32;

SCOREMOD_FUNCTION int clamped(int x, int least, int most) { return x < least ? least : x > most ? most : x; }

struct SequenceTokens {
  int first, count;
};
SCOREMOD_FUNCTION SequenceTokens tokens_of(const SequencesArgument& all, int b) {
  const int first = clamped(all.offsets[b * all.step], 0, all.tokens);
  return {first, clamped(all.offsets[(b + 1) * all.step], first, all.tokens) - first};
}

SCOREMOD_FUNCTION int length_of(const SequencesArgument& all, int b) {
  if (all.offsets != nullptr) return clamped(tokens_of(all, b).count, 0, all.longest);
  return all.counts != nullptr ? clamped(all.counts[b * all.count_step], 0, all.longest) : all.longest;
}

SCOREMOD_FUNCTION void write_places(const PlacesArgument& p, int thread, int threads) {
  for (int b = thread; b < p.batch; b += threads) {
    for (int side = 0; side < 2; ++side) {
      const SequencesArgument& all = p.sequences[side];
      const int length = length_of(all, b);
      // cuDNN makes NaN of no keys at all, and 0 of a masked one.
      all.lengths[b] = all.counts != nullptr && length == 0 ? 1 : length;
    }
  }
  for (int i = 0; i < p.placed_count; ++i) {
    const PlacedTensor& tensor = p.placed[i];
    const SequencesArgument& all = p.sequences[tensor.of_keys];
    for (int b = thread; b <= p.batch; b += threads)
      tensor.places[b] = clamped(all.offsets[b * all.step], 0, all.tokens) * tensor.token;
  }
}

SCOREMOD_FUNCTION int page_of(const PageTableArgument& table, int b, int entry) {
  return table.from[b * table.batch + entry * table.step];
}
SCOREMOD_FUNCTION bool is_of_pool(const PlacesArgument& p, int page) { return page >= 0 && page < p.blocks; }

SCOREMOD_FUNCTION void copy_tables(const PlacesArgument& p, int thread, int threads) {
  for (int i = 0; i < p.table_count; ++i) {
    for (int entry = thread; entry < p.batch * p.pages; entry += threads) {
      const int page = page_of(p.tables[i], entry / p.pages, entry % p.pages);
      p.tables[i].to[entry] = is_of_pool(p, page) ? page : 0;
    }
  }
}

SCOREMOD_FUNCTION void check_pages(const PlacesArgument& p, int thread, int threads) {
  if (p.table_count == 0) return;
  const long long keys = p.sequences[1].longest;
  for (long long i = thread; i < p.batch * keys; i += threads) {
    const int b = (int)(i / keys), key = (int)(i % keys), entry = key / p.block_rows;
    const int of_k = page_of(p.tables[0], b, entry), of_v = page_of(p.tables[1], b, entry);
    p.names_pages[i] = key < length_of(p.sequences[1], b) && is_of_pool(p, of_k) && is_of_pool(p, of_v) ? 1 : 0;
  }
}

// The rows of all heads of a token, by the lanes of a warp.
SCOREMOD_FUNCTION void clear_token(const ClearedTensor& tensor, int token, int lane) {
  const long long first = token * tensor.token;
  if (tensor.dim == 0) {
    for (int h = lane; h < tensor.heads; h += kPlaceLanes)
      ((float*)tensor.data)[first + h * tensor.head] = float_of_bits(0xff800000u);
    return;
  }
  for (int i = lane; i < tensor.heads * tensor.dim; i += kPlaceLanes)
    ((unsigned short*)tensor.data)[first + i / tensor.dim * tensor.head + i % tensor.dim] = 0;
}

// Tokens before the first sequence and behind the last one, and those beyond the longest length of a sequence.
SCOREMOD_FUNCTION void clear_outside(const PlacesArgument& p, const ClearedTensor& tensor, int thread, int threads) {
  const SequencesArgument& all = p.sequences[tensor.of_keys];
  const int warp = thread / kPlaceLanes, warps = threads / kPlaceLanes, lane = thread % kPlaceLanes;
  const int before = clamped(all.offsets[0], 0, all.tokens);
  const int behind = clamped(all.offsets[p.batch * all.step], before, all.tokens);
  for (int i = warp; i < before + all.tokens - behind; i += warps)
    clear_token(tensor, i < before ? i : behind + i - before, lane);
  for (int b = warp; b < p.batch; b += warps) {
    const SequenceTokens own = tokens_of(all, b);
    for (int i = all.longest; i < own.count; ++i) clear_token(tensor, own.first + i, lane);
  }
}

SCOREMOD_FUNCTION void place_all(const PlacesArgument& p, int thread, int threads) {
  write_places(p, thread, threads);
  copy_tables(p, thread, threads);
  check_pages(p, thread, threads);
  for (int i = 0; i < p.cleared_count; ++i) {
    if (p.cleared[i].data != nullptr) clear_outside(p, p.cleared[i], thread, threads);
  }
}

#ifdef __CUDACC_RTC__
extern "C" __global__ void __launch_bounds__(kPlaceThreads, 1)
    place_sequences(const __grid_constant__ PlacesArgument p) {
  place_all(p, (int)(blockIdx.x * kPlaceThreads + threadIdx.x), (int)gridDim.x * kPlaceThreads);
}
#endif
