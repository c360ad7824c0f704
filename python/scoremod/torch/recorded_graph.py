"""Graphs of callbacks, recorded as plain values: callbacks that build the same are one function, which is traced once.

A recording is (steps, result): steps are tuples (function, *numbers of earlier steps), and result is the number of the step that the callback returned.
Three kinds have no steps for arguments: ("input", name), ("constant", number), and ("element", name, dims) of a tensor, where dims says which of its
sizes are 1.
"""

import torch

from scoremod import callback_graph
from scoremod.errors import InvalidArgumentError
from scoremod.multiples import ALONE, CHOICE, CONSTANT, MULTIPLE, PRODUCT, QUOTIENT, SUM, ZERO, kind_of
from scoremod.torch.surrogate import stopped, surrogate

_ARITHMETIC = ("add", "sub", "mul", "div", "neg", "abs", "maximum", "minimum", "fmod", "pow")
_OF_FLOATS = ("sqrt", "rsqrt", "reciprocal", "exp", "expm1", "log", "ceil", "floor", "sin", "cos", "tan", "erf", "tanh", "sigmoid", "softplus")
_COMPARISONS = ("eq", "neq", "gt", "ge", "lt", "le")
_LOGICAL = ("logical_and", "logical_or", "logical_not")
# Function -> PyTorch's, where that has another name.
_OTHERS = {"neq": torch.ne, "softplus": torch.nn.functional.softplus}
_FUNCTIONS = {name: _OTHERS.get(name) or getattr(torch, name) for name in (*_ARITHMETIC, *_OF_FLOATS, *_COMPARISONS, *_LOGICAL, "where")}
# Function -> its rule in scoremod.multiples.
_MULTIPLES = {"neg": ALONE, "to_float": ALONE, "add": SUM, "sub": SUM, "where": CHOICE, "mul": PRODUCT, "div": QUOTIENT}
INDICES = ("b", "h", "q_idx", "kv_idx")
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class _Value:
    """A step of a recorder, and the name of its dtype."""

    __slots__ = ("kind", "recorder", "step")

    def __init__(self, recorder, step, kind):
        self.recorder, self.step, self.kind = recorder, step, kind


class Recorder:
    """The functions of a callback_graph.Graph, each of which adds a step."""

    def __init__(self):
        self.steps, self.numbers = [], {}

    def step(self, kind, *step):
        """The _Value of a step, which is taken once."""
        if step not in self.numbers:
            self.numbers[step] = len(self.steps)
            self.steps.append(step)
        return _Value(self, self.numbers[step], kind)

    def kind(self, value):
        return value.kind

    def constant(self, number, kind):
        return self.step(kind, "constant", float(number) if kind == "float32" else number)

    def to_float(self, value):
        return value if value.kind == "float32" else self.step("float32", "to_float", value.step)

    def call(self, name, values):
        values = [value if isinstance(value, _Value) else self.constant(value, "float32") for value in values]
        if any(value.recorder is not self for value in values):
            raise InvalidArgumentError(f"graph: expected tensors of this graph, found one of another call's, in {name}; make it anew in each call")
        kinds = [value.kind for value in values]
        if name in _LOGICAL and any(kind != "bool" for kind in kinds):
            raise TypeError(f"{name} of {kinds}")
        if (name in _ARITHMETIC or name in _OF_FLOATS) and "bool" in kinds:
            raise TypeError(f"{name} of {kinds}")
        if name == "where" and kinds[0] != "bool":
            values[0] = self.call("neq", [self.to_float(values[0]), 0.0])
        kind = "bool" if name in _LOGICAL or name in _COMPARISONS else values[-1].kind
        return self.step(kind, name, *(value.step for value in values))


def _function(name):
    return lambda recorder, *values: recorder.call(name, values)


for _name in (*_ARITHMETIC, *_OF_FLOATS, *_COMPARISONS, *_LOGICAL, "where"):
    setattr(Recorder, _name, _function(_name))


class Tensor(callback_graph.Tensor):
    __doc__ = callback_graph.Tensor.__doc__

    @property
    def functions(self):
        return self.value.recorder


class Graph(callback_graph.Graph):
    __doc__ = callback_graph.Graph.__doc__
    tensor = Tensor

    def __init__(self):
        self.functions = Recorder()
        super().__init__([self.functions.step("int32", "input", index) for index in INDICES])

    def run(self, callback, name, given, tensors):
        """The recording of a callback, and of what ran before it on the same graph. given: "score" or "d_score", which it is called with; tensors: what it
        calls a tensor of rank 4 or 0, after its own name and a dot -> the tensor."""
        elements = {each.removeprefix(f"{name}."): self._element(each, tensor) for each, tensor in tensors.items()}
        result = callback_graph.call_back(callback, name, self.functions.step("float32", "input", given), elements, self)
        return tuple(self.functions.steps), result.step

    def _element(self, name, tensor):
        functions, step = self.functions, ("element", name, tuple(size == 1 for size in tensor.shape))
        if tensor.dtype == torch.bool:
            return functions.step("bool", *step)
        if tensor.dtype in _INTEGERS:
            return functions.step("int32", "to_int32", functions.step("an integer", *step).step)
        return functions.to_float(functions.step("float32" if tensor.dtype == torch.float32 else "another float", *step))


def evaluated(recording, inputs):
    """The result of a recording. inputs: "score", "d_score" and those of INDICES -> tensors of one element, or of as many each, and name -> tensor."""
    steps, result = recording
    values = []
    for name, *arguments in steps[: result + 1]:
        if name == "input":
            values.append(inputs.get(arguments[0]))
        elif name == "constant":
            values.append(constant(arguments[0]))
        elif name == "element":
            values.append(element(inputs.get(arguments[0]), arguments[1], [inputs[index] for index in INDICES]))
        elif name == "to_float":
            values.append(values[arguments[0]].to(torch.float32))
        elif name == "to_int32":
            values.append(values[arguments[0]].to(torch.int32))
        else:
            values.append(_FUNCTIONS[name](*[values[number] for number in arguments]))
    return values[result]


def constant(number, device=None):
    """A tensor of a number: a bool, int32 or float32."""
    return torch.full((), number, dtype=torch.bool if isinstance(number, bool) else torch.int32 if isinstance(number, int) else torch.float32, device=device)


def element(tensor, dims, indices):
    """The element of a tensor of rank 4 or 0 at an element of the score. dims: which of its sizes are 1."""
    return tensor[tuple([0 if is_one else index for is_one, index in zip(dims, indices)])] if dims else tensor


def is_multiple(recording):
    """Whether the result of a recording of a backward callback is a multiple of its d_score for certain."""
    steps, result = recording
    kinds = []
    for name, *arguments in steps[: result + 1]:
        if name == "input":
            kind = MULTIPLE if arguments[0] == "d_score" else CONSTANT
        elif name in ("constant", "element"):
            kind = ZERO if name == "constant" and arguments[0] == 0 else CONSTANT
        else:
            given = [kinds[number] for number in arguments]
            kind = None if None in given else kind_of(_MULTIPLES.get(name), given)
        kinds.append(kind)
    return kinds[result] in (ZERO, MULTIPLE)


class RecordedFunction:
    """A score_mod of flex_attention that computes what a recording does.

    tensors: name -> tensor; those that it reads. backward: the recording of a callback that is_multiple(). Its result is then the derivative by the score,
    whatever the first one computes. Without one that is derived."""

    def __init__(self, recording, tensors, backward=None):
        recordings = (recording,) if backward is None else (recording, backward)
        read = {step[1] for steps, result in recordings for step in steps[: result + 1] if step[0] == "element"}
        self.recording, self.backward = recording, backward
        self.tensors = {name: tensor for name, tensor in tensors.items() if name in read}

    def __call__(self, score, b, h, q_idx, kv_idx):
        inputs = {"score": score, "b": b, "h": h, "q_idx": q_idx, "kv_idx": kv_idx, **self.tensors}
        if self.backward is None:
            return evaluated(self.recording, inputs)
        inputs["score"] = stopped(score)
        value = evaluated(self.recording, inputs)
        if not value.is_floating_point():  # which is refused
            return value
        inputs["d_score"] = constant(1.0, score.device)
        slope = stopped(evaluated(self.backward, inputs).to(torch.float32))
        return surrogate(value, value + slope * score)
