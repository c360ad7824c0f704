// Producers of hopper_wide_decode. One warp finds the tiles of keys, and the others load their rows. TMA loads them
// where a box of rows lies in one piece, else cp.async gathers them: a page may have a single token. Where v is a view
// of k's first dims, as in multi-head latent attention, each tile is loaded once.
#pragma once

#include "backend/kernels/hopper/tiles.cuh"
#include "backend/kernels/split_kv/key_shares.cuh"

static_assert(kValueGroups == 1 || (kTeams == 1 && kGroups == 2 && kValueGroups == 2), "a warpgroup for each half");
static_assert(kDimV % 64 == 0 && kKeys == 64, "a warpgroup's dims begin with a block of a swizzled tile");

constexpr WideDecodeStorage kWideStorage{kDimQk, kCtaDimV, kQueries, kKeys, kStages, kThreads};
static_assert(sizeof(OpenTile) <= kWideStorage.open_tile_bytes, "as storage.cuh has it");
static_assert(kWideStorage.weights_bytes >= kThreads * (int)sizeof(long long), "sums of chunks lie there before");
static_assert(kWideStorage.weights_bytes >= 2 * kThreads * (int)sizeof(float), "forward_row() has room there");

// Registers of a thread, of 64 Ki (setmaxnreg): half of v takes 128 accumulators of each consumer.
constexpr int kWideProducerRegisters = 72, kWideConsumerRegisters = 216;
// Named barriers of both consumer warpgroups: weights are there, and their place is free.
constexpr int kWeightsFull = kTurns, kWeightsEmpty = kTurns + 1;
// Producers: all warps copy but the last one, which finds the tiles.
constexpr int kCopierWarps = 3, kCopiers = 32 * kCopierWarps;
static_assert(kProducers == 0 || (kProducers == kGroup && kCopiers + 32 == kGroup), "setmaxnreg is for warpgroups");

// A tile of keys, as the warp that finds them tells the copiers, and these the consumers of its stage. A stage of v
// beside one of k has nothing to tell.
struct Step {
  static constexpr int kNoKeys = -1, kEnd = -2;

  int tile;    // twice its number, and 1 more where it is partial; or one of the above
  int begins;  // whether it is the first of a piece
  int b, kv_head;
};
// A step with its piece, where that begins.
struct PieceStep : Step {
  TilePiece piece;
};
static_assert(sizeof(PieceStep) <= kWideStorage.step_bytes, "as storage.cuh has it");

// Whether v is a view of k's first dims, so that a tile of k is one of v, too. A wider v has dims that k's tiles lack.
SCOREMOD_FUNCTION bool is_view_of_keys(const TensorArgument& k, const TensorArgument& v) {
  return kCtaDimV <= kDimQk && v.data == k.data && v.batch == k.batch && v.head == k.head && v.row == k.row &&
         v.dim == k.dim && v.places == k.places && v.place_batch == k.place_batch && v.place_step == k.place_step;
}

// Whether TMA loads the tiles that have all their rows.
SCOREMOD_FUNCTION bool loads_by_tma(const AttentionArguments& call) {
  return kPagesHoldBoxes && call.k.aligned == kMappedRows &&
         (call.v.aligned == kMappedRows || is_view_of_keys(call.k, call.v));
}

// A CTA's shared memory.
struct WideTiles {
  static constexpr int kTileBytes = kWideStorage.key_tile.bytes;

  Half *q, *ring;
  unsigned char* weights;
  float* factors;
  Barrier *full, *empty, *found_full, *found_empty;
  PieceStep *steps, *found;  // of stages, and of the tiles that were found ahead
  OpenTile* open_tiles;
  int* not_finite;

  SCOREMOD_MEMBER explicit WideTiles(unsigned char* shared) {
    constexpr WideDecodeStorage kAt = kWideStorage;
    q = (Half*)(shared + kAt.q);
    ring = (Half*)(shared + kAt.ring);
    weights = shared + kAt.weights;
    factors = (float*)(shared + kAt.factors);
    full = (Barrier*)(shared + kAt.barriers);
    empty = full + kStages;
    found_full = empty + kStages;
    found_empty = found_full + kStages;
    steps = (PieceStep*)(shared + kAt.steps);
    found = steps + kStages;
    open_tiles = (OpenTile*)(shared + kAt.open_tiles);
    not_finite = (int*)(shared + kAt.not_finite);
  }
  SCOREMOD_MEMBER Half* stage(int number) const { return ring + number * (kTileBytes / 2); }
  // By one thread. Each copier arrives when its copies are there, and each of their warps by itself. Where TMA loads
  // tiles, only the warps do.
  SCOREMOD_MEMBER void begin(const MappedArguments& all) const {
    const bool by_tma = loads_by_tma(all.rest.call);
    if (by_tma) fetch_map(&all.k);
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(full + i, by_tma ? kCopierWarps : kCopiers + kCopierWarps);
      mbarrier_init(empty + i, kWarps);
      mbarrier_init(found_full + i, 1);
      mbarrier_init(found_empty + i, kCopierWarps);
    }
    for (int i = 0; i < kWideStorage.open_tiles_count; ++i) {
      open_tiles[i].own.b = -1;
      not_finite[i] = 0;
    }
    fence_mbarrier_init();
  }
};

// Loads a tile whose rows are all there by TMA, each copier warp some of its blocks of 64 dims. Places are looked up
// before.
struct MappedRows {
  static constexpr int kBoxes = kKeys / kBoxRows;

  int batch[kBoxes], row[kBoxes];

  SCOREMOD_MEMBER void look_up(const TensorArgument& tensor, const Step& step) {
#pragma unroll
    for (int i = 0; i < kBoxes; ++i) {
      batch[i] = step.b;
      row[i] = step.tile / 2 * kKeys + i * kBoxRows;
      if (kPaged) {
        const int* const page = tensor.places + step.b * tensor.place_batch + row[i] / kBlockRows * tensor.place_step;
        batch[i] = clamped(*page, 0, tensor.count - 1);
        row[i] %= kBlockRows;
      } else if (kRaggedKeys && tensor.places != nullptr) {
        batch[i] = 0;
        row[i] += tokens_of(tensor, step.b).first;
      }
    }
  }
  template <int kDim>
  SCOREMOD_MEMBER void load(Half* tile, const TensorMap& map, Barrier* full, int kv_head) const {
    if (threadIdx.x % 32 != 0) return;
    const int warp = (threadIdx.x - kThreads) / 32;
    arrive_and_expect(full, (blocks_of(kDim) - warp + kCopierWarps - 1) / kCopierWarps * kKeys * 128);
    for (int block = warp; block < blocks_of(kDim); block += kCopierWarps)
#pragma unroll
      for (int i = 0; i < kBoxes; ++i)
        tma_load(tile + (block * kKeys + i * kBoxRows) * 64, &map, full, block * 64, row[i], kv_head, batch[i]);
  }
};

// A stage is full when all copies and other writes before this are there.
SCOREMOD_FUNCTION void fill_done(Barrier* full, bool by_tma) {
  if (by_tma) wait_for_copies();
  fence_proxy_async();
  warp_barrier();
  if (threadIdx.x % 32 == 0) arrive(full);
  if (!by_tma) arrive_after_copies(full);
}

// Loads rows of a tile of keys into a swizzled tile, by all copiers. Eight lanes copy a row, 128 bytes at a time, and a
// warp four rows. Places are looked up before, so that copies follow each other without other instructions.
struct GatheredRows {
  static constexpr int kTogether = 4, kFours = kKeys / kTogether, kOwn = (kFours + kCopierWarps - 1) / kCopierWarps;

  const Half* places[kOwn];
  int first, end;  // rows from `end` on are zeros
  bool aligned;

  SCOREMOD_MEMBER static int four(int i) { return i * kCopierWarps + (int)(threadIdx.x - kThreads) / 32; }
  SCOREMOD_MEMBER static int row(int i) { return four(i) * kTogether + (int)threadIdx.x % 32 / 8; }
  SCOREMOD_MEMBER void look_up(const TensorArgument& tensor, const Step& step, int keys) {
    const Rows from = rows_of(tensor, step.b, step.kv_head);
    first = step.tile / 2 * kKeys;
    end = keys;
    aligned = from.aligned;
    if (!aligned) return;
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
      places[i] = from.at(first + row(i) < end ? first + row(i) : end - 1) + threadIdx.x % 8 * 8;
  }
  // The rows have kDim.
  template <int kDim>
  SCOREMOD_MEMBER void copy(Half* tile, const TensorArgument& tensor, const Step& step) const {
    if (!aligned) return copy_elements<kDim>(tile, rows_of(tensor, step.b, step.kv_head));
    const int word = threadIdx.x % 8;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (kFours % kCopierWarps != 0 && four(i) >= kFours) break;
      Half* const to = tile + row(i) * 64 + (word ^ row(i) % 8) * 8;
      const int bytes = first + row(i) < end ? 16 : 0;
#pragma unroll
      for (int block = 0; block < blocks_of(kDim); ++block) {
        const bool copied = kDim % 64 == 0 || block * 64 + word * 8 < kDim;
        copy_ahead<16>(to + block * kKeys * 64, places[i] + (copied ? block * 64 : 0), copied ? bytes : 0);
      }
    }
  }
  template <int kDim>
  SCOREMOD_MEMBER void copy_elements(Half* tile, const Rows& from) const {
#pragma unroll 1
    for (int i = threadIdx.x - kThreads; i < kKeys * padded(kDim); i += kCopiers) {
      const int row = i / padded(kDim), dim = i % padded(kDim);
      const bool there = first + row < end && dim < kDim;
      *(word_of_tile<kKeys>(tile, row, dim) + dim % 8) = there ? from.at(first + row)[dim * from.dim] : (Half)0;
    }
  }
};

// Finds the CTA's tiles of keys, one piece after the other. All lanes of a warp call it, and the first one stores.
struct StepWalk {
  PieceWalk pieces;
  KeyWalk keys;
  int b, kv_head;  // of the piece
  bool open;       // whether the piece may have more keys

  SCOREMOD_MEMBER void begin(const AttentionArguments& call, const long long* sums, const OpenParts& parts) {
    pieces.begin(call, sums, parts.ctas.first_of(parts.cta), parts.end());
    open = false;
  }
  // Returns whether there is one.
  SCOREMOD_MEMBER bool next(const Arguments& p, PieceStep& to) {
    const bool stores = threadIdx.x % 32 == 0, begins = !(open && keys.next(p, b));
    int tile = Step::kEnd;
    TilePiece piece;
    if (!begins) {
      tile = own_tile();
    } else if (pieces.next(p.call, piece)) {
      b = piece.own.b;
      kv_head = piece.own.kv_head;
      keys.begin_all(p.call, piece.own, piece.chunks());
      open = keys.next(p, b);
      tile = open ? own_tile() : Step::kNoKeys;
      if (stores) to.piece = piece;
    }
    if (stores) {
      to.tile = tile;
      to.begins = begins;
      to.b = b;
      to.kv_head = kv_head;
    }
    return tile != Step::kEnd;
  }
  SCOREMOD_MEMBER int own_tile() const { return keys.tile * 2 + (keys.partial ? 1 : 0); }
};

// By the warp that finds the tiles, ahead of the copiers.
SCOREMOD_FUNCTION void find_tiles(const Arguments& p, const WideTiles& tiles, const OpenParts& parts) {
  StepWalk walk;
  walk.begin(p.call, (const long long*)tiles.weights, parts);
  for (Ring<kStages> ring;; ring.advance()) {
    mbarrier_wait(tiles.found_empty + ring.stage, ring.phase ^ 1);
    const bool more = walk.next(p, tiles.found[ring.stage]);
    if (threadIdx.x % 32 == 0) arrive(tiles.found_full + ring.stage);
    if (!more) return;
  }
}

// Loads k's or v's rows of a step into the next stage of the ring, by all copiers. `waited` is called when there is
// room for it. The places of rows to gather are looked up before.
template <int kDim, class Waited>
SCOREMOD_FUNCTION void fill_stage(const WideTiles& tiles, Ring<kStages>& ring, const TensorArgument& tensor,
                                  const TensorMap& map, const Step& step, int keys, bool by_tma, const Waited& waited) {
  Barrier* const full = tiles.full + ring.stage;
  const bool has_keys = step.tile >= 0, is_whole = has_keys && (step.tile / 2 + 1) * kKeys <= keys;
  if (by_tma && is_whole) {
    MappedRows rows;
    rows.look_up(tensor, step);
    mbarrier_wait(tiles.empty + ring.stage, ring.phase ^ 1);
    waited();
    rows.load<kDim>(tiles.stage(ring.stage), map, full, step.kv_head);
  } else {
    GatheredRows rows;
    if (has_keys) rows.look_up(tensor, step, keys);
    mbarrier_wait(tiles.empty + ring.stage, ring.phase ^ 1);
    waited();
    if (has_keys) rows.copy<kDim>(tiles.stage(ring.stage), tensor, step);
    fill_done(full, by_tma);
  }
  ring.advance();
}

SCOREMOD_FUNCTION void load_tiles(const MappedArguments& all, const WideTiles& tiles) {
  const AttentionArguments& call = all.rest.call;
  const bool is_view = is_view_of_keys(call.k, call.v), by_tma = loads_by_tma(call);
  Ring<kStages> ring;
  for (Ring<kStages> found;; found.advance()) {
    mbarrier_wait(tiles.found_full + found.stage, found.phase);
    const PieceStep& given = tiles.found[found.stage];
    const Step step = given;
    const int keys = step.tile < 0 ? 0 : keys_of(call, step.b);
    fill_stage<kDimQk>(tiles, ring, call.k, all.k, step, keys, by_tma, [&] {
      if (threadIdx.x == kThreads) tiles.steps[ring.stage] = given;
      consumer_release(tiles.found_empty + found.stage);
    });
    if (step.tile == Step::kEnd) break;
    if (step.tile >= 0 && !is_view) fill_stage<kCtaDimV>(tiles, ring, call.v, all.v, step, keys, by_tma, [] {});
  }
  wait_for_copies();
}
