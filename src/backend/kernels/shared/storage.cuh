// Tiles in shared memory as kernels of all families have them. The storage.cuh files are one text for the kernels'
// compiler and for the host's, which allocates the memory. A struct begins with the numbers that decide it, and its
// other members follow from them: offsets and sizes in bytes.
#pragma once

// Rows for ldmatrix, of head dims in blocks of 16, as MMAs take them. Each is an odd number of 16-byte words, so that
// eight rows at one column lie in different banks.
struct PaddedTile {
  int rows, dim, element_bytes;
  int padded_dim = (dim + 15) / 16 * 16;
  int row_bytes = padded_dim * element_bytes + 16;
  int bytes = rows * row_bytes;
};

// The coordinate of a tile of queries, in the heads of all batches.
struct QueryPlace {
  int b, h, query_tile;
};
