// split_kv_streamed_decode is the persistent decode kernel of few rows, whose pipeline never drains. A team is a warp,
// and its loads run on from the keys of one tile of rows to those of the next. Where every sequence is short beside a
// CTA's share of keys, teams take whole tiles of rows, so that there are no partials.
#pragma once

#include "backend/kernels/split_kv/decode.cuh"

/*{kernel split_kv_streamed_decode}*/
static_assert(kRowTiles == 1 && kKeyKind == kElementKeys, "a warp has all of its rows");

constexpr StreamedDecodeStorage kStreamStorage{kDimQk, kDimV, kQueries, kKeys, kStages, kTeams};
static_assert(sizeof(OpenTile) <= kStreamStorage.open_tile_bytes, "as storage.cuh has it");
static_assert(kStreamStorage.rings + kTeams * kStreamStorage.ring_bytes >= 2 * kThreads * (int)sizeof(float),
              "forward_row() has room in the rings");

// A CTA has whole tiles of rows where its even share is at least so many times as long as the longest one. The tiles at
// its ends make shares differ by less than one of them.
constexpr int kLeastTilesOfShare = 6;

// A warp, as threads that compute one row together.
struct WarpCrew {
  static constexpr int kCount = 32;
  SCOREMOD_MEMBER int number() const { return threadIdx.x % 32; }
  SCOREMOD_MEMBER void sync() const { team_barrier<1>(threadIdx.x / 32); }
};

// The warp's rows of q as left operands of its MMAs.
struct QueryOperands {
  unsigned at[padded(kDimQk) / 16][4];

  SCOREMOD_MEMBER void load(const Half* q) {
    const int lane = threadIdx.x % 32;
    const Half* const row = q + lane % 16 * row_length(kDimQk) + lane / 16 * 8;
#pragma unroll
    for (int i = 0; i < padded(kDimQk) / 16; ++i) load_matrices(at[i], row + i * 16);
  }
  // add_product_of_rows(), of these rows.
  SCOREMOD_MEMBER void add_products(Sums<1, kKeys>& sums, const Half* keys) const {
    const int lane = threadIdx.x % 32;
    const Half* const row = keys + (lane % 8 + lane / 16 * 8) * row_length(kDimQk) + lane / 8 % 2 * 8;
#pragma unroll
    for (int i = 0; i < padded(kDimQk) / 16; ++i)
#pragma unroll
      for (int n = 0; n < kKeys; n += 16) {
        unsigned right[4];
        load_matrices(right, row + n * row_length(kDimQk) + i * 16);
        multiply_add(sums.at[0][n / 8], at[i], right[0], right[1]);
        multiply_add(sums.at[0][n / 8 + 1], at[i], right[2], right[3]);
      }
  }
};

// The whole tiles of rows of a CTA, by their numbers: the next one that a team takes, and the end. It is negative where
// teams have even shares instead.
struct WholeTiles {
  int taken, end;
};

// The first of the whole tiles of rows that begin in the last half of a tile before this chunk, or behind it. Tiles
// have numbers in the order of their chunks.
SCOREMOD_FUNCTION int first_whole_tile(const AttentionArguments& call, const long long* sums, long long chunk) {
  const int of_row_tile = call.batch * kv_heads_of(call);
  if (chunk >= all_chunks(call, sums)) return call.query_tiles * of_row_tile;
  PieceWalk walk;
  walk.begin(call, sums, chunk, chunk);
  const int count = larger(walk.chunks.count, 1);
  const int heads = (int)((chunk - walk.batch_first + (count - 1) / 2) / count);
  // Lengths that somebody changes meanwhile lead nowhere else.
  return clamped(walk.row_tile * of_row_tile + walk.b * kv_heads_of(call) + heads, 0, call.query_tiles * of_row_tile);
}

// A team's notes in shared memory, for which there are no registers. They are its even share of chunks, and the tiles
// of rows that it computes and loads, which may be the same.
struct TeamNotes {
  PieceWalk share;
  TilePiece pieces[2];
};
static_assert(sizeof(TeamNotes) <= kStreamStorage.notes_bytes, "as storage.cuh has it");

// The tiles of rows of a team, with their chunks. They are those of its even share of chunks, or whole ones that the
// CTA's teams take one by one.
struct TeamPieces {
  TeamNotes* notes;
  WholeTiles* whole;

  // Notes the next one in a place of notes->pieces; returns false behind the last. By all lanes of the team.
  SCOREMOD_MEMBER bool next(const AttentionArguments& call, int place) const {
    TilePiece piece;
    if (whole->end >= 0) {
      if (!take(call, piece)) return false;
    } else {
      PieceWalk share = notes->share;
      if (!share.next(call, piece)) return false;
      team_barrier<1>(threadIdx.x / 32);  // everyone has read it
      if (threadIdx.x % 32 == 0) notes->share = share;
    }
    if (threadIdx.x % 32 == 0) notes->pieces[place] = piece;
    team_barrier<1>(threadIdx.x / 32);
    return true;
  }
  SCOREMOD_MEMBER bool take(const AttentionArguments& call, TilePiece& piece) const {
    for (;;) {
      int number = 0;
      if (threadIdx.x % 32 == 0) number = take_number(&whole->taken);
      number = from_lane(number, 0);
      if (number >= whole->end) return false;
      const int heads = kv_heads_of(call), of_row_tile = call.batch * heads;
      const int row_tile = number / of_row_tile, head = number % of_row_tile, b = head / heads, kv_head = head % heads;
      const BatchChunks chunks = chunks_of_batch(call, b);
      if (chunks.count == 0) continue;
      piece = {{b, kv_head, kv_head * call.group, row_tile, 0}, chunks.all, 0, chunks.count, 0, chunks.count};
      return true;
    }
  }
};

// A stage's tile of keys: its number times kNote, and notes about it. A stage may have none.
constexpr int kNote = 8, kPartial = 1, kBegins = 2, kNoKeys = 4;  // kBegins: the first of a tile of rows
constexpr int kNothing = -1, kTheEnd = -2;

// The team's tiles of keys, in the order in which it loads them.
struct TileStream {
  TeamPieces pieces;
  int place, b, kv_head;  // of the piece whose keys are loaded
  KeyWalk walk;
  RowPages pages;
  int keys;
  bool more, waits;  // whether the piece has another tile, and whether its rows lie in the team's tile of q

  SCOREMOD_MEMBER RowsOf<KeyElement> rows_in(const TensorArgument& tensor) const {
    return rows_of<KeyElement>(tensor, b, kv_head);
  }
  SCOREMOD_MEMBER void find(const Arguments& p) {
    more = walk.next(p, b);
    if (!kPaged || !more) return;
    const int first = walk.tile * kKeys;
    if (kLooksUpRows)
      pages.look_up(rows_in(p.call.k), rows_in(p.call.v), first, keys);
    else
      pages = {rows_in(p.call.k).page_of(first), rows_in(p.call.v).page_of(first)};
  }
  SCOREMOD_MEMBER void begin_piece(const Arguments& p, const TeamTiles& tiles) {
    const AttentionArguments& call = p.call;
    const TilePiece& piece = pieces.notes->pieces[place];
    const KeyShare own = piece.own;
    b = own.b;
    keys = keys_of(call, b);
    kv_head = own.kv_head;
    walk.begin_all(call, own, piece.chunks());
    find(p);
    load_queries<32>(
        call, own, [&](int row, int dim) { return tiles.q + row * row_length(kDimQk) + dim; }, tiles.thread);
  }
  // Begins to load the next tile, and finds the one behind it, whose pages are there when it is loaded. Rows wait until
  // those before them are in registers.
  SCOREMOD_MEMBER int fetch(const Arguments& p, const TeamTiles& tiles, int stage) {
    int notes = 0;
    if (!more) {
      if (waits) return kNothing;
      if (!pieces.next(p.call, place ^ 1)) return kTheEnd;
      place ^= 1;
      begin_piece(p, tiles);
      waits = true;
      notes = kBegins;
      if (!more) return kBegins | kNoKeys;
    }
    const int first = walk.tile * kKeys;
    constexpr bool kKnowsPage = kPaged && !kLooksUpRows;
    load_keys<kDimQk, kKnowsPage>(tiles.k(stage), rows_in(p.call.k), pages.of_keys, first, keys, tiles.thread);
    load_keys<kDimV, kKnowsPage>(tiles.v(stage), rows_in(p.call.v), pages.of_values, first, keys, tiles.thread);
    const int found = walk.tile * kNote | notes | (walk.partial ? kPartial : 0);
    find(p);
    return found;
  }
};

// The end of a team's rows, when all keys of the piece are added.
struct PieceEnd {
  const long long* sums;
  OpenTile* open_tiles;
  float* scratch;  // of the team, for forward_row()

  SCOREMOD_MEMBER void end(const Arguments& p, const TeamTiles& tiles, const TilePiece& piece,
                           const SoftmaxRows& rows) const {
    const KeyShare own = piece.own;
    const bool left = piece.opens_left(), right = piece.opens_right();
    if (!left && !right) {
      if (ballot(store_whole(p, own, rows, 0, 0)) != 0) rows_again(p, own, scratch, WarpCrew());
      return;
    }
    // The loop has no registers for it.
    const OpenParts parts = share_of_cta(p.call, sums, blockIdx.x);
    store_part(rows, parts.of_team(p.call, tiles.team, right), rows_of_tile(p.call, own));
    // The first of the CTA's teams that has keys of a tile notes it.
    if (tiles.thread == 0 && (!left || tiles.team == 0))
      open_tiles[right ? tiles.team : kTeams] = {own, piece.count, piece.first};
  }
};

// All of a team's tiles, one after the other. While one is computed, the loads of kStages - 1 others are in flight.
SCOREMOD_FUNCTION void walk_over_stream(const Arguments& p, const TeamTiles& tiles, TileStream& stream,
                                        const PieceEnd& ends) {
  stream.walk.step = 1;
  bool begun = false;
  int place = 0;
  KeyShare own{};
  SoftmaxRows rows;
  QueryOperands queries;
  int ahead[kStages - 1];
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) ahead[i] = kNothing;
#pragma unroll 1
  for (int stage = 0;;) {
    const int found = ahead[0];
    wait_for_copies_but<kStages - 2>();
    team_barrier<1>(tiles.team);  // the tile is there, and nobody reads the last one any more
    if (begun && (found == kTheEnd || (found >= 0 && (found & kBegins) != 0)))
      ends.end(p, tiles, stream.pieces.notes->pieces[place], rows);
    if (found == kTheEnd) break;
    if (found >= 0 && (found & kBegins) != 0) {
      begun = true;
      place = stream.place;
      own = stream.pieces.notes->pieces[place].own;
      rows.clear();
      queries.load(tiles.q);
      team_barrier<1>(tiles.team);
      stream.waits = false;
    }
#pragma unroll
    for (int i = 0; i < kStages - 2; ++i) ahead[i] = ahead[i + 1];
    ahead[kStages - 2] = stream.fetch(p, tiles, stage);
    end_copies();
    stage = stage + 1 == kStages ? 0 : stage + 1;
    if (found < 0 || (found & kNoKeys) != 0) continue;
    Sums<1, kKeys> scores;
    scores.clear();
    queries.add_products(scores, tiles.k(stage));
    online_softmax_step(p, scores, rows, (found & kPartial) != 0, own.b, own.h, own.first_row(), found / kNote * kKeys);
    add_product<kDimV>(rows.output, scores, tiles.v(stage));
  }
  wait_for_copies();
}

SCOREMOD_KERNEL(kThreads, kBlocks) split_kv_streamed_decode(SCOREMOD_ARGUMENT p) {
  SCOREMOD_SHARED(shared);
  constexpr StreamedDecodeStorage kAt = kStreamStorage;
  const AttentionArguments& call = p.call;
  long long* const sums = (long long*)(shared + kAt.sums);
  OpenTile* const open_tiles = (OpenTile*)(shared + kAt.open_tiles);
  int* const not_finite = (int*)(shared + kAt.not_finite);
  const int team = threadIdx.x / 32;
  TileStream stream{{(TeamNotes*)(shared + kAt.notes) + team, (WholeTiles*)(shared + kAt.whole)}};
  if (threadIdx.x <= kTeams) {
    open_tiles[threadIdx.x].own.b = -1;
    not_finite[threadIdx.x] = 0;
  }
  const long long longest = add_up_chunks(call, sums);
  const OpenParts parts = share_of_cta(call, sums, blockIdx.x);
  const bool whole = !any_of_block(longest * kLeastTilesOfShare * parts.ctas.parts > parts.ctas.count);
  if (parts.cta >= parts.ctas.parts) return;
  if (whole) {
    // One lane finds the first tile of the CTA, and the next one that of the CTA after it.
    const int bound = first_whole_tile(call, sums, parts.ctas.first_of(parts.cta + (int)threadIdx.x % 2));
    const int end = from_lane(bound, 1);
    if (threadIdx.x == 0) *stream.pieces.whole = {bound, end};
  } else {
    if (threadIdx.x == 0) *stream.pieces.whole = {0, -1};
    if (team < parts.teams.parts) {
      PieceWalk share;
      share.begin(call, sums, parts.teams.first_of(team), parts.teams.first_of(team + 1));
      if (threadIdx.x % 32 == 0) stream.pieces.notes->share = share;
    }
  }
  block_barrier();
  const TeamTiles tiles((Half*)(shared + kAt.q + team * kAt.q_tile.bytes),
                        (KeyElement*)(shared + kAt.rings + team * kAt.ring_bytes));
  const PieceEnd ends{sums, open_tiles, (float*)(shared + kAt.row_again + team * kAt.row_again_bytes)};
  if (whole || team < parts.teams.parts) walk_over_stream(p, tiles, stream, ends);
  if (!whole) end_open_tiles(p, share_of_cta(call, sums, blockIdx.x), open_tiles, not_finite, (float*)shared);
}
/*{}*/
