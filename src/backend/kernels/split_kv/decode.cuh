// split_kv_decode is the decode kernel: split-KV with pack-GQA. One CTA has kQueries rows of the heads that share
// a KV head, and one of call.splits shares of its keys. Its teams of warps walk over different keys.
#pragma once

#include "backend/kernels/split_kv/float8_products.cuh"
#include "backend/kernels/split_kv/key_shares.cuh"
#include "backend/kernels/split_kv/partials.cuh"
#include "backend/kernels/split_kv/storage.cuh"

// A team of warps that walks over tiles of keys, of which it has kStages in shared memory; all but one are in flight
// (cp.async).

constexpr int kTeamWarps = kWarps / kTeams, kTeamThreads = 32 * kTeamWarps;
constexpr int kKeyBytes = (int)sizeof(KeyElement);
constexpr StageStorage kStage{kKeys, kDimQk, kDimV, kKeyBytes, kRowScales};
constexpr int kStageElements = kStage.bytes / kKeyBytes;
// Elements from one row of such a tile to the next.
SCOREMOD_FUNCTION constexpr int key_row_length(int dim) { return KeyTile{1, dim, kKeyBytes}.row_bytes / kKeyBytes; }

// load_tile() of a team's keys, whatever their dims and strides.
template <int kDim>
SCOREMOD_FUNCTION void load_any_keys(Half* tile, const Rows& from, int first, int end, int thread) {
  load_tile<kKeys, kDim, kTeamThreads>(tile, from, first, end, thread);
}
template <int kDim>
SCOREMOD_FUNCTION void load_any_keys(Float8* tile, const RowsOf<Float8>& from, int first, int end, int thread) {
  constexpr int kPerStep = 16, kSteps = padded(kDim) / kPerStep;
#pragma unroll 1
  for (int i = thread; i < kKeys * kSteps; i += kTeamThreads) {
    const int row = i / kSteps, dim = i % kSteps * kPerStep;
    const bool there = first + row < end;
    const Float8* const at = there ? from.at(first + row) : from.data;
    Float8* const to = tile + row * key_row_length(kDim) + dim;
    if (from.aligned) {
      const bool copied = there && dim < kDim;
      copy_ahead<kPerStep>(to, copied ? at + dim : from.data, copied ? kPerStep : 0);
    } else {
      for (int j = 0; j < kPerStep; ++j) to[j] = there && dim + j < kDim ? at[(dim + j) * from.dim] : Float8{0};
    }
  }
}

// Whether a tile's rows may lie in several pages. These are looked up a tile ahead, because copies would wait for each.
constexpr bool kLooksUpRows = kPaged && kBlockRows % kKeys != 0;
// The pages of a tile's rows in the pools of k and v: lane i of each warp has those of row i.
struct RowPages {
  int of_keys, of_values;

  SCOREMOD_MEMBER void look_up(const RowsOf<KeyElement>& ks, const RowsOf<KeyElement>& vs, int first, int end) {
    const int own = first + (int)threadIdx.x % 32, row = own < end ? own : end - 1;
    of_keys = ks.page_of(row);
    of_values = vs.page_of(row);
  }
};

// load_any_keys(), in as few instructions as the copies may take. `pages` are those of RowPages; with kKnowsPage, of a
// tile that lies in one page, it is that one.
template <int kDim, bool kKnowsPage = false>
SCOREMOD_FUNCTION void load_keys(KeyElement* tile, const RowsOf<KeyElement>& from, int pages, int first, int end,
                                 int thread) {
  constexpr int kPerWord = kWordElements<KeyElement>, kWords = padded(kDim) / kPerWord;
  constexpr int kRows = kTeamThreads < kWords ? 1 : kTeamThreads / kWords;
  if (!from.aligned || kTeamThreads % kWords != 0) return load_any_keys<kDim>(tile, from, first, end, thread);
  const int row = thread / kWords, dim = thread % kWords * kPerWord;
  const KeyElement* at = (kKnowsPage ? from.at(first, pages) : from.at(first)) + row * from.row + dim;
  KeyElement* const to = tile + row * key_row_length(kDim) + dim;
  // With more rows than a tile has, some threads have none.
  constexpr bool kAllHaveRows = kKeys % kRows == 0;
#pragma unroll
  for (int i = 0; i < kKeys; i += kRows) {
    const int page = kLooksUpRows ? from_lane(pages, (row + i) % 32) : 0;
    if (!kAllHaveRows && row + i >= kKeys) break;
    const bool there = first + row + i < end && dim < kDim;
    if (kLooksUpRows && there) at = from.at(first + row + i, page) + dim;
    copy_line_ahead(to + i * key_row_length(kDim), there ? at : from.data, there ? 16 : 0);
    at += kRows * from.row;
  }
}

// The scales of a tile's keys, and of their values. Those of keys that are not there become 0.
SCOREMOD_FUNCTION void load_row_scales(float* keys_scales, float* values_scales, const Arguments& p, int b, int kv_head,
                                       int first, int end, int thread) {
#pragma unroll 1
  for (int i = thread; i < kKeys; i += kTeamThreads) {
    const bool there = first + i < end;
    const int key = there ? first + i : 0;
    copy_ahead<4>(keys_scales + i, key_scale_at(p, b, kv_head, key), there ? 4 : 0);
    copy_ahead<4>(values_scales + i, value_scale_at(p, b, kv_head, key), there ? 4 : 0);
  }
}

// The team's tiles in shared memory: its rows of q, and its stages. `warp_row` is the first of the warp's rows.
struct TeamTiles {
  Half* q;
  KeyElement* stages;
  int team, thread, warp_row;

  SCOREMOD_MEMBER TeamTiles(Half* all_q, KeyElement* own_stages)
      : q(all_q),
        stages(own_stages),
        team(threadIdx.x / kTeamThreads),
        thread(threadIdx.x % kTeamThreads),
        warp_row(thread / 32 * kWarpRows) {}
  SCOREMOD_MEMBER KeyElement* k(int stage) const { return stages + stage * kStageElements; }
  SCOREMOD_MEMBER KeyElement* v(int stage) const { return k(stage) + kStage.v / kKeyBytes; }
  SCOREMOD_MEMBER float* key_scales(int stage) const { return (float*)(k(stage) + kStage.key_scales / kKeyBytes); }
  SCOREMOD_MEMBER float* value_scales(int stage) const { return (float*)(k(stage) + kStage.value_scales / kKeyBytes); }
};

// Adds the keys that `walk` finds to the team's rows. fill_queries() begins copies of q, and meet_queries() returns
// when all of q is there, prepared for FP8 keys. All of the team's copies are complete in the end, but threads may
// still read the last tile.
template <class Fill, class Meet>
SCOREMOD_FUNCTION void add_keys(const Arguments& p, const TeamTiles& tiles, const KeyShare& own, KeyWalk& walk,
                                int keys, SoftmaxRows& rows, const Fill& fill_queries, const Meet& meet_queries) {
  const AttentionArguments& call = p.call;
  const RowsOf<KeyElement> ks = rows_of<KeyElement>(call.k, own.b, own.kv_head);
  const RowsOf<KeyElement> vs = rows_of<KeyElement>(call.v, own.b, own.kv_head);
  RowPages pages{};
  const auto next = [&] {
    const bool has_next = walk.next(p, own.b);
    if (kLooksUpRows && has_next) pages.look_up(ks, vs, walk.tile * kKeys, keys);
    return has_next;
  };
  bool is_ahead = kLooksUpRows && next();
  // The next tile's number, and whether it is partial, as one; or -1.
  const auto fetch = [&](int stage) {
    int found = -1;
    if (kLooksUpRows ? is_ahead : next()) {
      load_keys<kDimQk>(tiles.k(stage), ks, pages.of_keys, walk.tile * kKeys, keys, tiles.thread);
      load_keys<kDimV>(tiles.v(stage), vs, pages.of_values, walk.tile * kKeys, keys, tiles.thread);
      if (kRowScales)
        load_row_scales(tiles.key_scales(stage), tiles.value_scales(stage), p, own.b, own.kv_head, walk.tile * kKeys,
                        keys, tiles.thread);
      found = walk.tile * 2 + (walk.partial ? 1 : 0);
      if (kLooksUpRows) is_ahead = next();
    }
    return found;
  };
  int ahead[kStages];
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    ahead[i] = fetch(i);
    // Behind the first keys, which take longest to come.
    if (i == 0) fill_queries();
    end_copies();
  }
  wait_for_copies_but<kStages - 2>();
  meet_queries();
  RowFactors factors;
  if (kKeyKind != kElementKeys) factors.read(tiles.q + tiles.warp_row * row_length(kDimQk), key_factor(p, own.kv_head));
  for (int stage = 0; ahead[0] >= 0; stage = stage + 1 == kStages ? 0 : stage + 1) {
    wait_for_copies_but<kStages - 2>();
    team_barrier<kTeamWarps>(tiles.team);  // k and v are there, and nobody reads the last ones any more
    ahead[kStages - 1] = fetch(stage == 0 ? kStages - 1 : stage - 1);
    end_copies();
    Sums<kRowTiles, kKeys> scores;
    scores.clear();
    add_product_of_rows<kDimQk>(scores, tiles.q + tiles.warp_row * row_length(kDimQk), tiles.k(stage));
    if (kKeyKind != kElementKeys) factors.multiply_rows(scores);
    if (kRowScales) multiply_columns(scores, tiles.key_scales(stage));
    online_softmax_step(p, scores, rows, ahead[0] % 2 != 0, own.b, own.h, own.first_row() + tiles.warp_row,
                        ahead[0] / 2 * kKeys);
    if (kRowScales) multiply_columns(scores, tiles.value_scales(stage));
    add_product<kDimV>(rows.output, scores, tiles.v(stage));
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) ahead[i] = ahead[i + 1];
  }
  wait_for_copies();
}

constexpr DecodeStorage kDecodeStorage{kDimQk, kDimV,    kQueries,  kKeys,     kStages,
                                       kTeams, kThreads, kKeyBytes, kRowScales};

/*{kernel split_kv_decode}*/
SCOREMOD_KERNEL(kThreads, kBlocks) split_kv_decode(SCOREMOD_ARGUMENT p) {
  SCOREMOD_SHARED(shared);
  const AttentionArguments& call = p.call;
  const KeyShare own = share_of(call, blockIdx.x);
  const int team = threadIdx.x / kTeamThreads;
  const TeamTiles tiles((Half*)(shared + kDecodeStorage.q),
                        (KeyElement*)(shared + kDecodeStorage.rings) + team * kStages * kStageElements);
  const int keys = keys_of(call, own.b);
  KeyWalk walk;
  walk.begin(call, own, keys, team);
  SoftmaxRows rows;
  rows.clear();
  add_keys(
      p, tiles, own, walk, keys, rows,
      [&] { load_queries(call, own, [&](int row, int dim) { return tiles.q + row * row_length(kDimQk) + dim; }); },
      [&] {
        block_barrier();
        if (kKeyKind == kElementKeys) return;
        prepare_queries<kThreads>(tiles.q, threadIdx.x);
        block_barrier();
      });
  block_barrier();  // nobody reads a tile any more
  end_rows(p, rows, own, team, tiles.warp_row, (float*)(shared + kDecodeStorage.parts));
}
/*{}*/

/*{kernel split_kv_persistent_decode}*/
// The decode kernel for sequences of different lengths, which only device memory knows. As many CTAs as run at once
// share out all keys that there are, and a CTA's teams share out its own. A team goes from one tile of rows to the next
// by itself. It writes o of a tile whose keys it has all, and else a partial.
constexpr PersistentDecodeStorage kPersistentStorage{kDimQk, kDimV,    kQueries,  kKeys,     kStages,
                                                     kTeams, kThreads, kKeyBytes, kRowScales};
static_assert(sizeof(OpenTile) <= kPersistentStorage.open_tile_bytes, "as storage.cuh has it");
static_assert(kPersistentStorage.ring_bytes >= 2 * kTeamThreads * (int)sizeof(float),
              "forward_row() has room in a ring");

// The threads of a team, as those that compute one row together.
struct TeamCrew {
  static constexpr int kCount = kTeamThreads;
  int team, thread;
  SCOREMOD_MEMBER int number() const { return thread; }
  SCOREMOD_MEMBER void sync() const { team_barrier<kTeamWarps>(team); }
};

// Whether the condition holds for a thread of the team; `found` has room for each of its warps.
SCOREMOD_FUNCTION bool any_of_team(const TeamTiles& tiles, bool condition, int* found) {
  bool any = ballot(condition) != 0;
  if (kTeamWarps == 1) return any;
  if (threadIdx.x % 32 == 0) found[tiles.thread / 32] = any ? 1 : 0;
  team_barrier<kTeamWarps>(tiles.team);
#pragma unroll
  for (int i = 0; i < kTeamWarps; ++i) any = any || found[i] != 0;
  return any;
}

// Writes o and lse of a tile all of whose keys the team has. `scratch` is its ring, which nobody reads any more.
SCOREMOD_FUNCTION void end_whole_tile(const Arguments& p, const TeamTiles& tiles, const KeyShare& own,
                                      const SoftmaxRows& rows, float* scratch, int* found) {
  const int count = rows_of_tile(p.call, own);
  store_part(rows, scratch + tiles.warp_row * kPartRow, count - tiles.warp_row);
  team_barrier<kTeamWarps>(tiles.team);
  bool not_finite = false;
  for (int row = tiles.thread / 32; row < count; row += kTeamWarps) {
    MergedRow merged;
    merged.merge<1>(scratch + row * kPartRow);
    not_finite = store_row(p, own, merged, row) || not_finite;
  }
  if (any_of_team(tiles, not_finite, found)) {
    team_barrier<kTeamWarps>(tiles.team);
    rows_again(p, own, scratch, TeamCrew{tiles.team, tiles.thread});
  }
}

// The team's share of the CTA's chunks, one tile of rows after the other.
SCOREMOD_FUNCTION void walk_over_tiles(const Arguments& p, const TeamTiles& tiles, const OpenParts& parts,
                                       const long long* sums, OpenTile* open_tiles, int* found) {
  const AttentionArguments& call = p.call;
  PieceWalk pieces;
  TilePiece piece;
  pieces.begin(call, sums, parts.teams.first_of(tiles.team), parts.teams.first_of(tiles.team + 1));
  while (pieces.next(call, piece)) {
    const KeyShare own = piece.own;
    const bool left = piece.opens_left(), right = piece.opens_right();
    KeyWalk walk;
    walk.begin_all(call, own, piece.chunks());
    SoftmaxRows rows;
    rows.clear();
    add_keys(
        p, tiles, own, walk, keys_of(call, own.b), rows,
        [&] {
          load_queries<kTeamThreads>(
              call, own, [&](int row, int dim) { return tiles.q + row * row_length(kDimQk) + dim; }, tiles.thread);
        },
        [&] {
          team_barrier<kTeamWarps>(tiles.team);
          if (kKeyKind == kElementKeys) return;
          prepare_queries<kTeamThreads>(tiles.q, tiles.thread);
          team_barrier<kTeamWarps>(tiles.team);
        });
    team_barrier<kTeamWarps>(tiles.team);  // nobody reads a tile any more
    if (!left && !right) {
      end_whole_tile(p, tiles, own, rows, (float*)tiles.stages, found);
      team_barrier<kTeamWarps>(tiles.team);  // the ring is free
      continue;
    }
    store_part(rows, parts.of_team(call, tiles.team, right) + tiles.warp_row * kPartRow,
               rows_of_tile(call, own) - tiles.warp_row);
    // The first of the CTA's teams that has keys of a tile notes it.
    if (tiles.thread != 0 || (left && tiles.team > 0)) continue;
    open_tiles[right ? tiles.team : kTeams] = {own, piece.count, piece.first};
  }
}

SCOREMOD_KERNEL(kThreads, kBlocks) split_kv_persistent_decode(SCOREMOD_ARGUMENT p) {
  SCOREMOD_SHARED(shared);
  constexpr PersistentDecodeStorage kAt = kPersistentStorage;
  const AttentionArguments& call = p.call;
  long long* const sums = (long long*)(shared + kAt.sums);
  OpenTile* const open_tiles = (OpenTile*)(shared + kAt.open_tiles);
  int* const not_finite = (int*)(shared + kAt.not_finite);
  const int team = threadIdx.x / kTeamThreads;
  if (threadIdx.x <= kTeams) {
    open_tiles[threadIdx.x].own.b = -1;
    not_finite[threadIdx.x] = 0;
  }
  add_up_chunks(call, sums);
  const OpenParts parts = share_of_cta(call, sums, blockIdx.x);
  if (parts.cta >= parts.ctas.parts) return;
  const TeamTiles tiles((Half*)(shared + kAt.q + team * kAt.q_tile.bytes),
                        (KeyElement*)(shared + kAt.rings + team * kAt.ring_bytes));
  if (team < parts.teams.parts)
    walk_over_tiles(p, tiles, parts, sums, open_tiles, (int*)(shared + kAt.found) + team * kTeamWarps);
  end_open_tiles(p, parts, open_tiles, not_finite, (float*)(shared + kAt.rings));
}
/*{}*/
