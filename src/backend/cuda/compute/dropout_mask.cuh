// Which weights of a call dropout leaves, bit for bit as problem/dropout_mask.hpp has it, of global indices.
#pragma once

#include "backend/cuda/compute/dropout_argument.cuh"
#include "backend/cuda/text/program_prelude.cuh"

struct DropoutKey {
  unsigned key[2], threshold;
};

// Philox4x32-10 of the counter (kv / 4, q, h, b): of bit i, whether the weight of the i-th of these four keys is left.
SCOREMOD_FUNCTION unsigned four_stay(const DropoutKey& call, unsigned b, unsigned h, unsigned q, unsigned four) {
  unsigned word0 = four, word1 = q, word2 = h, word3 = b, key0 = call.key[0], key1 = call.key[1];
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned long long product0 = 0xD2511F53ull * word0, product1 = 0xCD9E8D57ull * word2;
    word0 = (unsigned)(product1 >> 32) ^ word1 ^ key0;
    word1 = (unsigned)product1;
    word2 = (unsigned)(product0 >> 32) ^ word3 ^ key1;
    word3 = (unsigned)product0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return (word0 >= call.threshold ? 1u : 0u) | (word1 >= call.threshold ? 2u : 0u) |
         (word2 >= call.threshold ? 4u : 0u) | (word3 >= call.threshold ? 8u : 0u);
}
SCOREMOD_FUNCTION bool one_stays(const DropoutKey& call, unsigned b, unsigned h, unsigned q, unsigned kv) {
  return (four_stay(call, b, h, q, kv / 4u) >> kv % 4u & 1u) != 0;
}
