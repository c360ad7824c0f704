"""Trains a small character model on this project's own pages, with a score function whose arrays learn, and the same model densely.

The text is packed: the end of one page and the start of the next lie in one sequence. The score function adds ALiBi with learned slopes and
caps scores at a learned cap; the mask lets characters see earlier ones of their own page. Both loss curves go into loss.png, all numbers
into loss.json.

usage: PYTHONPATH=python .venv/bin/python examples/jax/char_model.py [--steps N] [--out FOLDER] ...

On a GPU: --dtype bfloat16 --head-dim 64 --seq 1024, say.
"""

import argparse
import functools
import json
import sys
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dense_attention import dense_attention

from scoremod.jax import flex_attention, zoo

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench" / "jax"))
from provenance import provenance


class Shape(NamedTuple):
    layers: int = 2
    heads: int = 4
    head_dim: int = 16
    seq: int = 192
    batch: int = 8

    @property
    def features(self):
        return self.heads * self.head_dim


class Text(NamedTuple):
    characters: np.ndarray  # each as its number in the alphabet
    pages: np.ndarray  # the number of each character's page
    alphabet: int  # how many different ones there are


def read_text():
    """The pages of docs/, one after the other."""
    pages = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md"))]
    alphabet = {character: number for number, character in enumerate(sorted(set("".join(pages))))}
    characters = np.asarray([alphabet[character] for page in pages for character in page], np.int32)
    return Text(characters, np.repeat(np.arange(len(pages), dtype=np.int32), [len(page) for page in pages]), len(alphabet))


def init(shape, alphabet, seed=0):
    keys = iter(jax.random.split(jax.random.key(seed), 2 + 4 * shape.layers))

    def normal(*sizes):
        return jax.random.normal(next(keys), sizes, jnp.float32) * 0.7 / sizes[0] ** 0.5

    features = shape.features
    return {
        "embedding": normal(alphabet, features) * alphabet**0.5,
        "head": normal(features, alphabet),
        "layers": [
            {
                "qkv": normal(features, 3, shape.heads, shape.head_dim),
                "out": normal(features, features),
                "up": normal(features, 4 * features),
                "down": normal(4 * features, features),
                "slopes": zoo.alibi_slopes(shape.heads),
                "cap": jnp.float32(20.0),
            }
            for _ in range(shape.layers)
        ],
    }


def normalized(x):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def loss_of(attention, dtype, params, characters, pages):
    """Mean cross entropy of the next character, in nats. attention gets arrays of dtype; everything else is in that of the parameters."""
    x = params["embedding"][characters[:, :-1]]
    pages = pages[:, :-1]
    mask = zoo.all_of(zoo.causal(), lambda b, h, q_idx, kv_idx: pages[b, q_idx] == pages[b, kv_idx])
    for layer in params["layers"]:
        q, k, v = jnp.einsum("bsf,fnhd->nbshd", normalized(x), layer["qkv"]).astype(dtype or x.dtype)
        o = attention(q, k, v, zoo.compose(zoo.alibi(layer["slopes"]), zoo.soft_cap(layer["cap"])), mask)
        x = x + o.astype(x.dtype).reshape(x.shape) @ layer["out"]
        x = x + jax.nn.gelu(normalized(x) @ layer["up"]) @ layer["down"]
    log_p = jax.nn.log_softmax(normalized(x) @ params["head"])
    return -jnp.take_along_axis(log_p, characters[:, 1:, None], axis=-1).mean()


def learning_rate(number, steps, peak=2e-3, warm_up=20):
    """Rises to the peak, then falls to 0 as a cosine."""
    rest = jnp.maximum(number - warm_up, 0) / max(1, steps - warm_up)
    return peak * jnp.minimum(number / warm_up, 0.5 + 0.5 * jnp.cos(jnp.pi * rest))


def adam(params, gradients, moments, number, rate, decays=(0.9, 0.99)):
    """(params, moments) after step `number`, from 1. (Kingma and Ba 2015, https://arxiv.org/abs/1412.6980.)"""
    moments = [jax.tree.map(lambda m, g, d=decay, p=power: d * m + (1 - d) * g**p, moment, gradients) for decay, power, moment in zip(decays, (1, 2), moments)]
    first, second = (jax.tree.map(lambda m, d=decay: m / (1 - d**number), moment) for decay, moment in zip(decays, moments))
    return jax.tree.map(lambda x, m, s: (x - rate * m / (jnp.sqrt(s) + 1e-8)).astype(x.dtype), params, first, second), moments


def batches(text, shape, steps, seed=0):
    """(characters, pages) of each step: random places of the text, one character more than a sequence."""
    random = np.random.default_rng(seed)
    for _ in range(steps):
        starts = random.integers(0, len(text.characters) - shape.seq - 1, shape.batch)
        yield tuple(np.stack([x[i : i + shape.seq + 1] for i in starts]) for x in (text.characters, text.pages))


def train(attention, text, shape, steps, dtype=None, params=None):
    """The loss of each step, the parameters after the last, and the seconds of a step once it is compiled."""
    params = init(shape, text.alphabet) if params is None else params
    moments = [jax.tree.map(jnp.zeros_like, params)] * 2

    @jax.jit
    def step(params, moments, number, characters, pages):
        loss, gradients = jax.value_and_grad(functools.partial(loss_of, attention, dtype))(params, characters, pages)
        return loss, *adam(params, gradients, moments, number, learning_rate(number, steps))

    losses, start = [], 0.0
    for number, (characters, pages) in enumerate(batches(text, shape, steps), 1):
        loss, params, moments = step(params, moments, jnp.asarray(number, params["head"].dtype), characters, pages)
        losses.append(float(loss))
        start = start or time.perf_counter()
    return losses, params, (time.perf_counter() - start) / max(1, steps - 1)


def draw(losses, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (both, apart) = pyplot.subplots(2, 1, figsize=(7, 5), sharex=True, height_ratios=(3, 1))
    for (name, curve), style in zip(losses.items(), ("-", "--")):
        both.plot(curve, style, label=name)
    both.set(ylabel="cross entropy, nats", title="The next character: learned ALiBi slopes, soft cap, pages as documents")
    both.legend()
    apart.plot(np.subtract(*losses.values()))
    apart.set(xlabel="step", ylabel="difference")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in Shape._field_defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], default="float32", help="of query, key and value")
    parser.add_argument("--backend", help="flex_attention's; without it, the platform's own. \"xla\" runs everywhere")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "char_model", help="folder of loss.png and loss.json")
    arguments = parser.parse_args()
    shape = Shape(*(getattr(arguments, name) for name in Shape._fields))
    attentions = {"scoremod": functools.partial(flex_attention, backend=arguments.backend), "dense": dense_attention}
    text, losses, seconds, learned = read_text(), {}, {}, {}
    for name, attention in attentions.items():
        losses[name], params, seconds[name] = train(attention, text, shape, arguments.steps, arguments.dtype)
        learned[name] = [{each: np.asarray(layer[each]).tolist() for each in ("slopes", "cap")} for layer in params["layers"]]
        last = np.mean(losses[name][-10:])
        print(f"{name}: loss {losses[name][0]:.4f} at first, {last:.4f} over the last 10 steps, {1e3 * seconds[name]:.1f} ms a step")
    print(f"largest difference of the losses: {np.max(np.abs(np.subtract(*losses.values()))):.1e}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    draw(losses, arguments.out / "loss.png")
    result = provenance() | {
        "options": shape._asdict() | {name: getattr(arguments, name) for name in ("steps", "dtype", "backend")},
        "seconds_per_step": seconds,
        "learned": learned,
        "losses": losses,
    }
    (arguments.out / "loss.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"written: {arguments.out / 'loss.png'}, {arguments.out / 'loss.json'}")


if __name__ == "__main__":
    main()
