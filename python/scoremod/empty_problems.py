"""Problems without batches, heads, queries or keys: each row has no key, so nothing is compiled for their sizes, and nothing runs."""

import json
import re
from dataclasses import replace

import numpy as np

# Size -> the size whose default it is, for those that may be left out.
_DEFAULTS = {"heads_kv": "heads_q", "seq_kv": "seq_q"}
EMPTIABLE = ("batch", "heads_q", "seq_q", *_DEFAULTS)
_ZERO = re.compile(rf'"({"|".join(EMPTIABLE)})"\s*:\s*0\s*[,}}]')


def nonempty_twin(text):
    """(the text of the problem with sizes of 1 for those of 0, name -> 0 of those), by a problem's text. The text itself where none is 0, and of
    varlen tokens and pages, which are never none."""
    if not _ZERO.search(text):
        return text, {}
    try:
        problem = json.loads(text)
        if not isinstance(problem, dict) or "tokens_q" in problem or "paged" in problem:
            return text, {}
        problem = {**{name: problem[default] for name, default in _DEFAULTS.items()}, **problem}
    except (ValueError, KeyError):  # which compiling it refuses
        return text, {}
    empty = {name: 0 for name in EMPTIABLE if problem[name] == 0 and not isinstance(problem[name], bool)}
    if ("heads_q" in empty) != ("heads_kv" in empty):
        return text, {}
    operands = [_operand_of_ones(each) for each in problem.get("operands", ())]
    return json.dumps({**problem, **dict.fromkeys(empty, 1), "operands": operands}), empty


def _operand_of_ones(operand):
    shape = operand.get("shape") if isinstance(operand, dict) else None
    return {**operand, "shape": [size or 1 for size in shape]} if isinstance(shape, list) else operand


def operands_as_given(specs, operands):
    """The specs of the twin's operands for arrays of the empty problem, which have 0 where the twin's have 1."""
    shapes = {name: np.shape(operands[name]) for name in specs if operands is not None and name in operands}
    fit = {
        name: len(shape) == len(specs[name].shape) and all(n == m or (n, m) == (0, 1) for n, m in zip(shape, specs[name].shape))
        for name, shape in shapes.items()
    }
    return {name: replace(spec, shape=shapes[name]) if fit.get(name) else spec for name, spec in specs.items()}


def write_rows_without_keys(arrays, problem, operands):
    """Writes the results of a forward, of which the problem has no queries or no keys. arrays: name -> array, or None."""
    for name, array in arrays.items():
        if array is not None:
            array.fill(-np.inf if name in ("lse", "max_logit") else 0)
    lse, sink = arrays["lse"], problem.get("sink")
    if lse is not None and sink in ("learned", "off_by_one"):  # all that a row's sum has
        of_heads = np.asarray(operands["sink"], np.float32) if "sink" in (operands or {}) else np.zeros(problem["heads_q"], np.float32)
        lse[:] = of_heads[:, None]


def write_zeros(gradients):
    """Writes the arrays of a backward of such a problem."""
    for array in gradients:
        array.fill(0)
