"""Attention maps that scoremod itself computed, and their picture."""

from dataclasses import dataclass

import numpy as np

import scoremod


@dataclass(frozen=True)
class AttentionMap:
    title: str
    words: list
    weights: np.ndarray  # [query, key]: each row sums to 1


def attention_weights(q, k, program):
    """[heads, query, key]: the softmax's output for q and k [1, seq, heads, dim].

    Attention gives O = P V and keeps P to itself; with the identity for V, O is P.
    """
    _, seq, heads, dim = q.shape
    identity = np.broadcast_to(np.eye(seq, dtype=q.dtype)[:, None, :], (seq, heads, seq))[None]
    problem = {"batch": 1, "heads_q": heads, "seq_q": seq, "dim_qk": dim, "dim_v": seq, "program": program}
    o = scoremod.Attention(problem).forward(q, k, np.ascontiguousarray(identity))
    return o[0].transpose(1, 0, 2)


def draw_maps(maps, path):
    """Draws the maps side by side, with the words on both axes and one colour scale, into a PNG file."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.colors import PowerNorm

    figure, axes = plt.subplots(1, len(maps), figsize=(6.6 * len(maps) + 0.8, 7.2), layout="constrained", dpi=110)
    # The square root spreads the small weights, of which there are most.
    colours = PowerNorm(0.5, vmin=0, vmax=max(one.weights.max() for one in maps))
    for axis, one in zip(axes, maps):
        # Weights of exactly 0, which a mask makes, are left white: they differ from small ones.
        image = axis.imshow(np.ma.masked_equal(one.weights, 0), cmap="viridis", norm=colours)
        axis.set_title(one.title, fontsize=11, loc="left")
        places = range(len(one.words))
        axis.set_xticks(places, one.words, rotation=60, ha="right", rotation_mode="anchor", fontsize=9)
        axis.set_yticks(places, one.words, fontsize=9)
        axis.set_xlabel("key: the word that is looked at")
        axis.set_ylabel("query: the word that looks")
    figure.colorbar(image, ax=axes, label="attention weight", shrink=0.7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)
