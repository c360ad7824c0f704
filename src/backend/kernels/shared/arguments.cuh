// The argument of every attention kernel. One text for the kernels' compiler and for the host's, which fills it in.
#pragma once

/// The place_step of a ragged tensor. A paged one's is never negative, so that it tells ragged queries from paged keys.
constexpr long long kOffsetsStep = -1;

/// Values of TensorArgument::aligned: rows lie densely and every row begins at a multiple of 16 bytes; and there is a
/// tensor map of them, too.
constexpr int kAlignedRows = 1, kMappedRows = 2;

/// A tensor of four dimensions; strides are in elements. A varlen tensor packs all batches one after the other. In a
/// paged KV cache `batch` is the stride between pages; RowsOf of shared/rows.cuh finds the rows.
struct TensorArgument {
  void* data;
  long long batch, head, row, dim;
  const int* places;                  ///< a ragged tensor's offsets, or a paged one's page table; else null
  long long place_batch, place_step;  ///< from a batch's place to the next batch's, from a block's to the next one's
  int count;                          ///< of all tokens, or of the pages of a paged KV cache
  int aligned;                        ///< kAlignedRows or kMappedRows, or 0
};

/// An operand of the program; dimensions in the order of its declaration. One of size 1 has stride 0.
struct OperandArgument {
  const void* data;
  long long stride[4];
  int extent[4];
  void* gradient;  ///< in the backward: laid out as the operand, or null where it is not wanted
  float* sums;     ///< of the gradient, see operand_gradients/tile_sums.cuh
};

/// DropoutMask's key and threshold (problem/dropout_mask.hpp), and the factor of a kept weight.
struct DropoutArgument {
  unsigned key[2], threshold;
  float factor;
  const unsigned* keys;   ///< the operand of dropout keys (problem/call_dropout.hpp), in place of `key`
  long long batch, word;  ///< their distances in elements, of batches and of the words of one
};

/// The alignment makes the size a multiple of 16. If operands began elsewhere, ptxas 13.0 would leave the fused
/// backward of documents too few registers.
struct alignas(16) AttentionArguments {
  TensorArgument q, k, v, o, d_o, dq, dk, dv;
  /// The operand that TMA loads, if kLoadsBias: rows are its queries, dims its keys. Strides are 0 if batches or
  /// heads share it. With kFloat8Queries it is v^T in the workspace: rows are the dims of v, dims its keys.
  TensorArgument copied;
  float* lse;             ///< [batch, heads_q, seq_q], or [tokens, heads_q]; null where none is wanted
  float* max_logit;       ///< likewise, where kMaxLogit
  float* rows;            ///< backward: [batch, heads_q, seq_q rounded up to even, 2], see shared/derivative.cuh
  unsigned char* states;  ///< of tiles, see shared/tiles.cuh
  int* order;             ///< of rows of tiles, by their states, see mask/block_mask.cuh; null where it is their own
  float* parts;           ///< split-KV partials of decode kernels, see split_kv/partials.cuh
  unsigned long long* shares;  ///< split-KV arrival counters of tiles, tagged with a call id
  float* differences;          ///< relative-position tables, see shared/program.cuh
  float* query_sums;           ///< backward: dq as it is added up where kFused, see hopper/backward_fused.cuh
  int batch, heads_q, group, seq_q, seq_kv;
  int query_tiles, key_tiles;            ///< of a sequence of the longest length
  int query_work_tiles, key_work_tiles;  ///< of a head in all sequences, see first_packed_tile() in shared/tiles.cuh
  int heads_together;                    ///< heads whose tiles CTAs take in turns, see place_of() in shared/tiles.cuh
  int splits;                            ///< split-KV: CTAs that share the keys of a head
  unsigned long long number;             ///< a call id unique across processes (48 bits), which tags `shares`
  int blocks;                            ///< kPersistent: CTAs that share all work tiles; kHeadsTakeTurns: CTAs at once
  int* taken;                            ///< kPersistent: how many tiles they have taken, beside their first ones
  const int* lengths_kv;                 ///< where kPaged, of each batch
  long long length_step;
  int offset_b, offset_h, offset_q, offset_kv;
  int lowest, highest;  ///< a band keeps lowest <= kv - q <= highest, in local indices
  float scale;
  int constants[8];         ///< of the program
  DropoutArgument dropout;  ///< where kDropout
};
