// toy_forward computes each row of the output by a CTA of its own, without MMAs.
#pragma once

#include "backend/kernels/shared/softmax.cuh"

SCOREMOD_KERNEL(kThreads, 1) toy_forward(SCOREMOD_ARGUMENT p) {
  SCOREMOD_SHARED(shared);
  const AttentionArguments& call = p.call;
  const int q = blockIdx.x % call.seq_q, head = blockIdx.x / call.seq_q;
  forward_row(p, (float*)shared, head / call.heads_q, head % call.heads_q, q);
}
