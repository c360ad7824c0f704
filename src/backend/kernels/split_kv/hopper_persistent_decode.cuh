// hopper_persistent_decode: hopper_split_kv_decode as a persistent kernel, for sequences of different lengths, which
// only device memory knows. As many CTAs as run at once share out all keys that there are, and a CTA's teams share out
// its own. A team goes from one tile of rows to the next by itself, and its producer loads ahead for the next. It
// writes o of a tile whose keys it has all, and else a partial.
#pragma once

#include "backend/kernels/split_kv/hopper_decode.cuh"
#include "backend/kernels/split_kv/key_shares.cuh"

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
