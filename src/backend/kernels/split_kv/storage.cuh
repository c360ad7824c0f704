// Shared memory of the decode kernels, in the form that shared/memory.cuh describes. The teams' partials take the
// place of their tiles of keys when these are no longer needed.
#pragma once

#include "backend/kernels/shared/memory.cuh"

// A split-KV partial: rows of the output of some keys. Behind a row's outputs are its running max, which is raised
// lazily, its sum and its largest value. Eight rows at one column lie in different banks.
struct PartialStorage {
  int rows, dim_v;
  PaddedTile output{rows, dim_v, (int)sizeof(float)};
  int row_floats = output.padded_dim + 8;
  int floats = rows * row_floats, bytes = floats * (int)sizeof(float);
};

// A tile of keys or values as they lie in memory: of 16 bits, or FP8. Eight rows of FP8 numbers at one column lie in
// different banks, too.
struct KeyTile {
  int rows, dim, element_bytes;
  PaddedTile halves{rows, dim, 2};
  int row_bytes = element_bytes == 2 ? halves.row_bytes : halves.padded_dim + 16;
  int bytes = rows * row_bytes;
};

// A stage of a ring: tiles of keys and of their values, and scales of these where rows have their own.
struct StageStorage {
  int keys, dim_qk, dim_v, key_bytes;
  bool row_scales;
  KeyTile k_tile{keys, dim_qk, key_bytes}, v_tile{keys, dim_v, key_bytes};

  int k = 0;
  int v = k + k_tile.bytes;
  int key_scales = v + v_tile.bytes;
  int value_scales = key_scales + (row_scales ? keys * (int)sizeof(float) : 0);
  int bytes = value_scales + (row_scales ? keys * (int)sizeof(float) : 0);
};

struct DecodeStorage {
  int dim_qk, dim_v, queries, keys, stages, teams, threads, key_bytes;
  bool row_scales;

  PaddedTile q_tile{queries, dim_qk, 2};
  PartialStorage part{queries, dim_v};
  StageStorage stage{keys, dim_qk, dim_v, key_bytes, row_scales};
  int ring_bytes = stages * stage.bytes;
  int rings_bytes = teams * ring_bytes, parts_bytes = teams * part.bytes;
  int row_again_bytes = 2 * threads * (int)sizeof(float);  // of forward_row()

  int q = 0;
  int rings = q + q_tile.bytes;  // of all teams
  int parts = rings;
  int end = rings + (rings_bytes > parts_bytes ? rings_bytes : parts_bytes);
  size_t bytes = end > row_again_bytes ? end : row_again_bytes;
};

// The persistent decode kernel's teams have rows of their own: each has a tile of q, and a ring, whose place its
// partial takes. `sums` are of chunks, one for each thread. `open_tiles` are the tiles that teams share.
struct PersistentDecodeStorage {
  int dim_qk, dim_v, queries, keys, stages, teams, threads, key_bytes;
  bool row_scales;

  PaddedTile q_tile{queries, dim_qk, 2};
  PartialStorage part{queries, dim_v};
  StageStorage stage{keys, dim_qk, dim_v, key_bytes, row_scales};
  int stages_bytes = stages * stage.bytes;
  int ring_bytes = stages_bytes > part.bytes ? stages_bytes : part.bytes;
  int open_tile_bytes = 48;

  int q = 0;  // of all teams
  int rings = q + teams * q_tile.bytes;
  int sums = rings + teams * ring_bytes;
  int open_tiles = sums + threads * (int)sizeof(long long);
  int not_finite = open_tiles + (teams + 1) * open_tile_bytes;  // of each open tile
  int found = not_finite + (teams + 1) * (int)sizeof(int);      // by each warp
  size_t bytes = found + threads / 32 * (int)sizeof(int);
};

// The streamed decode kernel, whose teams are a warp each. A team has a tile of q, of the rows that it loads next, and
// a ring. `notes` are about tiles of rows, `sums` and `open_tiles` are as above, and `taken` counts the tiles of rows
// that the CTA's teams have taken.
struct StreamedDecodeStorage {
  int dim_qk, dim_v, queries, keys, stages, teams;

  PaddedTile q_tile{queries, dim_qk, 2};
  StageStorage stage{keys, dim_qk, dim_v, 2, false};
  int ring_bytes = stages * stage.bytes;
  int row_again_bytes = 2 * 32 * (int)sizeof(float);  // of forward_row(), by each team
  int open_tile_bytes = 48, notes_bytes = 168;

  int q = 0;  // of all teams
  int rings = q + teams * q_tile.bytes;
  int row_again = rings + teams * ring_bytes;
  int notes = row_again + teams * row_again_bytes;
  int sums = notes + teams * notes_bytes;
  int open_tiles = sums + teams * 32 * (int)sizeof(long long);
  int not_finite = open_tiles + (teams + 1) * open_tile_bytes;  // of each open tile
  int whole = not_finite + (teams + 1) * (int)sizeof(int);
  size_t bytes = whole + 2 * (int)sizeof(int);
};

// The decode kernel by warpgroups. Teams of the persistent one have rows of their own, and so a tile of q each. Sums of
// chunks, one for each consumer, lie in these before.
struct HopperDecodeStorage {
  int dim_qk, dim_v, queries, keys, stages, teams;
  bool persistent;

  SwizzledTile q_tile{queries, dim_qk}, k_tile{keys, dim_qk}, v_tile{keys, dim_v};
  PartialStorage part{queries, dim_v};
  int ring_bytes = stages * (k_tile.bytes + v_tile.bytes);
  int rings_bytes = teams * ring_bytes, parts_bytes = persistent ? 0 : teams * part.bytes;
  int team_barriers = 4 * stages;
  int open_tile_bytes = 48, open_tiles_count = persistent ? teams + 1 : 0;

  int q = 0;
  int rings = q + (persistent ? teams : 1) * q_tile.bytes;  // of all teams; each is its stages of k, then those of v
  int parts = rings;
  int barriers = rings + (rings_bytes > parts_bytes ? rings_bytes : parts_bytes);
  int found = barriers + teams * team_barriers * kBarrierBytes;
  int open_tiles = found + (teams * stages * (int)sizeof(int) + 7) / 8 * 8;
  int not_finite = open_tiles + open_tiles_count * open_tile_bytes;  // of each open tile
  int any = not_finite + open_tiles_count * (int)sizeof(int);        // by each warp
  size_t bytes = kSwizzleAlignment + any + (persistent ? teams * 4 * (int)sizeof(int) : 0);
};

// The decode kernel of heads of v wider than 256. A stage of the ring has room for a tile of k or of v. `weights` are
// passed from the warpgroup that makes them to the other one, as each thread has them; sums of chunks, one for each
// consumer, lie there before.
struct WideDecodeStorage {
  int dim_qk, dim_v, queries, keys, stages, threads;

  SwizzledTile q_tile{queries, dim_qk}, key_tile{keys, dim_qk > dim_v ? dim_qk : dim_v};
  int weights_bytes = queries * keys * 2;
  int step_bytes = 80, open_tile_bytes = 48, open_tiles_count = 2;

  int q = 0;
  int ring = q + q_tile.bytes;
  int weights = ring + stages * key_tile.bytes;
  int factors = weights + weights_bytes;  // two rows' of each thread of a warpgroup
  int barriers = factors + threads / 2 * 2 * (int)sizeof(float);
  int steps = barriers + 4 * stages * kBarrierBytes;
  int open_tiles = steps + 2 * stages * step_bytes;
  int not_finite = open_tiles + open_tiles_count * open_tile_bytes;
  size_t bytes = kSwizzleAlignment + not_finite + open_tiles_count * (int)sizeof(int);
};
