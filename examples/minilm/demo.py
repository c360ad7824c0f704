"""Runs the sentence encoder all-MiniLM-L6-v2 with all its attention computed by scoremod.

Compares every layer with the same model computed densely in NumPy, finds each sentence's nearest one, and draws an attention map
before and after a modifier. Exits with 1 when the agreement is worse than float32 explains.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

from agreement import Models, agreement, compare_layers
from attention_map import AttentionMap, attention_weights, draw_maps
from encoder import embed_sentences
from model_files import model_folder, tokenize
from padded_attention import PaddedAttention

HERE = Path(__file__).resolve().parent
PICTURE = HERE.parents[1] / "build" / "demo" / "attention_map.png"

# The picture's sentence, layer and head: one whose words look far.
MAP_SENTENCE, MAP_LAYER, MAP_HEAD = "Rain stopped the tennis final", 0, 8
MAP_MODIFIER = [
    "let distance = abs(q_idx - kv_idx)",
    "value = 5.0 * tanh(score / 5.0) - 0.25 * f32(distance)",
    "keep = distance <= 6",
]


def main():
    options = parse_options()
    start = time.perf_counter()
    try:
        sentences = read_sentences(options.sentences)
        folder = model_folder()
        tokens = tokenize(folder, sentences)
        models = Models.load(folder)
        models.tested.check_length(tokens)
    except (OSError, ValueError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2

    batch, seq = tokens.ids.shape
    attention = PaddedAttention(batch, seq, models.tested.heads, models.tested.head_dim, backend=options.backend)
    print(f"all-MiniLM-L6-v2, {batch} sentences of {tokens.lengths.min()} to {tokens.lengths.max()} tokens")
    print(f"attention by scoremod, backend '{attention.compiled.backend}', mask_mod: kv_idx < lengths[b]\n")

    passed, layers = report_layers(models, tokens, attention)
    passed &= report_embeddings(layers[-1], tokens, sentences)
    draw_picture([tested for tested, _, _ in layers], tokens, sentences, options.picture)
    print(f"\n{'agreement holds' if passed else 'AGREEMENT BROKEN'} ({time.perf_counter() - start:.1f} s)")
    return 0 if passed else 1


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=Path, default=HERE / "sentences.txt", help="text file, one sentence a line")
    parser.add_argument("--picture", type=Path, default=PICTURE, help="where the PNG goes (default: %(default)s)")
    parser.add_argument("--backend", help="scoremod's backend (default: the first that fits)")
    return parser.parse_args()


def read_sentences(path):
    sentences = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if len(sentences) < 2:
        raise ValueError(f"{path}: expected at least two sentences, one a line; found {len(sentences)}")
    return sentences


def report_layers(models, tokens, attention):
    """Prints the agreement of each layer; returns whether all hold, and each layer's (tested, plain, truth)."""
    print("Distance from the float64 model, and in brackets what is allowed: twice that of a dense")
    print("float32 model, plus the rounding of the result.\n")
    print("       attention output                            hidden state")
    print("layer  max abs             relative L2             max abs             relative L2")
    passed, layers = True, []
    for number, (found, outputs) in enumerate(compare_layers(models, tokens, attention), start=1):
        layers.append(outputs)
        passed &= found.context.holds and found.hidden.holds
        print(f"{number:5}  {describe(found.context)}    {describe(found.hidden)}")
    return passed, layers


def describe(found):
    return f"{found.max_abs:.1e} ({found.allowed_max_abs:.1e})   {found.relative_l2:.1e} ({found.allowed_relative_l2:.1e}){'' if found.holds else ' <-- WORSE'}"


def report_embeddings(last_layers, tokens, sentences):
    """Prints the embeddings' agreement and each sentence's nearest; returns whether the agreement holds."""
    embeddings, plain, truth = (embed_sentences(layer.hidden, tokens) for layer in last_layers)
    found = agreement(embeddings, plain, truth)
    cosines = nearest_cosines(embeddings)
    nearest = cosines.argmax(axis=1)
    same = int((nearest == nearest_cosines(truth).argmax(axis=1)).sum())
    print(f"\nembeddings: {describe(found)}")
    print(f"nearest sentence: the same as the float64 model's for {same} of {len(sentences)}\n")
    for index, other in enumerate(nearest):
        print(f"  {sentences[index]}\n    {cosines[index, other]:.3f}  {sentences[other]}")
    return found.holds


def nearest_cosines(embeddings):
    """Cosines of all pairs of unit vectors; a sentence is not its own neighbour."""
    cosines = embeddings @ embeddings.T
    np.fill_diagonal(cosines, -2)
    return cosines


def draw_picture(layers, tokens, sentences, path):
    index = next((i for i, sentence in enumerate(sentences) if sentence.startswith(MAP_SENTENCE)), 0)
    words = tokens.words[index]
    q, k = (np.ascontiguousarray(x[index : index + 1, : len(words)]) for x in (layers[MAP_LAYER].q, layers[MAP_LAYER].k))
    maps = []
    for title, program in (("as trained", ["value = score"]), ("modified", MAP_MODIFIER)):
        weights = attention_weights(q, k, program)[MAP_HEAD]
        maps.append(AttentionMap(f"layer {MAP_LAYER + 1}, head {MAP_HEAD + 1}, {title}\n" + "\n".join(program), words, weights))
    draw_maps(maps, path)
    print(f'\nattention map of "{sentences[index]}",\nbefore and after a modifier: {path}')


if __name__ == "__main__":
    sys.exit(main())
