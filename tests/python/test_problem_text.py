"""The shorter way of most calls' new sizes gives the same text and the same structs."""

import ctypes
import itertools
import json
import random

import pytest

import scoremod
from scoremod import compile_spec, sizes
from scoremod.compile_spec import CompileSpec
from scoremod.problem import OperandTensor, ProblemTemplate
from scoremod.program import Builder


@pytest.mark.parametrize("layout", sizes.LAYOUTS)
def test_sizes_of_shapes_that_fit_are_those_of_all_checks(layout, monkeypatch, fresh_seed):
    choose, fit = random.Random(fresh_seed), 0
    for _ in range(2000):
        shapes = [[2, 4, 5, 8] for _ in range(3)]
        for _ in range(choose.randint(0, 2)):
            shape = choose.choice(shapes)
            shape[choose.randrange(4)] = choose.choice([0, 1, 2, 3, 4, 8])
        if choose.random() < 0.05:
            choose.choice(shapes).pop()
        results = []
        for short in (True, False):
            with monkeypatch.context() as patch:
                if not short:
                    patch.setattr(sizes, "_fitting", lambda *_: None)
                try:
                    results.append(sizes.sizes_of(layout, *shapes))
                except scoremod.InvalidArgumentError as error:
                    results.append(str(error))
        assert results[0] == results[1]
        fit += isinstance(results[0], sizes.Sizes)
    assert 100 < fit < 1900


def test_a_template_gives_the_problem_of_each_size():
    builder = Builder()
    number = builder.operand(None)
    builder.operands[number] = scoremod.program.OperandDecl("f32", ("h",))
    value = builder.op("add", builder.node("score", "f32"), builder.node("operand", "f32", payload=number))
    program, _ = builder.finish(value)
    template = ProblemTemplate(program, dtype="bf16", layout="BHSD", scale=0.5, stats=True, dropout=0.25, lengths={"kv": True})
    for batch, length in itertools.product((1, 3), (5, 2**20)):
        text = template.text(
            sizes.Sizes(batch, 4, 2, 7, length, 64, 32), [OperandTensor("f32", (4,), False, (3,))], {"k": (1, 2, 3, 4)}, {"sink": OperandTensor("f32", (4,))},
            {"tokens_q": 9, "paged": {"block_size": 16}},
        )  # fmt: skip
        assert json.loads(text) == {
            "batch": batch, "heads_q": 4, "heads_kv": 2, "seq_q": 7, "seq_kv": length, "dim_qk": 64, "dim_v": 32, "dtype": "bf16", "layout": "BHSD",
            "program": program.text(), "backward": False, "stats": True, "deterministic": False, "index_offsets": False, "dropout": 0.25, "lengths": {"kv": True}, "scale": 0.5,
            "operands": [
                {"name": "x0", "dtype": "f32", "shape": [4], "gradient": False, "strides": [3]},
                {"name": "sink", "dtype": "f32", "shape": [4], "gradient": True},
            ],
            "k": {"strides": {"batch": 1, "head": 2, "sequence": 3, "dim": 4}}, "tokens_q": 9, "paged": {"block_size": 16},
        }  # fmt: skip


def test_options_that_are_kept_are_those_that_are_made():
    given = list(itertools.product((None, "cpu"), (0, 3, True), (None, 0, 1), (None, "host", "cuda"), (None, 1, 2**40), (None, "wait", "serve")))
    for backend, threads, device, memory, max_workspace, new_sizes in given:
        spec = CompileSpec.of(backend=backend, threads=threads, device=device, memory=memory, max_workspace=max_workspace, new_sizes=new_sizes)
        kept, made = compile_spec.compile_options(spec), compile_spec._options(spec)
        for name, kind in made._fields_:
            if kind is not ctypes.POINTER(ctypes.c_char_p):
                assert getattr(kept, name) == getattr(made, name), name
    for wrong in ({"max_workspace": 0}, {"new_sizes": "now"}, {"memory": "a\0b"}):
        for _ in range(2):
            with pytest.raises(scoremod.InvalidArgumentError):
                compile_spec.compile_options(CompileSpec.of(**wrong))
