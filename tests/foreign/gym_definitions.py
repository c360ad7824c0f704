"""Score and mask functions that attention-gym has, written anew from the papers' formulas, for PyTorch and JAX alike (definitions.py)."""

import math

import numpy as np
from definitions import Definition, mask_of, normal, score_of

SIDE = 6  # of a square image, whose pixels are the sequence


def _sandwich(random, sizes):
    """Distances' sums of cosines, and the heads' factors (arXiv 2212.10356)."""
    longest, dim = max(sizes[2:]), 32
    frequencies = 1e4 ** (-2 * np.arange(dim // 2) / dim)
    table = np.cos(np.abs(np.arange(2 * longest) - longest)[:, None] * frequencies).sum(axis=-1)
    return [table.astype(np.float32), (sizes[1] / (8.0 * np.arange(1, sizes[1] + 1))).astype(np.float32)], []


def _graph(random, sizes):
    """Shortest distances of a random graph's nodes, up to 4 (arXiv 2106.05234), and a bias for each of them and each head."""
    batch, nodes = sizes[0], sizes[2]
    edges = random.random((batch, nodes, nodes)) < 0.08
    distance = np.where(edges | edges.swapaxes(1, 2), 1, 5)
    distance[:, np.arange(nodes), np.arange(nodes)] = 0
    for via in range(nodes):
        distance = np.minimum(distance, distance[:, :, via, None] + distance[:, None, via])
    return [random.normal(size=(sizes[1], 6)).astype(np.float32)], [np.minimum(distance, 5).astype(np.int32)]


def _paths(random, sizes):
    """For each pair of nodes the kinds of the first three edges of a path, and how many there are; a weight for each head, place and kind."""
    batch, nodes = sizes[0], sizes[2]
    kinds = random.integers(0, 5, (batch, nodes, nodes, 3)).astype(np.int32)
    return [random.normal(size=(sizes[1], 3, 5)).astype(np.float32)], [kinds, random.integers(0, 4, (batch, nodes, nodes)).astype(np.int32)]


def _edge_bias(f, real, a, score, b, h, q, k):
    weights, kinds, lengths = a
    length = lengths[b, q, k]
    total = score * 0.0
    for place in range(3):
        total = total + f.where(length > place, weights[h, place, kinds[b, q, k, place]], 0.0)
    return score + total / real(f.where(length < 1, 1, length), score)


def _activation(function):
    """A softmax's numerator exp(log(g(s) + 1)) is another activation."""
    return score_of(lambda f, real, a, score, b, h, q, k: f.log(function(f, score) + 1.0))


SCORES = {
    "alibi": Definition(score_of(lambda f, real, a, score, b, h, q, k: score + real(k - q, score) * f.exp2(-(real(h + 1, score) * 8.0) / 4.0))),
    "tanh_soft_cap": Definition(score_of(lambda f, real, a, score, b, h, q, k: 2.0 * f.tanh(score / 2.0))),
    "sandwich": Definition(score_of(lambda f, real, a, score, b, h, q, k: score + a[0][q - k + 40] * a[1][h]), _sandwich),
    "graphormer_spatial": Definition(score_of(lambda f, real, a, score, b, h, q, k: score + a[0][h, a[1][b, q, k]]), _graph, seq=(24, 24)),
    "graphormer_edges": Definition(score_of(_edge_bias), _paths, seq=(24, 24)),
    "activation_relu": Definition(_activation(lambda f, s: f.where(s > 0, s, s * 0.0))),
    "activation_sigmoid": Definition(_activation(lambda f, s: 1.0 / (1.0 + f.exp(-s)))),
    "latent_rope": Definition(
        score_of(lambda f, real, a, score, b, h, q, k: score + 0.25 * f.sum(a[0][b, h, q] * a[1][b, h // 4, k], -1)),
        normal(("b", "h", "q", 8), ("b", 1, "k", 8)),
    ),
}


def _causal(q, k):
    return q >= k


def _documents(random, sizes):
    """Documents one after the other: each token's, and where each begins."""
    ids = np.sort(random.integers(0, 4, sizes[2])).astype(np.int32)
    return [], [ids, np.searchsorted(ids, np.arange(5)).astype(np.int32)]


def _shared_prefix(f, a, b, h, q, k):
    ids, starts, prefix = a
    own, shared = ids[q], prefix[ids[q]]
    return ((k >= starts[own]) & (q >= k)) | ((own != shared) & (k >= starts[shared]) & (k < starts[shared + 1]))


def _prefixes(random, sizes):
    _, (ids, starts) = _documents(random, sizes)
    return [], [ids, starts, np.asarray([0, 0, 2, 2], np.int32)]


def _near(f, side, kernel, place):
    """A neighbourhood of kernel x kernel pixels, which is moved at the edges so that it lies within the image (NATTEN)."""

    def keep(q, k):
        near = True
        for x, y in zip(place(q), place(k)):
            near = near & (f.abs(f.clip(x, kernel // 2, side - 1 - kernel // 2) - y) <= kernel // 2)
        return near

    return keep


def _rows(i):
    return i // SIDE, i % SIDE


def _tiles(i):
    """Pixels in tiles of 2 x 2, one tile after the other."""
    tile, within = i // 4, i % 4
    return tile // (SIDE // 2) * 2 + within // 2, tile % (SIDE // 2) * 2 + within % 2


def _even_bits(code):
    code = code & 0x55555555
    for shift, bits in ((1, 0x33333333), (2, 0x0F0F0F0F), (4, 0x00FF00FF)):
        code = (code | (code >> shift)) & bits
    return code


def _morton(i):
    return _even_bits(i), _even_bits(i >> 1)


def _sliding_tiles(f, sides, kernel, text):
    """Tiles of one token of an image or film that see `kernel` tiles along each axis, and text tokens after them that see and are seen by all."""
    vision = math.prod(sides)

    def places(i):
        found = []
        for side in reversed(sides):
            found.append(i % side)
            i = i // side
        return found[::-1]

    def keep(q, k):
        left, right = kernel // 2, kernel // 2 + kernel % 2 - 1
        near = (q < vision) & (k < vision)
        for side, x, y in zip(sides, places(q), places(k)):
            centre = f.clip(x, left, side - 1 - right)
            near = near & (y >= centre - left) & (y <= centre + right)
        return near | ((q < vision) & (k >= vision) & (k < vision + text)) | ((q >= vision) & (k < vision + text))

    return keep


def _of_positions(keep):
    """A mask of the positions alone; keep(f) gives the function of both."""
    return mask_of(lambda f, a, b, h, q, k: keep(f)(q, k))


def _spatial(f):
    return lambda q, k: (k < 2 + 6) | (q < 2) | (f.abs(q - k) < 8)


def _temporal(f):
    return lambda q, k: (k < 2) | (q < 2) | (f.abs((q - 2) % 6 - (k - 2) % 6) < 2)


def _block_diffusion(f):
    """Noised tokens, then as many clean ones, in blocks of 5 (arXiv 2503.09573)."""
    length, block = 20, 5

    def keep(q, k):
        noised_q, noised_k = q < length, k < length
        block_q, block_k = q % length // block, k % length // block
        same = (block_q == block_k) & (noised_q == noised_k)
        earlier = (block_q > block_k) & noised_q & ~noised_k
        return same | earlier | ((block_q >= block_k) & ~noised_q & ~noised_k)

    return keep


def _tree(random, sizes):
    """Which nodes of a random tree are ancestors of which, itself included."""
    nodes = sizes[2]
    ancestors = np.eye(nodes, dtype=bool)
    for node in range(1, nodes):
        ancestors[node] |= ancestors[random.integers(0, node)]
    return [], [ancestors]


def _tree_mask(f, a, b, h, q, k):
    """A prefix of 9 keys, then the tree."""
    return (k < 9) | ((k >= 9) & a[0][q, f.clip(k - 9, 0, 23)])


def _draft_blocks(f):
    """A prefix of 8 keys, then blocks of 6 that see the prefix and themselves."""
    return lambda q, k: (k < 8) | ((k >= 8) & (q // 6 == (k - 8) // 6) & ((k - 8) % 6 <= q % 6))


def _global_tokens(random, sizes):
    return [], [random.random(sizes[2]) < 0.1]


IMAGE = {"seq": (SIDE * SIDE, SIDE * SIDE)}
MASKS = {
    "causal": Definition(_of_positions(lambda f: _causal), seq=(33, 33)),
    "sliding_window": Definition(_of_positions(lambda f: lambda q, k: (q >= k) & (q - k <= 6)), seq=(33, 33)),
    "prefix_lm": Definition(_of_positions(lambda f: lambda q, k: (k < 10) | (q >= k)), seq=(33, 33)),
    "document_causal": Definition(mask_of(lambda f, a, b, h, q, k: (a[0][q] == a[0][k]) & (q - a[1][a[0][q]] >= k - a[1][a[0][k]])), _documents, seq=(33, 33)),
    "packed_causal_document": Definition(mask_of(lambda f, a, b, h, q, k: (k >= a[1][a[0][q]]) & (q >= k)), _documents, seq=(33, 33)),
    "shared_prefix": Definition(mask_of(_shared_prefix), _prefixes, seq=(33, 33)),
    "batchify": Definition(_of_positions(lambda f: lambda q, k: (q // 8 == k // 8) & (q % 8 >= k % 8)), seq=(33, 33)),
    "natten": Definition(_of_positions(lambda f: _near(f, SIDE, 3, _rows)), **IMAGE),
    "tiled_natten": Definition(_of_positions(lambda f: _near(f, SIDE, 3, _tiles)), **IMAGE),
    "morton_natten": Definition(_of_positions(lambda f: _near(f, 8, 3, _morton)), seq=(64, 64)),
    "sliding_tiles_2d": Definition(_of_positions(lambda f: _sliding_tiles(f, (SIDE, SIDE), 3, 4)), seq=(40, 40)),
    "sliding_tiles_3d": Definition(_of_positions(lambda f: _sliding_tiles(f, (3, 3, 4), 2, 4)), seq=(40, 40)),
    "spatial_head": Definition(_of_positions(_spatial), seq=(38, 38)),
    "temporal_head": Definition(_of_positions(_temporal), seq=(38, 38)),
    "block_diffusion": Definition(_of_positions(_block_diffusion), seq=(40, 40)),
    "tree_causal": Definition(mask_of(_tree_mask), _tree, seq=(24, 33)),
    "draft_blocks": Definition(_of_positions(_draft_blocks), seq=(24, 32)),
    "global_sliding_window": Definition(mask_of(lambda f, a, b, h, q, k: (f.abs(q - k) <= 3) | a[0][q] | a[0][k]), _global_tokens, seq=(33, 33)),
}
SUITES = {"attention-gym score_mod": SCORES, "attention-gym mask_mod": MASKS}
