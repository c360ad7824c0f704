// Gradients of tables that are read at any indices. Each contribution belongs to the exact sum of its entry, which any
// thread may add to. Entries are numbered over all tables, whose sums lie one after the other. A thread caches the sums
// of a few entries. It flushes one to the exact sum when another entry needs its slot. Neighbouring scores often read
// the same entries, and atomics of all threads on one address would be slowest. The cached sums follow from the
// thread's scores alone, so that the same numbers are added in whatever order threads run.
#pragma once

#include "backend/cuda/exact_sum.cuh"
#include "backend/kernels/operand_gradients/element_program.cuh"
#include "backend/kernels/operand_gradients/storage.cuh"

constexpr int kNoEntry = -1;

SCOREMOD_FUNCTION long long* table_sums(const Arguments& p) {
  return (long long*)p.operands[/*{first_table}*/ 0 /*{}*/].sums;
}

// By all lanes of a warp: each lane's value to the exact sum of its entry, if it has one. The values of lanes that have
// the same are one number, for as many entries as a warp has as a rule.
SCOREMOD_FUNCTION void add_by_entries(long long* sums, int entry, float value) {
  constexpr unsigned kNone = (unsigned)kNoEntry;
  constexpr int kRounds = 4;
  unsigned own = (unsigned)entry;
#pragma unroll 1
  for (int round = 0; round < kRounds; ++round) {
    unsigned least = own;
    for (int distance = 1; distance < 32; distance *= 2) {
      const unsigned other = exchange_bits(least, distance);
      least = other < least ? other : least;
    }
    if (least == kNone) return;
    const float sum = sum_of_warp(own == least ? value : 0.0f);
    if (threadIdx.x % 32 == 0) add_to(sums, (long long)least, sum);
    if (own == least) own = kNone;
  }
  if (own != kNone) add_to(sums, (long long)own, value);
}

// The sums that a thread keeps, in shared memory: in banks of its own whatever the entry.
struct TableSums {
  TableSlot* own;

  // `shared` has kTableSlots of each thread.
  SCOREMOD_MEMBER void begin(TableSlot* shared) {
    own = shared + threadIdx.x;
    for (int i = 0; i < kTableSlots; ++i) own[i * kThreads] = {kNoEntry, 0.0f};
  }
  SCOREMOD_MEMBER void add(long long* sums, int entry, float gain) {
    if (gain == 0.0f) return;
    constexpr unsigned kGoldenRatio = 0x9e3779b9u;  // times 2^32: neighbouring entries get places far apart
    TableSlot& slot = own[(((unsigned)entry * kGoldenRatio) >> (32 - kTableSlotBits)) * kThreads];
    const TableSlot before = slot;
    if (before.entry == entry) gain += before.sum;
    if (before.entry != entry && before.entry != kNoEntry) add_to(sums, (long long)before.entry, before.sum);
    slot = {entry, gain};
  }
  SCOREMOD_MEMBER void add(const Arguments& p, const Gains& gains) {
#pragma unroll
    for (int t = 0; t < kTableReads; ++t)
      add(table_sums(p), gains.entries[t], gains.of_element[kFirstTableRead - kRowTargets + t]);
  }
  SCOREMOD_MEMBER void finish(const Arguments& p) {
#pragma unroll 1
    for (int i = 0; i < kTableSlots; ++i) add_by_entries(table_sums(p), own[i * kThreads].entry, own[i * kThreads].sum);
  }
};
