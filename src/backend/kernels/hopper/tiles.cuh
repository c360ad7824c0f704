// Tiles in shared memory as WGMMA reads them: the instructions of sm_90, the loads of a producer warpgroup, and the
// WGMMAs that the attention kernels issue. The instructions are WGMMA (wgmma.mma_async), TMA loads
// (cp.async.bulk.tensor), mbarriers and named barriers. By setmaxnreg warpgroups hand registers to one another.
#pragma once

#include "backend/kernels/shared/memory.cuh"
#include "backend/kernels/shared/tiles.cuh"

/*{device hopper}*/
#define SCOREMOD_MAPPED_ARGUMENT const __grid_constant__ MappedArguments

// bar.warp.sync (__syncwarp).
SCOREMOD_FUNCTION void warp_barrier() { __syncwarp(); }

// %ctaid.x, which is blockIdx.x, read again: a value computed from it need not stay in registers meanwhile.
SCOREMOD_FUNCTION int block_number() {
  int number;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(number));
  return number;
}

// shfl.sync from lane 0: tells the compiler that a value is the same for all threads of a warp. It then takes none of
// their registers.
SCOREMOD_FUNCTION int uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }

// A tensor map for TMA: a CUtensorMap.
struct alignas(64) TensorMap {
  unsigned long long words[16];
};

// An mbarrier in shared memory. It begins in phase 0; a wait for a phase returns when the phase is over.
using Barrier = unsigned long long;

// mbarrier.init.
SCOREMOD_FUNCTION void mbarrier_init(Barrier* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// fence.mbarrier_init: a thread that initialized mbarriers calls it before the CTA's next barrier.
SCOREMOD_FUNCTION void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// mbarrier.arrive.
SCOREMOD_FUNCTION void arrive(Barrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// mbarrier.arrive.expect_tx: arrives, and makes the phase wait for that many bytes of TMA loads.
SCOREMOD_FUNCTION void arrive_and_expect(Barrier* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
// cp.async.mbarrier.arrive.noinc: arrives when the thread's cp.async copies so far are there. WGMMA reads them after
// fence_proxy_async() by a thread that waited for the phase.
SCOREMOD_FUNCTION void arrive_after_copies(Barrier* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// mbarrier.try_wait.parity, repeated until the phase is over.
SCOREMOD_FUNCTION void mbarrier_wait(Barrier* barrier, int phase) {
  unsigned done = 0;
  while (done == 0) {
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "r"(phase)
                 : "memory");
  }
}

// prefetch.tensormap: called ahead of the first TMA load, which would wait for the map.
SCOREMOD_FUNCTION void fetch_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// cp.async.bulk.tensor.4d (TMA load) of a box: 64 dims from `dim` and the map's number of rows from `row`. Elements
// beyond the tensor are zeros.
SCOREMOD_FUNCTION void tma_load(void* shared, const TensorMap* map, Barrier* barrier, int dim, int row, int h, int b) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(dim), "r"(row), "r"(h), "r"(b)
      : "memory");
}
// cp.async.bulk: copies `bytes`, which is a multiple of 16, as are both addresses.
SCOREMOD_FUNCTION void copy_bytes(void* shared, const void* from, int bytes, Barrier* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}
// fence.proxy.async: makes a thread's own writes to shared memory visible to WGMMA and TMA. A barrier for the other
// threads follows.
SCOREMOD_FUNCTION void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// stmatrix.x4, the inverse of load_matrices(): lane l points to row l % 8 of matrix l / 8. It has elements 2 (l % 4)
// and the next of row l / 4 of each.
SCOREMOD_FUNCTION void store_matrices(Half* row, const unsigned (&in)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
               "r"(in[0]), "r"(in[1]), "r"(in[2]), "r"(in[3])
               : "memory");
}

// red.global.add.v4.f32: adds to four floats of global memory, at a multiple of 16 bytes, which other threads may add
// to at the same time.
SCOREMOD_FUNCTION void add_to_memory(float* to, const float (&values)[4]) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(values[0]), "f"(values[1]),
               "f"(values[2]), "f"(values[3])
               : "memory");
}

// Named barrier (barrier.cta.sync, or bar.sync) of `threads` threads; numbers 0 and 1 are block_barrier()'s.
SCOREMOD_FUNCTION void meet(int number, int threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
// Named barrier arrival (barrier.cta.arrive, or bar.arrive): other threads wait for it in meet().
SCOREMOD_FUNCTION void arrive_at(int number, int threads) {
  asm volatile("barrier.cta.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// fma.rn.f32 as volatile assembly: sum += x y in program order. Deferring many elements would cost registers that
// WGMMAs need.
SCOREMOD_FUNCTION void add_in_order(float& sum, float x, float y) {
  asm volatile("fma.rn.f32 %0, %1, %2, %0;" : "+f"(sum) : "f"(x), "f"(y));
}

// setmaxnreg.inc: a consumer warpgroup takes registers.
template <int kRegisters>
SCOREMOD_FUNCTION void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
// setmaxnreg.dec: a producer warpgroup releases registers.
template <int kRegisters>
SCOREMOD_FUNCTION void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// The lower half of a WGMMA matrix descriptor: the tile's address, and the stride between its blocks of 64 columns of
// 16-bit elements. A block's row is 128 bytes, in the 128-byte swizzle, and a tile begins at a multiple of 1024 bytes.
// The upper half is the same for all tiles: eight rows are 1024 bytes, and the swizzle is of 128 bytes.
#define SCOREMOD_UPPER_HALF "0x40000040"
SCOREMOD_FUNCTION unsigned tile_view(const Half* tile, int rows) {
  return (shared_address(tile) & 0x3ffffu) >> 4 | (unsigned)(rows * 128) >> 4 << 16;
}
SCOREMOD_FUNCTION unsigned moved_by(unsigned view, int bytes) { return view + (unsigned)(bytes >> 4); }

// wgmma.fence begins a group of WGMMAs, and wgmma.commit_group ends it. wgmma.wait_group returns when at most kLeft
// later groups are in flight. Until then nothing else may touch the registers and accumulators of the group.
SCOREMOD_FUNCTION void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
SCOREMOD_FUNCTION void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kLeft>
SCOREMOD_FUNCTION void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}
// fence_operand for the compiler: uses of these values before it stay before, and uses after it stay after.
template <int kCount>
SCOREMOD_FUNCTION void fence_operand(float (&values)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    asm volatile("" : "+f"(values[i][0]), "+f"(values[i][1]), "+f"(values[i][2]), "+f"(values[i][3])::"memory");
}
template <int kCount>
SCOREMOD_FUNCTION void fence_operand(unsigned (&values)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    asm volatile("" : "+r"(values[i][0]), "+r"(values[i][1]), "+r"(values[i][2]), "+r"(values[i][3])::"memory");
}

// wgmma.mma_async.m64nNk16 for N = kColumns: d (+)= a b, 64 x 16 by 16 x kColumns, with the accumulators in the layout
// of Sums. If `adds` is false, d is the product alone.
template <int kColumns>
struct Product {
  // Both a and b come from shared memory, with their columns along the sum.
  SCOREMOD_MEMBER static void of_rows(float (&d)[kColumns / 8][4], unsigned a, unsigned b, bool adds);
  // Both a and b come from shared memory, with their rows along the sum; a is transposed.
  SCOREMOD_MEMBER static void of_columns(float (&d)[kColumns / 8][4], unsigned a, unsigned b, bool adds);
  // a comes from registers, b from shared memory with its rows along the sum.
  SCOREMOD_MEMBER static void of_registers(float (&d)[kColumns / 8][4], const unsigned (&a)[4], unsigned b, bool adds);
};
/*{product}*/
template <>
struct Product</*{columns}*/ 8 /*{}*/> {
  static constexpr int kColumns = /*{columns}*/ 8 /*{}*/;
  SCOREMOD_MEMBER static void of_rows(float (&d)[kColumns / 8][4], unsigned a, unsigned b, bool adds) {
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, /*{r2}*/%6/*{}*/, 0;\n"
        "mov.b64 a, {/*{r0}*/%4/*{}*/, " SCOREMOD_UPPER_HALF "};\nmov.b64 b, {/*{r1}*/%5/*{}*/, " SCOREMOD_UPPER_HALF
        "};\n"
        "wgmma.mma_async.sync.aligned.m64n/*{columns}*/8/*{}*/k16.f32./*{type}*/bf16.bf16/*{}*/ "
        "{/*{sums}*/%0, %1, %2, %3/*{}*/}, a, b, p, 1, 1, 0, 0;\n}"
        : /*{operands}*/ "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]) /*{}*/
        : "r"(a), "r"(b), "r"((int)adds));
  }
  SCOREMOD_MEMBER static void of_columns(float (&d)[kColumns / 8][4], unsigned a, unsigned b, bool adds) {
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, /*{r2}*/%6/*{}*/, 0;\n"
        "mov.b64 a, {/*{r0}*/%4/*{}*/, " SCOREMOD_UPPER_HALF "};\nmov.b64 b, {/*{r1}*/%5/*{}*/, " SCOREMOD_UPPER_HALF
        "};\n"
        "wgmma.mma_async.sync.aligned.m64n/*{columns}*/8/*{}*/k16.f32./*{type}*/bf16.bf16/*{}*/ "
        "{/*{sums}*/%0, %1, %2, %3/*{}*/}, a, b, p, 1, 1, 1, 1;\n}"
        : /*{operands}*/ "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]) /*{}*/
        : "r"(a), "r"(b), "r"((int)adds));
  }
  SCOREMOD_MEMBER static void of_registers(float (&d)[kColumns / 8][4], const unsigned (&a)[4], unsigned b, bool adds) {
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 b;\nsetp.ne.b32 p, /*{r5}*/%9/*{}*/, 0;\n"
        "mov.b64 b, {/*{r4}*/%8/*{}*/, " SCOREMOD_UPPER_HALF
        "};\n"
        "wgmma.mma_async.sync.aligned.m64n/*{columns}*/8/*{}*/k16.f32./*{type}*/bf16.bf16/*{}*/ "
        "{/*{sums}*/%0, %1, %2, %3/*{}*/}, {/*{quad}*/%4, %5, %6, %7/*{}*/}, b, p, 1, 1, 1;\n}"
        : /*{operands}*/ "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]) /*{}*/
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"((int)adds));
  }
};
/*{}*/
/*{}*/

// Constants of Hopper kernels beside those of shared/elements.cuh.
constexpr int kBoxRows = /*{box_rows}*/ 32 /*{}*/;         // the rows of each TMA load
constexpr int kQueryStages = /*{query_stages}*/ 1 /*{}*/;  // the forward's stages of q tiles
constexpr int kKeyStages = /*{key_stages}*/ 2 /*{}*/;      // the dQ kernel's stages of k and v tiles
// Whether TMA loads an operand that varies along queries and keys, a tile for each tile of scores, as it does k and v.
constexpr bool kLoadsBias = /*{loads_bias}*/ false /*{}*/;
// Orders of dq's work if kFused. fence.proxy.async lets MMAs read a step's gradients, and waits for reductions to
// global memory in flight. The fence or the reductions come early or late.
enum DqOrder { kFenceAtOnce, kLateFence, kEarlyAdditions };
constexpr DqOrder kDqOrder = /*{dq_order}*/ kFenceAtOnce /*{}*/;

// The argument of a Hopper kernel; the others have the part from `rest` on.
struct MappedArguments {
  TensorMap q, k, v, d_o, copied;
  Arguments rest;
};

// Whether TMA can load paged keys: the rows of a box lie in one page.
constexpr bool kPagesHoldBoxes = !kPaged || kBlockRows % kBoxRows == 0;

constexpr int kGroup = 128;  // threads of a warpgroup
constexpr int kGroups = kThreads / kGroup;
// Registers of a thread: the consumers and one producer warpgroup share 64 Ki (setmaxnreg). A backward that has the
// scores of half a step at once has most accumulators. A persistent one keeps its place in the work beside them.
constexpr bool kMostRegisters = kFused && (kPart < kStep || kPersistent);
constexpr int kProducerRegisters = kMostRegisters ? 24 : kGroups == 2 ? 40 : 32;
constexpr int kConsumerRegisters = kMostRegisters ? 240 : kGroups == 2 ? 232 : 160;
// Numbers of named barriers: one for the producers, and two for each consumer warpgroup.
constexpr int kProducerBarrier = 2, kTurns = 3, kWarpgroupBarrier = 8;

// The number of a thread's warpgroup. group_number() tells the compiler that it is the same for all threads of a warp,
// at the price of a shuffle.
SCOREMOD_FUNCTION int own_group() { return threadIdx.x / kGroup; }
SCOREMOD_FUNCTION int group_number() { return uniform(own_group()); }

// Named barrier (bar.sync) of the threads of a consumer warpgroup.
SCOREMOD_FUNCTION void warpgroup_sync() { meet(kWarpgroupBarrier + own_group(), kGroup); }

SCOREMOD_FUNCTION constexpr int blocks_of(int dim) { return SwizzledTile{1, dim}.blocks; }
SCOREMOD_FUNCTION constexpr int tile_bytes(int rows, int dim) { return SwizzledTile{rows, dim}.bytes; }
static_assert(sizeof(Barrier) == kBarrierBytes, "as memory.cuh has it");

// Shared memory from the first address on that the 128-byte swizzle allows.
SCOREMOD_FUNCTION unsigned char* aligned_tiles(unsigned char* shared) {
  return shared + (0u - shared_address(shared)) % kSwizzleAlignment;
}

// The address of the eight dims that include `dim`, in the 128-byte swizzle.
template <int kTileRows>
SCOREMOD_FUNCTION Half* word_of_tile(Half* tile, int row, int dim) {
  const int word = (dim % 64 / 8) ^ (row % 8);
  return tile + dim / 64 * kTileRows * 64 + row * 64 + word * 8;
}

// Loads rows first, first + 1, ... of a batch and head by TMA, or element by element if a row is not aligned. All
// producers call it, or one warp of them. Rows from `end` on are zeros, or in a varlen tensor rows of the next
// sequences, which the mask leaves out. It loads kDim dims from `first_dim` on; those from `end_dim` on are zeros. It
// completes a phase of `full` with one arrival.
template <int kTileRows, int kDim, int kFillers = kGroup>
SCOREMOD_FUNCTION void fill_tile(Half* tile, const TensorArgument& tensor, const TensorMap& map, Barrier* full, int b,
                                 int h, int first, int end, int first_dim = 0, int end_dim = kDim) {
  const int thread = (threadIdx.x - kThreads) % kFillers;
  if (tensor.aligned) {
    if (thread != 0) return;
    const bool ragged = (kRaggedQueries || kRaggedKeys) && tensor.places != nullptr;
    const int batch = ragged ? 0 : b, from = ragged ? tokens_of(tensor, b).first + first : first;
    arrive_and_expect(full, tile_bytes(kTileRows, kDim));
#pragma unroll
    for (int block = 0; block < blocks_of(kDim); ++block)
#pragma unroll
      for (int row = 0; row < kTileRows; row += kBoxRows)
        tma_load(tile + (block * kTileRows + row) * 64, &map, full, first_dim + block * 64, from + row, h, batch);
    return;
  }
  const Rows from = rows_of(tensor, b, h);
#pragma unroll 1
  for (int i = thread; i < kTileRows * padded(kDim); i += kFillers) {
    const int row = i / padded(kDim), dim = i % padded(kDim);
    const bool there = first + row < end && dim < kDim && first_dim + dim < end_dim;
    *(word_of_tile<kTileRows>(tile, row, dim) + dim % 8) =
        there ? from.at(first + row)[(first_dim + dim) * from.dim] : (Half)0;
  }
  fence_proxy_async();
  if (kFillers == 32)
    warp_barrier();
  else
    meet(kProducerBarrier, kGroup);
  if (thread == 0) arrive(full);
}

// Finds the page of each box of a tile of keys or values: lane i of a warp has that of box i. A box without keys, or of
// no page of the pool, has the page behind the last, of which TMA loads zeros. Callers look up a tile's pages before
// they wait for room for it.
SCOREMOD_FUNCTION int page_of_box(const TensorArgument& tensor, int b, int first, int keys) {
  if (!kPaged || !kPagesHoldBoxes) return 0;
  const int row = first + threadIdx.x % 32 * kBoxRows;
  if (row >= keys || row >= first + kKeys) return tensor.count;
  const int page = tensor.places[b * tensor.place_batch + row / kBlockRows * tensor.place_step];
  return page >= 0 && page < tensor.count ? page : tensor.count;
}

// Copies the box of rows in which a sequence ends, and zeros behind its keys: a weight of 0 does not hide what is not a
// number there. All lanes of a warp call it.
template <int kDim>
SCOREMOD_FUNCTION void copy_last_box(Half* tile, const Rows& from, int first, int box, int keys, int page) {
  constexpr int kWords = blocks_of(kDim) * 8;
#pragma unroll 1
  for (int i = threadIdx.x % 32; i < kBoxRows * kWords; i += 32) {
    const int row = box * kBoxRows + i / kWords, dim = i % kWords * 8;
    const bool there = first + row < keys && dim < kDim;
    copy_ahead<16>(word_of_tile<kKeys>(tile, row, dim), from.at(first + (there ? row : 0), page) + (there ? dim : 0),
                   there ? 16 : 0);
  }
  wait_for_copies();
  fence_proxy_async();
}

// fill_tile() for keys or values in pages, by TMA. A warp calls it, and each lane has its box's page. Of keys a mask
// hides what lies behind the last.
template <int kDim, bool kAreValues>
SCOREMOD_FUNCTION void fill_paged_tile(Half* tile, const TensorArgument& tensor, const TensorMap& map, Barrier* full,
                                       int b, int h, int first, int keys, int page) {
  constexpr int kBoxes = kKeys / kBoxRows;
  const int lane = threadIdx.x % 32, last = (keys - first) / kBoxRows;
  const bool copies = kAreValues && last < kBoxes && (keys - first) % kBoxRows != 0;
  if (copies) {
    const int of_last = from_lane(page, last);
    copy_last_box<kDim>(tile, rows_of(tensor, b, h), first, last, keys,
                        of_last < tensor.count ? of_last : tensor.count - 1);
    warp_barrier();
  }
  if (lane == 0) arrive_and_expect(full, tile_bytes(copies ? kKeys - kBoxRows : kKeys, kDim));
  warp_barrier();
  if (lane >= kBoxes || (copies && lane == last)) return;
#pragma unroll
  for (int block = 0; block < blocks_of(kDim); ++block)
    tma_load(tile + (block * kKeys + lane * kBoxRows) * 64, &map, full, block * 64,
             (first + lane * kBoxRows) % kBlockRows, h, page);
}

// fill_tile() for a tile of keys, or of values, whose page_of_box() was found before.
template <int kDim, bool kAreValues, int kFillers = kGroup>
SCOREMOD_FUNCTION void fill_keys(Half* tile, const TensorArgument& tensor, const TensorMap& map, Barrier* full, int b,
                                 int h, int first, int keys, int page) {
  if constexpr (kPaged) {
    if (tensor.aligned) {
      if (kFillers == 32 || threadIdx.x < kThreads + 32)
        fill_paged_tile<kDim, kAreValues>(tile, tensor, map, full, b, h, first, keys, page);
      return;
    }
  }
  fill_tile<kKeys, kDim, kFillers>(tile, tensor, map, full, b, h, first, keys);
}

// consumer_release: one arrival on the `empty` mbarrier for each warp of consumers.
SCOREMOD_FUNCTION void consumer_release(Barrier* empty) {
  warp_barrier();
  if (threadIdx.x % 32 == 0) arrive(empty);
}

// The next work tile of a persistent kernel's CTA, for its producers; `alone` says that they are one warp. Its first
// one has the CTA's number, and later ones come from an atomic counter: `call.taken` is how many were taken. `shared`
// is a word of shared memory.
SCOREMOD_FUNCTION int take_item(const AttentionArguments& call, int* shared, bool alone) {
  int number = 0;
  if (threadIdx.x == kThreads) number = call.blocks + take_number(call.taken);
  if (alone) return uniform(number);
  meet(kProducerBarrier, kGroup);  // all have read the last one
  if (threadIdx.x == kThreads) *shared = number;
  meet(kProducerBarrier, kGroup);
  return *shared;
}

// A ring of stages: the next one, and the phase of its mbarriers.
template <int kStages>
struct Ring {
  int stage = 0, phase = 0;

  SCOREMOD_MEMBER void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// Issues the WGMMAs of sums = a b^T. The warpgroup has 64 rows of kRowsA of a, and b has kColumns of kRowsB rows; both
// have kDim.
template <int kDim, int kRowsA, int kRowsB, int kColumns>
SCOREMOD_FUNCTION void issue_wgmma_abt(Sums<1, kColumns>& sums, unsigned a, unsigned b) {
#pragma unroll
  for (int k = 0; k < padded(kDim); k += 16)
    Product<kColumns>::of_rows(sums.at[0], moved_by(a, k / 64 * kRowsA * 128 + k % 64 * 2),
                               moved_by(b, k / 64 * kRowsB * 128 + k % 64 * 2), k != 0);
}

// Issues the WGMMAs of sums += w b, with w in registers and kInner rows of kDim of b in shared memory.
template <int kDim, int kInner>
SCOREMOD_FUNCTION void issue_wgmma_ab(Sums<1, padded(kDim)>& sums, const unsigned (&w)[kInner / 16][4], unsigned b) {
#pragma unroll
  for (int k = 0; k < kInner; k += 16)
    Product<padded(kDim)>::of_registers(sums.at[0], w[k / 16], moved_by(b, k * 128), true);
}

// Rounds accumulators to 16 bits, as the left operand of a WGMMA.
template <int kInner>
SCOREMOD_FUNCTION void round_to_16bit(unsigned (&w)[kInner / 16][4], const Sums<1, kInner>& sums) {
#pragma unroll
  for (int k = 0; k < kInner / 16; ++k) round_to_left(w[k], sums, 0, 16 * k);
}

// Scheduler barriers: consumer warpgroups issue their WGMMAs in turns (ping-pong), so that one's run beside the other's
// arithmetic.
SCOREMOD_FUNCTION void scheduler_begin() {
  if (own_group() == kGroups - 1) arrive_at(kTurns, 2 * kGroup);
}
SCOREMOD_FUNCTION void scheduler_wait() { meet(kTurns + own_group(), 2 * kGroup); }
SCOREMOD_FUNCTION void scheduler_pass() { arrive_at(kTurns + (own_group() + 1) % kGroups, 2 * kGroup); }

// Stores rows below `end` of the accumulators times a factor of each row. They go through the warpgroup's rows of a
// tile of kTileDim that no WGMMA reads any more, so that neighbouring threads write neighbouring words. An element of
// another dtype goes to memory directly.
template <int kDim, int kTileDim, class Element>
SCOREMOD_FUNCTION void store_through_tile(const Sums<1, padded(kDim)>& sums, const float (&factors)[1][2],
                                          const RowsOf<Element>& to, Half* tile, int first, int end) {
  if (!kSameType<Element, Half>) return store_rows<kDim>(sums, factors, to, first, end);
  constexpr int kRows = kWarps * 16, kAtOnce = blocks_of(kTileDim) * 64;
  constexpr int kWords = (padded(kDim) < kAtOnce ? padded(kDim) : kAtOnce) / 8;
  const int lane = threadIdx.x % 32;
  Half* const own = tile + threadIdx.x / 32 * 16 * 64;
  warpgroup_sync();
#pragma unroll
  for (int begin = 0; begin < padded(kDim); begin += kAtOnce) {
    if (begin != 0) warp_barrier();
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int n = 0; n < kWords && begin + n * 8 < padded(kDim); ++n) {
        const float* const pair = &sums.at[0][begin / 8 + n][half * 2];
        const int row = half * 8 + lane / 4, word = n % 8 ^ lane / 4;
        *(unsigned*)(own + n / 8 * kRows * 64 + row * 64 + word * 8 + lane % 4 * 2) =
            pair_of(pair[0] * factors[0][half], pair[1] * factors[0][half]);
      }
    warp_barrier();
#pragma unroll 2
    for (int i = lane; i < 16 * kWords; i += 32) {
      const int row = i / kWords, n = i % kWords, dim = begin + n * 8;
      if (first + row >= end || dim >= kDim) continue;
      const Half* const from = own + n / 8 * kRows * 64 + row * 64 + (n % 8 ^ row % 8) * 8;
      Half* const at = (Half*)to.at(first + row);
      if (to.aligned) {
        copy_word(at + dim, from);
      } else {
#pragma unroll 1
        for (int j = 0; j < 8 && dim + j < kDim; ++j) at[(dim + j) * to.dim] = from[j];
      }
    }
  }
}
