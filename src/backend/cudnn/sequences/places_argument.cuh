// The argument of place_sequences. NVRTC and the host's compiler, which fills it in, share this text.
#pragma once

/// The threads of a CTA of place_sequences.
constexpr int kPlaceThreads = 128;
/// The tensors of a backward that can be varlen: q, k, v, o, the LSE, d_o, dq, dk and dv.
constexpr int kMostPlacedTensors = 9;
/// A backward writes dq, dk and dv; a forward o and the LSE.
constexpr int kMostClearedTensors = 3;

/// The sequences of queries, or those of keys.
struct SequencesArgument {
  const int* offsets;   ///< cu_seqlens of a varlen tensor; else null
  long long step;       ///< between two of them
  int tokens, longest;  ///< the tensor's tokens, and the most that a sequence may have
  const int* counts;    ///< the sequences' own lengths, where the keys are paged; else null
  long long count_step;
  int* lengths;  ///< written: of each batch
};

/// A varlen tensor's places: the element at which a batch's rows begin.
struct PlacedTensor {
  long long* places;  ///< written: batch + 1
  long long token;    ///< the tensor's stride between tokens, in elements
  int of_keys;
};

/// A varlen output, whose rows of tokens of no sequence are filled.
struct ClearedTensor {
  void* data;             ///< null where it is not wanted
  long long token, head;  ///< strides in elements
  int heads, dim;         ///< dim 0: f32 numbers, a single one for each head, which become -inf
  int of_keys;
};

/// A page table, copied with page 0 in place of those that the pool does not have.
struct PageTableArgument {
  const int* from;
  long long batch, step;  ///< strides in elements
  int* to;                ///< written: dense
};

struct PlacesArgument {
  SequencesArgument sequences[2];  ///< of queries, of keys
  PlacedTensor placed[kMostPlacedTensors];
  ClearedTensor cleared[kMostClearedTensors];
  PageTableArgument tables[2];  ///< of k, of v
  int* names_pages;  ///< written: [batch, longest of keys], whether a sequence has the key, in pages of the pool
  int batch;
  int placed_count, cleared_count, table_count;
  int pages, blocks, block_rows;  ///< of a sequence, of the pool, and the tokens of each
};
