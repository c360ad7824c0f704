// hopper_split_kv_decode: the decode kernel (split-KV, pack-GQA) by warpgroups. A team is a warpgroup, which has all of
// the CTA's rows, and a producer warp. The producer finds the team's tiles and loads them by TMA into the team's own
// ring. The rings fill shared memory, and their loads are issued before the CTA does anything else: memory bounds these
// kernels.
#pragma once

#include "backend/kernels/hopper/tiles.cuh"
#include "backend/kernels/split_kv/key_shares.cuh"
#include "backend/kernels/split_kv/partials.cuh"

static_assert(kTeams == kGroups, "a team is a warpgroup");

// Named barrier at which consumers wait for q and the rings' mbarriers; producers only arrive. Warpgroups take no turns
// here.
constexpr int kBegun = kTurns;

constexpr HopperDecodeStorage kDecodeStorage{kDimQk, kDimV, kQueries, kKeys, kStages, kTeams, kPersistent};

// A CTA's rows of q, or a persistent one's team's, and a team's ring.
struct TeamTiles {
  static constexpr int kKBytes = kDecodeStorage.k_tile.bytes, kVBytes = kDecodeStorage.v_tile.bytes;

  Half *q, *k, *v;
  float* parts;
  Barrier *k_full, *k_empty, *v_full, *v_empty;
  int* found;  // which tile a stage has: twice its number, and 1 more where it is partial; or -1 behind the last one

  SCOREMOD_MEMBER TeamTiles(unsigned char* shared, int team) {
    constexpr HopperDecodeStorage kAt = kDecodeStorage;
    q = (Half*)(shared + kAt.q + (kPersistent ? team * kAt.q_tile.bytes : 0));
    k = (Half*)(shared + kAt.rings + team * kAt.ring_bytes);
    v = k + kStages * kKBytes / 2;
    parts = (float*)(shared + kAt.parts);
    k_full = (Barrier*)(shared + kAt.barriers) + team * kAt.team_barriers;
    k_empty = k_full + kStages;
    v_full = k_empty + kStages;
    v_empty = v_full + kStages;
    found = (int*)(shared + kAt.found) + team * kStages;
  }
  SCOREMOD_MEMBER void begin(const MappedArguments& all) const {
    if (all.rest.call.k.aligned) fetch_map(&all.k);
    if (all.rest.call.v.aligned) fetch_map(&all.v);
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(k_full + i, 1);
      mbarrier_init(v_full + i, 1);
      mbarrier_init(k_empty + i, kGroup / 32);
      mbarrier_init(v_empty + i, kGroup / 32);
    }
    fence_mbarrier_init();
  }
};

// A tile of keys to load, and the pages of the lane's boxes of it.
struct TilePlaces {
  int found, k_page, v_page;  // `found` as TeamTiles has it

  SCOREMOD_MEMBER int first_key() const { return found / 2 * kKeys; }
  // Finds the walk's next tile; returns whether there is one.
  SCOREMOD_MEMBER bool find(const Arguments& p, const KeyShare& own, KeyWalk& walk, int keys) {
    if (!walk.next(p, own.b)) return false;
    found = walk.tile * 2 + (walk.partial ? 1 : 0);
    k_page = page_of_box(p.call.k, own.b, first_key(), keys);
    v_page = page_of_box(p.call.v, own.b, first_key(), keys);
    return true;
  }
};

// By the warp that loads for a team: loads the tiles that the walk finds, and tells behind the last one that there is
// no more. A persistent kernel's team goes on from there with its next rows.
SCOREMOD_FUNCTION void produce_tiles(const MappedArguments& all, const TeamTiles& tiles, const KeyShare& own,
                                     KeyWalk& walk, int keys, Ring<kStages>& ring) {
  const AttentionArguments& call = all.rest.call;
  const bool first_lane = threadIdx.x % 32 == 0;
  TilePlaces next;
  bool more = next.find(all.rest, own, walk, keys);
  while (more) {
    // The next tile is found before this one is loaded, so that nothing waits for its pages.
    const TilePlaces at = next;
    more = next.find(all.rest, own, walk, keys);
    mbarrier_wait(tiles.k_empty + ring.stage, ring.phase ^ 1);
    if (first_lane) tiles.found[ring.stage] = at.found;
    fill_keys<kDimQk, false, 32>(tiles.k + ring.stage * (TeamTiles::kKBytes / 2), call.k, all.k,
                                 tiles.k_full + ring.stage, own.b, own.kv_head, at.first_key(), keys, at.k_page);
    mbarrier_wait(tiles.v_empty + ring.stage, ring.phase ^ 1);
    fill_keys<kDimV, true, 32>(tiles.v + ring.stage * (TeamTiles::kVBytes / 2), call.v, all.v,
                               tiles.v_full + ring.stage, own.b, own.kv_head, at.first_key(), keys, at.v_page);
    ring.advance();
  }
  mbarrier_wait(tiles.k_empty + ring.stage, ring.phase ^ 1);
  if (first_lane) {
    tiles.found[ring.stage] = -1;
    arrive(tiles.k_full + ring.stage);
  }
  if (!kPersistent) return;
  mbarrier_wait(tiles.v_empty + ring.stage, ring.phase ^ 1);
  if (first_lane) arrive(tiles.v_full + ring.stage);
  ring.advance();
}

// The consumer warpgroup of a team adds all of its tiles to its rows, which begin at the warp's `first_row`. While one
// team turns scores into weights, another's WGMMAs run. A warp without rows has arbitrary products, which nobody reads.
SCOREMOD_FUNCTION void consume_tiles(const Arguments& p, const TeamTiles& tiles, const KeyShare& own, SoftmaxRows& rows,
                                     int first_row, Ring<kStages>& ring) {
  const unsigned q = tile_view(tiles.q, kQueries), k = tile_view(tiles.k, kKeys), v = tile_view(tiles.v, kKeys);
  const bool has_rows = first_row < rows_of_head(p.call);
  Sums<1, kKeys> scores;
  unsigned weights[kKeys / 16][4];
  for (;; ring.advance()) {
    mbarrier_wait(tiles.k_full + ring.stage, ring.phase);
    const int found = uniform(tiles.found[ring.stage]);
    if (found < 0) break;
    wgmma_fence();
    issue_wgmma_abt<kDimQk, kQueries, kKeys>(scores, q, moved_by(k, ring.stage * TeamTiles::kKBytes));
    wgmma_commit();
    wgmma_wait<0>();
    fence_operand(scores.at[0]);
    consumer_release(tiles.k_empty + ring.stage);
    if (has_rows) online_softmax_step(p, scores, rows, found % 2 != 0, own.b, own.h, first_row, found / 2 * kKeys);
    round_to_16bit<kKeys>(weights, scores);
    mbarrier_wait(tiles.v_full + ring.stage, ring.phase);
    fence_operand(weights);
    fence_operand(rows.output.at[0]);
    wgmma_fence();
    issue_wgmma_ab<kDimV, kKeys>(rows.output, weights, moved_by(v, ring.stage * TeamTiles::kVBytes));
    wgmma_commit();
    wgmma_wait<0>();
    fence_operand(rows.output.at[0]);
    consumer_release(tiles.v_empty + ring.stage);
  }
  if (!kPersistent) return;
  // The stage that told the end is the next rows' to fill.
  consumer_release(tiles.k_empty + ring.stage);
  mbarrier_wait(tiles.v_full + ring.stage, ring.phase);
  consumer_release(tiles.v_empty + ring.stage);
  ring.advance();
}

/*{kernel hopper_split_kv_decode}*/
SCOREMOD_KERNEL(kThreads + kProducers, 1) hopper_split_kv_decode(SCOREMOD_MAPPED_ARGUMENT all) {
  SCOREMOD_SHARED(unaligned);
  const AttentionArguments& call = all.rest.call;
  const KeyShare own = share_of(call, blockIdx.x);
  const bool copies = threadIdx.x >= kThreads;
  const int team = copies ? uniform((threadIdx.x - kThreads) / 32) : group_number();
  const TeamTiles tiles(aligned_tiles(unaligned), team);
  if (copies) {
    if (threadIdx.x % 32 == 0) tiles.begin(all);
    warp_barrier();
    arrive_at(kBegun, kThreads + kProducers);
    const int keys = keys_of(call, own.b);
    KeyWalk walk;
    walk.begin(call, own, keys, team);
    Ring<kStages> ring;
    return produce_tiles(all, tiles, own, walk, keys, ring);
  }
  const int warp_row = threadIdx.x % kGroup / 32 * 16;
  load_queries(call, own, [&](int row, int dim) { return word_of_tile<kQueries>(tiles.q, row, dim); });
  wait_for_copies();
  fence_proxy_async();
  meet(kBegun, kThreads + kProducers);  // q is there, and so are the rings' barriers
  SoftmaxRows rows;
  rows.clear();
  Ring<kStages> ring;
  consume_tiles(all.rest, tiles, own, rows, own.first_row() + warp_row, ring);
  block_barrier();  // nobody reads a tile any more
  end_rows(all.rest, rows, own, team, warp_row, tiles.parts);
}
/*{}*/

/*{kernel hopper_persistent_decode}*/
// hopper_split_kv_decode as a persistent kernel, for sequences of different lengths, which only device memory knows. As
// many CTAs as run at once share out all keys that there are, and a CTA's teams share out its own. A team goes from one
// tile of rows to the next by itself, and its producer loads ahead for the next. It writes o of a tile whose keys it
// has all, and else a partial.
static_assert(sizeof(OpenTile) <= kDecodeStorage.open_tile_bytes, "as storage.cuh has it");
static_assert(kDecodeStorage.q_tile.bytes >= kThreads * (int)sizeof(long long), "sums of chunks lie there before");
static_assert(kDecodeStorage.q_tile.bytes >= 2 * kThreads * (int)sizeof(float),
              "forward_row() has room in a tile of q");

// A warpgroup's threads, as those that compute one row together.
struct WarpgroupCrew {
  static constexpr int kCount = kGroup;
  SCOREMOD_MEMBER int number() const { return threadIdx.x % kGroup; }
  SCOREMOD_MEMBER void sync() const { warpgroup_sync(); }
};

// The places that the teams of a CTA share.
struct SharedPieces {
  long long* sums;
  OpenTile* open_tiles;
  int *not_finite, *any;

  SCOREMOD_MEMBER explicit SharedPieces(unsigned char* shared) {
    constexpr HopperDecodeStorage kAt = kDecodeStorage;
    sums = (long long*)(shared + kAt.q);
    open_tiles = (OpenTile*)(shared + kAt.open_tiles);
    not_finite = (int*)(shared + kAt.not_finite);
    any = (int*)(shared + kAt.any);
  }
  // By all consumers.
  SCOREMOD_MEMBER void begin(const AttentionArguments& call) const {
    if (threadIdx.x <= kTeams) {
      open_tiles[threadIdx.x].own.b = -1;
      not_finite[threadIdx.x] = 0;
    }
    add_up_chunks(call, sums);
  }
  // Whether the condition holds for a thread of the calling warpgroup.
  SCOREMOD_MEMBER bool any_of_warpgroup(bool condition) const {
    int* const own = any + own_group() * (kGroup / 32);
    const bool found = ballot(condition) != 0;
    if (threadIdx.x % 32 == 0) own[threadIdx.x % kGroup / 32] = found ? 1 : 0;
    warpgroup_sync();
    return (own[0] | own[1] | own[2] | own[3]) != 0;
  }
};

// By a team's producer warp.
SCOREMOD_FUNCTION void produce_pieces(const MappedArguments& all, const TeamTiles& tiles, PieceWalk& pieces) {
  const AttentionArguments& call = all.rest.call;
  Ring<kStages> ring;
  TilePiece piece;
  while (pieces.next(call, piece)) {
    KeyWalk walk;
    walk.begin_all(call, piece.own, piece.chunks());
    produce_tiles(all, tiles, piece.own, walk, keys_of(call, piece.own.b), ring);
  }
}

// By a team's consumer warpgroup.
SCOREMOD_FUNCTION void consume_pieces(const Arguments& p, const TeamTiles& tiles, const OpenParts& parts,
                                      const SharedPieces& shared, PieceWalk& pieces, int team) {
  const AttentionArguments& call = p.call;
  const int thread = threadIdx.x % kGroup, warp_row = thread / 32 * 16;
  Ring<kStages> ring;
  TilePiece piece;
  while (pieces.next(call, piece)) {
    const KeyShare own = piece.own;
    const bool left = piece.opens_left(), right = piece.opens_right();
    load_queries<kGroup>(
        call, own, [&](int row, int dim) { return word_of_tile<kQueries>(tiles.q, row, dim); }, thread);
    wait_for_copies();
    fence_proxy_async();
    warpgroup_sync();
    SoftmaxRows rows;
    rows.clear();
    consume_tiles(p, tiles, own, rows, own.first_row() + warp_row, ring);
    if (left || right) {
      store_part(rows, parts.of_team(call, team, right) + warp_row * kPartRow, rows_of_tile(call, own) - warp_row);
      // The first of the CTA's teams that has keys of a tile notes it.
      if (thread == 0 && (!left || team == 0))
        shared.open_tiles[right ? team : kTeams] = {own, piece.count, piece.first};
    } else if (shared.any_of_warpgroup(store_whole(p, own, rows, warp_row, 0))) {
      rows_again(p, own, (float*)tiles.q, WarpgroupCrew());
    }
    warpgroup_sync();  // nobody reads q any more
  }
}

SCOREMOD_KERNEL(kThreads + kProducers, 1) hopper_persistent_decode(SCOREMOD_MAPPED_ARGUMENT all) {
  SCOREMOD_SHARED(unaligned);
  const AttentionArguments& call = all.rest.call;
  const bool produces = threadIdx.x >= kThreads;
  const int team = produces ? uniform((threadIdx.x - kThreads) / 32) : group_number();
  const TeamTiles tiles(aligned_tiles(unaligned), team);
  const SharedPieces shared(aligned_tiles(unaligned));
  if (!produces)
    shared.begin(call);
  else if (threadIdx.x % 32 == 0)
    tiles.begin(all);
  cta_sync();
  const OpenParts parts = share_of_cta(call, shared.sums, blockIdx.x);
  if (parts.cta >= parts.ctas.parts) return;
  PieceWalk pieces;
  const bool has_share = team < parts.teams.parts;
  if (has_share) pieces.begin(call, shared.sums, parts.teams.first_of(team), parts.teams.first_of(team + 1));
  cta_sync();  // nobody reads sums any more, and q may come
  if (produces) {
    if (has_share) produce_pieces(all, tiles, pieces);
    return;
  }
  if (has_share) consume_pieces(all.rest, tiles, parts, shared, pieces, team);
  end_open_tiles(all.rest, parts, shared.open_tiles, shared.not_finite, (float*)(aligned_tiles(unaligned)));
}
/*{}*/
