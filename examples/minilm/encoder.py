"""all-MiniLM-L6-v2: a BERT of 6 layers, 12 heads of dim 32, whose mean over the tokens is the sentence's embedding.

The architecture is that of Devlin et al., "BERT" (https://arxiv.org/abs/1810.04805); the names of the weights are those of the
model's file.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

# NumPy has no erf. This is the C library's, an element at a time.
_erf = np.vectorize(math.erf, otypes=[np.float64])


@dataclass(frozen=True)
class Tokens:
    """A batch of sentences, padded to the longest."""

    ids: np.ndarray  # [batch, seq] int
    lengths: np.ndarray  # [batch] int32
    words: list  # [batch][length] str: the tokens as text

    def is_real(self):
        """[batch, seq] bool: false for padding."""
        return np.arange(self.ids.shape[1]) < self.lengths[:, None]


@dataclass(frozen=True)
class Layer:
    """Tensors of one layer. q, k, v, context: [batch, seq, heads, dim]; hidden: [batch, seq, hidden size]."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    context: np.ndarray  # the attention's output
    hidden: np.ndarray  # the layer's


class Encoder:
    """The model in one float dtype. The attention is the caller's: attention(q, k, v, lengths) -> context, see dense.py."""

    def __init__(self, weights, config, dtype):
        """weights: name -> array; config: the model's config.json."""
        if config["hidden_act"] != "gelu" or config["position_embedding_type"] != "absolute":
            raise ValueError("expected a BERT with gelu and absolute positions, found " + json.dumps(config))
        self.dtype = np.dtype(dtype)
        self.layer_count = config["num_hidden_layers"]
        self.heads = config["num_attention_heads"]
        self.head_dim = config["hidden_size"] // self.heads
        self.max_length = config["max_position_embeddings"]
        self._eps = self.dtype.type(config["layer_norm_eps"])
        self._weights = {
            # The embedding table is a third of the model and is only ever indexed: its rows are converted on the way out.
            name: array if name.startswith("embeddings.word") else array.astype(self.dtype)
            for name, array in weights.items()
            if array.dtype.kind == "f"
        }

    @classmethod
    def load(cls, folder, dtype=np.float32):
        """Reads config.json and model.safetensors."""
        from safetensors.numpy import load_file

        config = json.loads((Path(folder) / "config.json").read_text())
        return cls(load_file(Path(folder) / "model.safetensors"), config, dtype)

    def check_length(self, tokens):
        """Raises ValueError for a sentence longer than the model has positions for."""
        if tokens.lengths.max() > self.max_length:
            number = int(tokens.lengths.argmax()) + 1
            raise ValueError(
                f"sentence {number}: expected at most {self.max_length} tokens, which is all that the model has positions for; "
                f"found {tokens.lengths.max()}; split it"
            )

    def layers(self, tokens, attention):
        """Runs the model and yields each Layer as it is done."""
        hidden = self._embed(tokens.ids)
        for index in range(self.layer_count):
            layer = self._layer(f"encoder.layer.{index}", hidden, tokens.lengths, attention)
            hidden = layer.hidden
            yield layer

    def _embed(self, ids):
        words = self._weights["embeddings.word_embeddings.weight"][ids].astype(self.dtype)
        positions = self._weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
        segment = self._weights["embeddings.token_type_embeddings.weight"][0]
        return self._norm("embeddings.LayerNorm", words + positions + segment)

    def _layer(self, name, x, lengths, attention):
        q, k, v = (self._split(self._linear(f"{name}.attention.self.{part}", x)) for part in ("query", "key", "value"))
        context = attention(q, k, v, lengths)
        attended = self._linear(f"{name}.attention.output.dense", context.reshape(x.shape))
        x = self._norm(f"{name}.attention.output.LayerNorm", attended + x)
        wide = self._gelu(self._linear(f"{name}.intermediate.dense", x))
        hidden = self._norm(f"{name}.output.LayerNorm", self._linear(f"{name}.output.dense", wide) + x)
        return Layer(q, k, v, context, hidden)

    def _split(self, x):
        return x.reshape(*x.shape[:2], self.heads, -1)

    def _linear(self, name, x):
        return x @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _norm(self, name, x):
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = (centred * centred).mean(axis=-1, keepdims=True)
        return centred / np.sqrt(variance + self._eps) * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]

    def _gelu(self, x):
        return x * (self.dtype.type(0.5) * (1 + _erf(x / math.sqrt(2)).astype(self.dtype)))


def embed_sentences(hidden, tokens):
    """[batch, hidden size]: the mean of each sentence's real tokens, as a unit vector."""
    real = tokens.is_real()[:, :, None]
    mean = (hidden * real).sum(axis=1) / tokens.lengths[:, None].astype(hidden.dtype)
    return mean / np.linalg.norm(mean, axis=-1, keepdims=True)
