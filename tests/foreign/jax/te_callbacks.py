"""Score functions as TransformerEngine's tests have them: callbacks on a graph with tensors and backward callbacks, and the formula of each in JAX.

They are written anew from what its documentation allows. Callbacks read indices, compare and select, and take scalars and arrays by name. A backward
callback may use what the forward kept on their object.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

LOW = -1e9  # TransformerEngine's usual number for a mask


@dataclasses.dataclass
class Callbacks:
    """make() gives (score_mod, score_mod_bprop), and formula(tensors) the same score_mod as a function of scalars.

    tensors(random, sizes) are score_mod's by name, and constants those that score_mod_bprop takes beside them. sizes: [batch, heads, queries, keys].
    """

    make: Callable
    formula: Callable
    tensors: Callable = lambda random, sizes: {}
    constants: dict = dataclasses.field(default_factory=dict)


def indices(graph, score):
    return [graph.gen_index(input=score, axis=axis, compute_data_type="INT32").set_data_type("INT32") for axis in (2, 3)]


def selected(keep):
    """Callbacks that give LOW, and no gradient, where keep(graph, row, column, tensors) is false."""

    def make():
        def kept(graph, score, tensors):
            return keep(graph, *indices(graph, score), tensors).set_data_type("BOOLEAN")

        def forward(graph, score, tensors):
            return graph.binary_select(input0=score, input1=tensors["low"], mask=kept(graph, score, tensors))

        def backward(graph, dscore, tensors):
            return graph.binary_select(input0=dscore, input1=tensors["zero"], mask=kept(graph, dscore, tensors))

        return forward, backward

    return make


def mask(keep, formula, tensors=lambda random, sizes: {}):
    return Callbacks(
        selected(keep),
        lambda given: lambda s, b, h, i, j: jnp.where(formula(given, b, i, j), s, LOW),
        lambda random, sizes: {"low": LOW, **tensors(random, sizes)},
        {"zero": 0.0},
    )


def added(term, formula, tensors):
    """Callbacks that add term(graph, score, tensors), and hand on the gradient as it is."""
    make = lambda: (lambda graph, score, given: graph.add(a=score, b=term(graph, score, given)), lambda graph, dscore, given: dscore)  # noqa: E731
    return Callbacks(make, formula, tensors)


def table(shape):
    """A bias of the sizes that the letters of shape name: b, h, q and k, or 1."""

    def drawn(random, sizes):
        by_letter = dict(zip("bhqk", sizes)) | {"1": 1}
        return {"bias": random.standard_normal([by_letter[letter] for letter in shape]).astype(np.float32)}

    def formula(given):
        place = lambda *at: tuple(0 if letter == "1" else index for letter, index in zip(shape, at))  # noqa: E731
        return lambda s, *at: s + given["bias"][place(*at)]

    return added(lambda graph, score, given: given["bias"], formula, drawn)


class SoftCap:
    """Keeps the tanh of the forward for the backward."""

    def forward(self, graph, score, tensors):
        self._tanh = graph.tanh(input=graph.div(a=score, b=tensors["cap"]))
        return graph.mul(a=self._tanh, b=tensors["cap"])

    def backward(self, graph, dscore, tensors):
        return graph.mul(a=dscore, b=graph.sub(a=tensors["one"], b=graph.mul(a=self._tanh, b=self._tanh)))


class CausalSoftCap(SoftCap):
    """A soft cap, and then a causal mask."""

    def forward(self, graph, score, tensors):
        self._kept = graph.cmp_ge(*indices(graph, score)).set_data_type("BOOLEAN")
        return graph.binary_select(input0=super().forward(graph, score, tensors), input1=tensors["low"], mask=self._kept)

    def backward(self, graph, dscore, tensors):
        return graph.binary_select(input0=super().backward(graph, dscore, tensors), input1=tensors["zero"], mask=self._kept)


class Gate:
    """A factor for each head and query, which is the sigmoid of a tensor."""

    def forward(self, graph, score, tensors):
        self._gate = graph.sigmoid(input=tensors["gate"])
        return graph.scale(input=score, scale=self._gate)

    def backward(self, graph, dscore, tensors):
        return graph.scale(input=dscore, scale=self._gate)


class Squared:
    """The score's square, whose derivative reads the score."""

    def forward(self, graph, score, tensors):
        self._score = score
        return graph.mul(a=graph.mul(a=score, b=score), b=tensors["half"])

    def backward(self, graph, dscore, tensors):
        return graph.mul(a=dscore, b=graph.mul(a=graph.add(a=self._score, b=self._score), b=tensors["half"]))


def methods(kind):
    def make():
        made = kind()
        return made.forward, made.backward

    return make


def relative(graph, score, tensors):
    row, column = indices(graph, score)
    distance = graph.sub(a=row, b=column).set_data_type("FLOAT")
    return graph.mul(a=graph.abs(input=distance), b=tensors["slope"])


def documents(random, sizes):
    ids = [np.sort(random.integers(0, 3, (sizes[0], each))).astype(np.int32) for each in sizes[2:]]
    return {"row_id": ids[0][:, None, :, None], "column_id": ids[1][:, None, None, :]}


def lengths(random, sizes):
    return {"length": random.integers(1, sizes[3], (sizes[0], 1, 1, 1)).astype(np.int32)}


def window(graph, row, column, tensors):
    near = graph.cmp_le(input=graph.sub(a=row, b=column).set_data_type("INT32"), comparison=tensors["left"])
    return graph.logical_and(a=graph.cmp_ge(input=row, comparison=column), b=near)


def either_way(graph, row, column, tensors):
    before = graph.logical_and(a=tensors["forward"], b=graph.cmp_ge(input=row, comparison=column))
    after = graph.logical_and(a=graph.logical_not(input=tensors["forward"]), b=graph.cmp_le(input=row, comparison=column))
    return graph.logical_or(a=before, b=after)


def cap(random, sizes):
    return {"cap": np.float32(random.uniform(0.25, 1))}


def capped(given, s):
    return given["cap"] * jnp.tanh(s / given["cap"])


CALLBACKS = {
    "identity": Callbacks(lambda: (lambda graph, score, given: score, lambda graph, dscore, given: dscore), lambda given: lambda s, *at: s),
    "causal": mask(lambda graph, row, column, given: graph.cmp_ge(input=row, comparison=column), lambda given, b, i, j: i >= j),
    "causal to the end": mask(
        lambda graph, row, column, given: graph.cmp_ge(input=graph.add(a=row, b=given["shift"]).set_data_type("INT32"), comparison=column),
        lambda given, b, i, j: i + given["shift"] >= j,
        lambda random, sizes: {"shift": np.int32(sizes[3] - sizes[2])},
    ),
    "sliding window": mask(window, lambda given, b, i, j: (i >= j) & (i - j <= given["left"]), lambda random, sizes: {"left": 4}),
    "padding": mask(
        lambda graph, row, column, given: graph.cmp_lt(input=column, comparison=given["length"]),
        lambda given, b, i, j: j < given["length"][b, 0, 0, 0],
        lengths,
    ),
    "documents": mask(
        lambda graph, row, column, given: graph.cmp_eq(input=given["row_id"], comparison=given["column_id"]),
        lambda given, b, i, j: given["row_id"][b, 0, i, 0] == given["column_id"][b, 0, 0, j],
        documents,
    ),
    "either way": mask(
        either_way,
        lambda given, b, i, j: jnp.where(given["forward"], i >= j, i <= j),
        lambda random, sizes: {"forward": bool(random.integers(2))},
    ),
    "soft cap": Callbacks(methods(SoftCap), lambda given: lambda s, *at: capped(given, s), cap, {"one": 1.0}),
    "soft cap, causal": Callbacks(
        methods(CausalSoftCap),
        lambda given: lambda s, b, h, i, j: jnp.where(i >= j, capped(given, s), LOW),
        lambda random, sizes: {"low": LOW, **cap(random, sizes)},
        {"one": 1.0, "zero": 0.0},
    ),
    "squared": Callbacks(methods(Squared), lambda given: lambda s, *at: s * s * 0.5, lambda random, sizes: {"half": 0.5}),
    "gate": Callbacks(
        methods(Gate),
        lambda given: lambda s, b, h, i, j: s * jax.nn.sigmoid(given["gate"][0, h, i, 0]),
        lambda random, sizes: {"gate": random.standard_normal((1, *sizes[1:3], 1)).astype(np.float32)},
    ),
    "relative position": added(relative, lambda given: lambda s, b, h, i, j: s + given["slope"] * jnp.abs(i - j), lambda random, sizes: {"slope": 0.25}),
    "ALiBi": added(
        relative,
        lambda given: lambda s, b, h, i, j: s + given["slope"][0, h, 0, 0] * jnp.abs(i - j),
        lambda random, sizes: {"slope": -(2.0 ** -np.arange(1, sizes[1] + 1)).astype(np.float32).reshape(1, -1, 1, 1)},
    ),
    **{f"post-scale bias {shape}": table(shape) for shape in ("1hqk", "11qk", "b11k", "bhqk")},
}
