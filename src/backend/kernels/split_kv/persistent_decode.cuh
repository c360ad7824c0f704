// split_kv_persistent_decode: the decode kernel for sequences of different lengths, which only device memory knows. As
// many CTAs as run at once share out all keys that there are, and a CTA's teams share out its own. A team goes from one
// tile of rows to the next by itself. It writes o of a tile whose keys it has all, and else a partial.
#pragma once

#include "backend/kernels/split_kv/decode.cuh"
#include "backend/kernels/split_kv/key_shares.cuh"

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
