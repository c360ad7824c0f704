// attention_clear_outside fills the rows of varlen outputs that no other kernel writes. They are of tokens before the
// first offset and from the last one on, and of tokens beyond a sequence's longest length. Rows of o and of
// gradients become 0, and those of lse and max_logit -inf. It comes before kernels that write the others. So every row
// is written, whatever offsets there are: nobody validates them in device memory.
#pragma once

#include "backend/kernels/shared/tiles.cuh"

// The head dim of v and o, of which a kernel's kDimV may be a part.
constexpr int kAllDimV = /*{all_dim_v}*/ 64 /*{}*/;

constexpr int kOutsideThreads = 128, kOutsideWarps = kOutsideThreads / 32;

// Tokens that no sequence has.
struct OutsideTokens {
  int before, behind, count;  // before the first sequence; where those behind the last one begin; of both

  SCOREMOD_MEMBER int at(int number) const { return number < before ? number : behind + number - before; }
};
SCOREMOD_FUNCTION OutsideTokens outside_tokens(const TensorArgument& tensor, int batch) {
  const int first = clamped(tensor.places[0], 0, tensor.count);
  const int end = clamped(tensor.places[batch * tensor.place_batch], first, tensor.count);
  return {first, end, first + tensor.count - end};
}

// Calls clear(token) for the tokens of a tensor whose rows are left over. Each warp has one token after the other.
template <class Clear>
SCOREMOD_FUNCTION void clear_tokens(const TensorArgument& tensor, int batch, int longest, const Clear& clear) {
  const int warp = (int)(blockIdx.x * kOutsideWarps + threadIdx.x / 32), warps = (int)gridDim.x * kOutsideWarps;
  const OutsideTokens outside = outside_tokens(tensor, batch);
#pragma unroll 1
  for (int i = warp; i < outside.count; i += warps) clear(outside.at(i));
#pragma unroll 1
  for (int b = warp; b < batch; b += warps) {
    const SequenceTokens own = tokens_of(tensor, b);
#pragma unroll 1
    for (int i = longest; i < own.count; ++i) clear(own.first + i);
  }
}

// The rows of all heads of a token, by a warp.
template <int kDim, class To>
SCOREMOD_FUNCTION void clear_rows(const TensorArgument& tensor, int token, int heads) {
  To* const data = (To*)tensor.data + token * tensor.row;
  const int lane = threadIdx.x % 32;
  if (tensor.aligned != 0) {
    constexpr int kPerWord = kWordElements<To>, kWords = kDim / kPerWord;
    alignas(16) const float zeros[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 4
    for (int i = lane; i < heads * kWords; i += 32)
      copy_word(data + i / kWords * tensor.head + i % kWords * kPerWord, zeros);
  } else {
#pragma unroll 1
    for (int i = lane; i < heads * kDim; i += 32)
      store_element(data + i / kDim * tensor.head + i % kDim * tensor.dim, 0.0f);
  }
}

// A token's numbers in lse or max_logit, which may be null.
SCOREMOD_FUNCTION void clear_numbers(float* numbers, int token, int heads) {
  if (numbers == nullptr) return;
  for (int h = threadIdx.x % 32; h < heads; h += 32) numbers[(long long)token * heads + h] = -infinity();
}

SCOREMOD_KERNEL(kOutsideThreads, 1) attention_clear_outside(SCOREMOD_ARGUMENT p) {
  const AttentionArguments& call = p.call;
  const int heads = call.heads_q, heads_kv = heads / call.group;
  if (kRaggedQueries) {
    clear_tokens(call.q, call.batch, call.seq_q, [&](int token) {
      if (kIsForward) {
        clear_rows<kAllDimV, Output>(call.o, token, heads);
        clear_numbers(call.lse, token, heads);
        if (kMaxLogit) clear_numbers(call.max_logit, token, heads);
      } else {
        clear_rows<kDimQk, Element>(call.dq, token, heads);
      }
    });
  }
  if (kRaggedKeys && !kIsForward) {
    clear_tokens(call.k, call.batch, call.seq_kv, [&](int token) {
      clear_rows<kDimQk, Element>(call.dk, token, heads_kv);
      clear_rows<kAllDimV, Element>(call.dv, token, heads_kv);
    });
  }
}
