"""Runs the encoder with the attention in question and densely, layer by layer, and says how far they are apart."""

from dataclasses import dataclass

import numpy as np

from dense import dense_attention
from encoder import Encoder

FLOAT32_ROUNDING = float(np.finfo(np.float32).eps) / 2


@dataclass(frozen=True)
class Agreement:
    """Distances from the float64 truth: of what is tested, and of the dense float32 model, which sets what is allowed."""

    max_abs: float
    relative_l2: float
    allowed_max_abs: float
    allowed_relative_l2: float

    @property
    def holds(self):
        return self.max_abs <= self.allowed_max_abs and self.relative_l2 <= self.allowed_relative_l2


@dataclass(frozen=True)
class LayerAgreement:
    context: Agreement  # the attention's output, for the same q, k and v
    hidden: Agreement  # the layer's output, after everything before it


@dataclass(frozen=True)
class Models:
    """Three models with the same weights."""

    tested: Encoder  # float32, attention by scoremod
    plain: Encoder  # float32, dense
    truth: Encoder  # float64, dense

    @classmethod
    def load(cls, folder):
        single = Encoder.load(folder, np.float32)
        return cls(single, single, Encoder.load(folder, np.float64))


def agreement(tested, plain, truth):
    """At most twice the error of a plain float32 evaluation, plus what rounding the true value to float32 takes."""
    max_abs, relative_l2 = _distance(tested, truth)
    plain_max_abs, plain_relative_l2 = _distance(plain, truth)
    return Agreement(
        max_abs,
        relative_l2,
        2 * plain_max_abs + FLOAT32_ROUNDING * float(np.abs(truth).max()),
        2 * plain_relative_l2 + FLOAT32_ROUNDING,
    )


def compare_layers(models, tokens, attention):
    """Yields, for each layer, its LayerAgreement and the three models' Layers (tested, plain, truth). Words only, no padding."""
    real = tokens.is_real()
    runs = zip(
        models.tested.layers(tokens, attention),
        models.plain.layers(tokens, dense_attention),
        models.truth.layers(tokens, dense_attention),
    )
    for layers in runs:
        tested, plain, truth = layers
        q, k, v = tested.q, tested.k, tested.v
        context = agreement(
            tested.context[real],
            dense_attention(q, k, v, tokens.lengths)[real],
            dense_attention(*(array.astype(np.float64) for array in (q, k, v)), tokens.lengths)[real],
        )
        hidden = agreement(tested.hidden[real], plain.hidden[real], truth.hidden[real])
        yield LayerAgreement(context, hidden), layers


def _distance(x, truth):
    difference = x.astype(np.float64) - truth
    return float(np.abs(difference).max()), float(np.linalg.norm(difference) / np.linalg.norm(truth))
