"""Whatever a score function asks a captured tensor or PyTorch itself, a call gives what a process would that has no trace of an earlier call.

Each question is asked in one state, so that its trace is kept if it may be, and then in another that looks the same to a trace's key. All public
attributes and methods of tensors are asked, and all functions of PyTorch that answer without an argument.
"""

import contextlib
import importlib
import itertools
import json
import random as pseudo_random
import re
import subprocess
import sys
import types
import warnings
from pathlib import Path

import pytest
import torch

from scoremod.torch import eager_calls, flex_attention, function_keys, kept_traces, pure_functions, trace_modes
from scoremod.torch.captures import Extents, Read
from scoremod.torch.function_keys import key_of
from scoremod.torch.kept_traces import kept_trace

B, H, S = 1, 2, 4
EXTENTS = Extents((0, B), (0, H), (0, S), (0, S))


_METHODS = (types.FunctionType, types.MethodDescriptorType)


def number_of(answer):
    """A factor that tells answers apart. Written without recursion, so that a trace that calls it is kept."""
    if isinstance(answer, (tuple, list)):
        return 6.0 + sum([number_of_one(each) * (i + 1) for i, each in enumerate(answer)])
    return number_of_one(answer)


def number_of_one(answer):
    if answer is None:
        return 0.5
    if isinstance(answer, torch.Tensor):
        return 1.5
    if isinstance(answer, (bool, int, float)):
        return 2.0 + answer % 1021
    if isinstance(answer, (str, torch.dtype, torch.device, torch.layout)):
        return 4.0 + sum([ord(each) * (i + 1) for i, each in enumerate(str(answer))]) % 1021
    return 5.0


def asking(question):
    """A function t -> score_mod, which asks a question written as Python."""
    text = f"def ask(t):\n    def score_mod(score, b, h, q_idx, kv_idx):\n        return score * number_of({question}) + t[h]\n    return score_mod\n"
    namespace = {"torch": torch, "number_of": number_of}
    exec(compile(text, f"<{question}>", "exec"), namespace)
    return namespace["ask"]


def base():
    return torch.ones(H)


def with_gradient():
    tensor = torch.ones(H, requires_grad=True)
    tensor.grad = torch.ones(H)
    return tensor


def of_inference():
    with torch.inference_mode():
        return torch.ones(H)


def with_an_attribute():
    tensor = torch.ones(H)
    tensor.factor = 3.0
    return tensor


# Tensors that a trace's key can tell, or must not need to.
TENSORS = {
    "learned": lambda: torch.ones(H).requires_grad_(),
    "with a gradient": with_gradient,
    "computed": lambda: torch.ones(H).requires_grad_() * 1,
    "with other strides": lambda: torch.ones(2 * H)[::2],
    "from an offset on": lambda: torch.ones(H + 1)[1:],
    "a view": lambda: torch.ones(H).view(H),
    "written": lambda: torch.ones(H).add_(0),
    "of other numbers": lambda: torch.arange(3.0, 3.0 + H),
    "of inference": of_inference,
    "a parameter": lambda: torch.nn.Parameter(torch.ones(H)),
    "negated": lambda: torch.complex(torch.zeros(H), -torch.ones(H)).conj().imag,
    "shared": lambda: torch.ones(H).share_memory_(),
    "with an attribute": with_an_attribute,
}


@contextlib.contextmanager
def changed(get, change, value):
    before = get()
    change(value)
    try:
        yield
    finally:
        change(before)


@contextlib.contextmanager
def seeded():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch.initial_seed() + 1)
        yield


STATES = {
    "float64": lambda: changed(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast to half": lambda: torch.autocast("cpu", torch.float16),
    "autocast without a cache": lambda: torch.autocast("cpu", torch.bfloat16, cache_enabled=False),
    "deterministic": lambda: changed(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True),
    "debugging": lambda: changed(torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 1),
    "one thread more": lambda: changed(torch.get_num_threads, torch.set_num_threads, torch.get_num_threads() + 1),
    "less precision": lambda: changed(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"),
    "another seed": seeded,
    "anomalies": lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
    "warnings": lambda: changed(torch.is_warn_always_enabled, torch.set_warn_always, True),
    "another device": lambda: torch.device("meta"),
    "no mkldnn": lambda: torch.backends.mkldnn.flags(enabled=False),
    "no cudnn": lambda: torch.backends.cudnn.flags(enabled=False),
}
MODULES = (
    "torch",
    "torch.random",
    "torch.compiler",
    "torch.jit",
    "torch.autograd",
    "torch.cuda",
    "torch.backends.cudnn",
    "torch.backends.mkldnn",
    "torch.backends.cuda",
)
ASKS = re.compile(r"(is|are|get|has|initial|preferred)_|.*(_enabled|_available|_mode|_level)$")


def questions_to_tensors():
    names = [name for name in dir(torch.Tensor) if not name.startswith("_")]
    names += ["_version", "_base", "_backward_hooks", "__class__", "__dict__"]
    given = [f"t.{name}({argument_of(name)})" if isinstance(getattr(torch.Tensor, name), _METHODS) else f"t.{name}" for name in names]
    # These are no attribute and no method.
    return [*given, "id(t)", "hash(t)", "str(t)", "repr(t)", "f'{t}'", "type(t) is torch.nn.Parameter", "t is t.contiguous()", "len(t)", "t.dtype.itemsize",
            "getattr(t, 'factor', 1.0)", "hasattr(t, 'factor')", "vars(t)", "len(t.__dict__)", "t.factor", "t.grad is None", "t.requires_grad and 7"]  # fmt: skip


def argument_of(method):
    """An argument that a method can be called with, if it can be called at all: nothing, a number or a tensor."""
    for text in ("", "0", "t"):
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            eval(f"t.{method}({text})", {"t": base()})
            return text
    return ""


def questions_to_torch():
    found = []
    for module in MODULES:
        values = vars(importlib.import_module(module))
        found += [f"{module}.{name}()" for name, value in sorted(values.items()) if ASKS.match(name) and answers(value)]
    flags = ("torch.backends.cudnn.enabled", "torch.backends.cudnn.deterministic", "torch.backends.mkldnn.enabled", "torch.is_autocast_enabled('cpu')")
    return [*found, *flags, "torch.get_autocast_dtype('cpu')", "torch.tensor(0.1).dtype", "torch.ones(2).device", "(torch.arange(3) / 2).dtype"]


def answers(value):
    if not callable(value) or isinstance(value, type):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return isinstance(value(), (bool, int, str, torch.dtype, torch.device))
        except Exception:
            return False


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(eager_calls, "_kept", {})
    monkeypatch.setattr(kept_traces, "_kept", {})
    monkeypatch.setattr(kept_traces, "_told", {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def traced(score_mod):
    """(what a call computes, whether the trace is kept): the program with the kind of each operand's source, or the error that is raised."""
    try:
        functions, captured = key_of(score_mod, None)
        found, sources, is_kept = kept_trace((score_mod, None), functions, captured, EXTENTS, torch.device("cpu"))
    except Exception as error:
        return type(error).__name__, False
    return (found.program.text(), [isinstance(source, Read) for source in sources]), is_kept


def afresh(score_mod):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_traces, "_kept", {})
        return traced(score_mod)[0]


def stale(question, in_first, in_second):
    """None where the call in the second state is right; else what was found there and what is expected. in_first, in_second: (state, tensor) each."""
    ask = asking(question)
    (first, tensor), (second, other) = in_first, in_second
    with first():
        if not traced(ask(tensor))[1]:
            return None  # no call can find a trace that isn't kept
    with second():
        expected = afresh(ask(other))
        if expected != afresh(ask(other)):  # such as a seed, of which no two calls agree
            found, is_kept = traced(ask(other))
            return (question, "is kept") if is_kept else None
        found, _ = traced(ask(other))
    return None if found == expected else (question, found, expected)


def stale_of_tensors(questions, chosen=None):
    """chosen: what chooses two tensors for each method; all are tried for the rest."""
    usual, wrong = contextlib.nullcontext, []
    for question in questions:
        names = chosen.sample(list(TENSORS), 1) if chosen is not None and question.endswith(")") else TENSORS
        for name in names:
            one, other = base(), TENSORS[name]()
            for pair in ((one, other), (other, one)):
                found = stale(question, *((usual, tensor) for tensor in pair))
                wrong += [(name, *found)] if found else []
    return wrong


def stale_of_states(questions):
    usual, wrong = contextlib.nullcontext, []
    for question, (name, state) in itertools.product(questions, STATES.items()):
        for pair in ((usual, state), (state, usual)):
            found = stale(question, *((each, base()) for each in pair))
            wrong += [(name, *found)] if found else []
    return wrong


def shares(questions, count):
    return [questions[i::count] for i in range(count)]


@pytest.mark.parametrize("share", range(8))
def test_what_a_tensor_is_asked_is_answered_anew(share, seed):
    assert stale_of_tensors(shares(questions_to_tensors(), 8)[share], pseudo_random.Random(seed)) == []


def test_what_pytorch_asks_of_its_own_numbers_is_answered_alike_for_all_tensors():
    """Found at random: covariances ask for numbers that PyTorch writes, which was refused, but not for tensors of inference."""
    assert stale_of_tensors(["t.corrcoef()", "t.cov()", "torch.equal(torch.tensor(1.0).le(0), torch.tensor(False))"]) == []
    (program, _), is_kept = traced(asking("torch.equal(torch.tensor(1.0).le(0), torch.tensor(False))")(base()))
    assert "score * 3.0" in program and is_kept


def test_numbers_of_captured_tensors_keep_no_trace():
    (program, _), is_kept = traced(asking("torch.equal(t * torch.scalar_tensor(2.0), t + 1.0)")(base()))
    assert "score * 3.0" in program and not is_kept


@pytest.mark.parametrize("share", range(4))
def test_what_pytorch_is_asked_is_answered_anew(share):
    questions = questions_to_torch()
    assert len(questions) > 50
    assert stale_of_states(shares(questions, 4)[share]) == []


@pytest.mark.parametrize(
    "question",
    [
        "t.shape",
        "t.dtype",
        "t.dim()",
        "t.requires_grad",
        "t.stride()",
        "t.is_contiguous()",
        "torch.is_grad_enabled()",
        "torch.get_default_dtype()",
        "t.float() is None",
    ],
)
def test_what_a_key_holds_is_asked_once(question):
    score_mod = asking(question)(base())
    assert traced(score_mod)[1] and traced(score_mod)[1]


def test_a_question_that_no_key_holds_would_be_found(monkeypatch):
    """With every answer taken for one that the key holds, stale ones are seen."""
    questions = ["t.grad is None", "t.storage_offset()", "t._version", "t.is_inference()", "id(t)", "str(t)"]
    for module in (trace_modes, pure_functions):
        monkeypatch.setattr(module, "answers_by_key", lambda function: True)
    monkeypatch.setattr(function_keys, "is_pure", lambda value: True)
    monkeypatch.setattr(function_keys, "reading_of", lambda *arguments, real=function_keys.reading_of: real(*arguments)._replace(impure_builtins=frozenset()))
    monkeypatch.setattr(function_keys, "is_seen", lambda name: True)
    judged = function_keys._objection_to, function_keys._objection_to_module
    for kept in judged:  # earlier questions were judged by the lists
        kept.cache_clear()
    try:
        _expect_stale_answers(questions)
    finally:
        for kept in judged:
            kept.cache_clear()


def _expect_stale_answers(questions):
    assert {found[1] for found in stale_of_tensors(questions)} >= {"t.grad is None", "t.storage_offset()", "t.is_inference()"}
    assert stale_of_states(["torch.get_float32_matmul_precision()"])


_IN_ANOTHER_PROCESS = """
import json, sys, warnings
sys.path[:0] = json.loads(sys.argv[1])
warnings.simplefilter("ignore")
from test_kept_trace_questions import outputs
print(json.dumps(outputs(json.loads(sys.argv[2]), earlier=False)))
"""


def outputs(cases, earlier):
    """The outputs of flex_attention for cases of (question, state, name of a tensor or None).

    earlier: whether a call in the usual state with a usual tensor comes before."""
    query, results = torch.arange(float(B * H * S * 8)).reshape(B, H, S, 8).sin(), []
    for question, state, tensor in cases:
        ask = asking(question)
        try:
            if earlier:
                flex_attention(query, query, query, ask(base()))
            other = TENSORS[tensor]() if tensor else base()
            with STATES[state]() if state else contextlib.nullcontext():
                results.append(flex_attention(query, query, query, ask(other)).tolist())
        except Exception:
            results.append("raises")
    return results


def test_another_process_gives_the_same(seed):
    chosen = pseudo_random.Random(seed)
    of_tensors = [
        question for question in questions_to_tensors() if not re.search(r"id\(|hash|data_ptr|_cdata|rand|normal|bernoulli|multinomial|__dict__", question)
    ]
    cases = [(question, None, chosen.choice(list(TENSORS))) for question in chosen.sample(of_tensors, 30)]
    cases += [(question, chosen.choice(list(STATES)), None) for question in chosen.sample([each for each in questions_to_torch() if "seed" not in each], 30)]
    cases += [("t.requires_grad", None, "learned"), ("t.grad is None", None, "with a gradient"), ("torch.is_grad_enabled()", "no gradients", None)]
    folder = Path(__file__).resolve().parent
    paths = [str(folder), str(folder.parents[1] / "python")]
    run = subprocess.run([sys.executable, "-c", _IN_ANOTHER_PROCESS, json.dumps(paths), json.dumps(cases)], capture_output=True, text=True, check=True)
    expected = json.loads(run.stdout.splitlines()[-1])
    for case, found, right in zip(cases, outputs(cases, earlier=True), expected, strict=True):
        assert found == right, case


class TestContainers:
    """A trace that reads containers is kept, for what it read is in its key."""

    @pytest.mark.parametrize(
        "read",
        [
            lambda held: held.dict["slopes"],
            lambda held: held.dict.get("slopes"),
            lambda held: held.list[0],
            lambda held: held.parameters_by_name["slopes"],
            lambda held: held.parameters_by_number[0],
            lambda held: held.modules_by_number[0].bias,
            lambda held: held.nested["a"][1]["slopes"],
        ],
    )
    def test_a_tensor_in_a_container_is_read_by_a_kept_trace(self, read, monkeypatch):
        def holding(slopes):
            linear = torch.nn.Linear(1, H)
            linear.bias = torch.nn.Parameter(slopes)
            return types.SimpleNamespace(
                dict={"slopes": slopes, "other": object()},
                list=[slopes, 1],
                parameters_by_name=torch.nn.ParameterDict({"slopes": torch.nn.Parameter(slopes)}),
                parameters_by_number=torch.nn.ParameterList([torch.nn.Parameter(slopes)]),
                modules_by_number=torch.nn.ModuleList([linear]),
                nested={"a": [None, {"slopes": slopes}]},
            )

        text = Path(__file__).read_text().splitlines()[read.__code__.co_firstlineno - 1]
        if ".get(" in text:
            held_of = lambda slopes: types.SimpleNamespace(dict={"slopes": slopes})  # noqa: E731 (it is read as a whole)
        else:
            held_of = holding
        expression = text.split("held: ")[1].rstrip(",").removeprefix("held.")
        first = expression.split("[")[0].split(".")[0]
        source = f"def make(held):\n    c = held.{first}\n    return lambda score, b, h, q_idx, kv_idx: score + c{expression[len(first) :]}[h]\n"
        namespace = {}
        exec(source, namespace)
        made, trace = [], kept_traces.Tracer.trace
        monkeypatch.setattr(kept_traces.Tracer, "trace", lambda *arguments: made.append(1) or trace(*arguments))
        query = torch.ones(B, H, S, 8)
        for slopes in (torch.ones(H), torch.arange(1.0, 1.0 + H)):
            found = flex_attention(query, query, query, namespace["make"](held_of(slopes)), return_lse=True)[1]
            expected = flex_attention(query, query, query, lambda score, b, h, q_idx, kv_idx: score + slopes[h], return_lse=True)[1]  # noqa: B023
            assert torch.equal(found, expected)
        assert len(made) == 2  # one of each function
