"""From a Python function of one score to a score program."""

import contextlib
import sys

import torch
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes

import scoremod
from scoremod.errors import InvalidArgumentError, UnsupportedError
from scoremod.operand_reads import OperandReads
from scoremod.pages import command_for
from scoremod.program import AXES, MAX_TABLE_RANK, Builder
from scoremod.torch.asked_sizes import AskedExtents, expression_of
from scoremod.torch.aten_operands import NoNode, Operands
from scoremod.torch.aten_ops import FILLS, PRODUCTS, RANDOM, RULES, SHARING
from scoremod.torch.captures import OPERAND_TYPES, ArrayView, CapturedReads, Read, has_data, learned_by, whole
from scoremod.torch.checked_integers import ANY, INT32
from scoremod.torch.integer_bounds import GROWING, IntegerBounds
from scoremod.torch.trace_modes import Functions, Operations, gradients_enabled, map_tensors, tensors_in
from scoremod.torch.values import Value, evaluated, leaves_of, map_values, values_in
from scoremod.user_functions import check_callable, name_of

# Folders whose frames are not the user's.
OWN_FOLDERS = tuple(module.__path__[0] for module in (torch, scoremod))
_NUMBERS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.is_nonzero.default, torch.ops.aten.equal.default)
# Tags of operations whose result, or its size, depends on the numbers in a tensor.
_BY_NUMBERS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_ROUNDED = (torch.float16, torch.bfloat16)
_HOW = "choose with torch.where, index tensors (torch.as_tensor(array)) and no arrays or lists, and compute with torch's functions"


def trace(score_mod, mask_mod, extents, device):
    """(program, sources): the program of both functions, and for each of its operands what makes its tensor.

    extents: scoremod.torch.captures.Extents.
    device: where scores and indices appear to be.
    """
    program, sources = Tracer(AskedExtents(extents), device).trace(score_mod, mask_mod)
    return program, [source.at(extents) for source in sources]


def trace_graph(body, tensors, has_score_mod, has_mask_mod, extents, device):
    """trace() for a graph that torch.compile made of both functions: body(score, b, h, q_idx, kv_idx, *tensors) -> (score, keep, ...)."""
    tracer = Tracer(AskedExtents(extents), device)
    arguments = tracer.arguments("score_mod")
    modified, kept, *_ = tracer.run("score_mod or mask_mod", lambda: body(*arguments, *tensors))
    value = tracer.result("score_mod", modified, "f32") if has_score_mod else tracer.builder.node("score", "f32")
    keep = tracer.result("mask_mod", kept, "bool") if has_mask_mod else None
    program, sources = tracer.finish(value, keep)
    return program, [source.at(extents) for source in sources]


class Tracer:
    """Finds a program node for each scalar of a function that it can, a view for each indexed tensor.

    extents: AskedExtents, so that what hangs on them is known.
    whole: a function that gives the whole tensor of a captured DTensor; None where a call has none.
    numbers: NumbersOfTrace, where the functions read OpenNumbers.
    asked: what a function has asked a tensor for first, and where, on which the program may depend and no key of a trace does; or None.
    sized: the tensors, by id, whose sizes or strides the program may follow from, besides that an axis of a call is as long as a dimension.
    count: how many operations were called.
    """

    def __init__(self, extents, device, whole=None, numbers=None):
        self.extents, self.device, self.whole, self.numbers = extents, device, whole, numbers
        self.builder = Builder()
        self.reads = OperandReads(self.builder, extents.counts())
        self._captured = CapturedReads(self.builder, self.reads, extents)
        self._bounds, self._limits = IntegerBounds(self.builder, extents), []
        self._values = {}  # by id of the tensor, which is kept beside it, so that no other gets the id
        self._made = {}  # uniform tensors that the functions made, by id
        self._functions = []
        self._name = None
        self._cuts_gradients = self._computes = False
        self._lines = {}  # by id of a uniform tensor that PyTorch computed, or of a Value that it is to compute
        self.asked, self.sized, self.count = None, {}, 0

    def trace(self, score_mod, mask_mod):
        value, keep = self.builder.node("score", "f32"), None
        if score_mod is not None:
            value = self.root("score_mod", score_mod, "f32")
        if mask_mod is not None:
            keep = self.root("mask_mod", mask_mod, "bool")
        return self.finish(value, keep)

    def finish(self, value, keep):
        program, order = self.builder.finish(value, keep)
        limits = self._limits_of_operands(value, keep)
        sources = ((number, self.reads.sources[number]) for number in order)
        return program, [source._replace(limit=expression_of(limits[number])) if number in limits else source for number, source in sources]

    def _limits_of_operands(self, *roots):
        """operand -> how large its integers may be, so that int32 holds what the program computes and PyTorch computes in int64."""
        reached, pending = set(), [root for root in roots if root is not None]
        while pending:
            node = pending.pop()
            if node not in reached:
                reached.add(node)
                pending += self.builder.nodes[node].args
        limits = {}
        for node, bound in self._limits:
            if node in reached:
                limits.update((operand, min(bound.limit(), limits.get(operand, ANY))) for operand, _ in bound.reads)
        return limits

    def _fits(self, result):
        """Whether int32 holds what is computed in int64, as far as calls check their operands."""
        bound = self._bounds.of(result)
        if bound.number > INT32.max or (bound.reads and bound.limit() < 1):
            return False
        if bound.reads:
            self._limits.append((result.node, bound))
        return True

    def root(self, name, function, type):
        """The node of what a user's function returns."""
        check_callable(name, function)
        self._functions.append(function)
        arguments = self.arguments(name)
        return self.result(name, self.run(name, lambda: function(*arguments)), type)

    def arguments(self, name):
        """Placeholders for what a "score_mod" or "mask_mod" is called with."""
        values = [Value((), torch.int32, frozenset([axis]), axis=axis) for axis in AXES]
        for axis, value in zip(AXES, values):
            value.node = self.builder.node(axis, "i32")
        if name == "score_mod":
            values.insert(0, Value((), torch.float32, frozenset(["score"])))
            values[0].node = self.builder.node("score", "f32")
        return [self._placeholder(value) for value in values]

    def run(self, name, function):
        """The result of a function of placeholders. name: for messages."""
        self._name = name
        # Gradients are on or off as the caller has them, which the function may ask.
        with temporarily_clear_interpreter_stack() as stack, gradients_enabled(torch.is_grad_enabled()), Functions(self, stack), Operations(self):
            try:
                return function()
            except NotImplementedError as error:
                if "HigherOrderOperator" not in str(error):
                    raise
                raise UnsupportedError(
                    f"{name}: at {_line(_last_frame(error.__traceback__))} it calls an operation of PyTorch that takes functions, such as torch.cond, which can't "
                    f"be traced: {_HOW}"
                ) from None

    def result(self, name, result, type):
        meaning = "the modified score, a float" if type == "f32" else "whether the key is kept, a bool"
        if isinstance(result, (bool, int, float)):
            value = Value((), {bool: torch.bool, int: torch.int64, float: torch.float32}[result.__class__], literal=result)
        elif isinstance(result, torch.Tensor):
            value = self.value_of(result)
        else:
            raise InvalidArgumentError(f"{name}: expected it to return {meaning}, found {result!r:.100}")
        if value.shape != ():
            raise InvalidArgumentError(f"{name}: expected it to return one 0-dim tensor, found shape {value.shape}; it is called once for each score")
        if OPERAND_TYPES.get(value.dtype) != type:
            raise InvalidArgumentError(f"{name}: expected it to return {meaning}, found {value.dtype}; convert it")
        node = self.node_of(value)
        if node is None:
            raise UnsupportedError(f"{name}: what it returns depends on the score and is no operation of a score program")
        return node

    def node_of(self, value):
        """The node of a single element, of type f32, i32 or bool; None if it can have none. It may be a new operand."""
        if value.node is None and value.is_single and value.dtype in OPERAND_TYPES:
            if value.literal is not None:
                value.node = self._constant(value)
            elif value.view is not None:
                value.node = self._captured.element(value.view)
            if value.node is None and "score" not in value.deps:
                self._lines.setdefault(id(value), _line())
                value.node = self._captured.scalar(value)
        return value.node

    def captured_number(self, number):
        """The node of a number that torch.compile has as an input of its graph."""
        return self.node_of(Value((), torch.float32, tensor=torch.scalar_tensor(number, dtype=torch.float32, device=self.device)))

    def _constant(self, value):
        literal = value.literal
        if value.dtype in _ROUNDED:
            with _disable_current_modes():
                literal = torch.tensor(literal, dtype=value.dtype).item()
        return self.constant(literal, OPERAND_TYPES[value.dtype])

    def constant(self, number, type):
        """The node of a number of the function's text."""
        if type == "i32" and not INT32.min <= int(number) <= INT32.max:
            raise InvalidArgumentError(f"{self._name}: at {_line()} expected integers that int32 holds, as score programs have no others; found {number}")
        return self.builder.constant(number, type)

    # A trace depends on these beside its key.

    def ask(self, what):
        """Notes that the function asked for something that no key of a trace holds."""
        if self.asked is None:
            self.asked = f"{what} at {_line()}"

    def ask_sizes(self, tensors):
        """Notes that the function asked what may follow from the sizes or strides of these tensors, or of those that they are made of."""
        for leaf in leaves_of([self.value_of(tensor) for tensor in tensors if tensor.dim()]):
            if leaf.tensor is not None:
                self.sized[id(leaf.tensor)] = leaf.tensor

    def line_of(self, source):
        """The line where the function made the tensor that a source reads and PyTorch computes."""
        value = source.base if isinstance(source, Read) else source.value
        return self._lines.get(id(value if value.tensor is None else value.tensor), "an unknown line")

    @contextlib.contextmanager
    def without_gradients(self, cut):
        """While operations are called where the function has turned gradients off."""
        before, self._cuts_gradients = self._cuts_gradients, self._cuts_gradients or cut
        try:
            yield
        finally:
            self._cuts_gradients = before

    # Placeholders, and the Values that they stand for.

    def _placeholder(self, value):
        """A tensor that stands for a value while the function runs; nobody may read it."""
        with _disable_current_modes():
            tensor = torch.empty(value.shape, dtype=value.dtype, device=self.device)
        self._values[id(tensor)] = (tensor, value)
        return tensor

    def stand_in(self, tensor):
        """A placeholder for a captured tensor that only a transformation of torch.func understands."""
        return self._placeholder(self.value_of(tensor))

    def stands_for(self, tensor, other):
        """Notes that a tensor stands for what another does."""
        self._values[id(tensor)] = (tensor, self.value_of(other))

    @contextlib.contextmanager
    def computing(self):
        """While a function has tensors with numbers alone, of which PyTorch computes all that it is made of."""
        before, self._computes = self._computes, True
        try:
            yield
        finally:
            self._computes = before

    def look_inside(self, tensor):
        """Learns that a tensor is a number of the function's text, where torch.func's transformations have wrapped that."""
        inner = tensor
        while is_functorch_wrapped_tensor(inner):
            inner = get_unwrapped(inner)
        if inner is not tensor and self.is_traced(inner):
            self.stands_for(tensor, inner)

    def is_traced(self, tensor):
        """Whether a tensor is a placeholder, whose own numbers mean nothing: it depends on the element, stands for a number of the function's text, or
        is made of such numbers."""
        value = self._values[id(tensor)][1] if isinstance(tensor, torch.Tensor) and id(tensor) in self._values else None
        return value is not None and value.tensor is None

    def value_of(self, tensor):
        if id(tensor) not in self._values:
            self._values[id(tensor)] = (tensor, Value(tensor.shape, tensor.dtype, tensor=tensor))
        return self._values[id(tensor)][1]

    # Operations.

    def operation(self, function, arguments, options):
        """The result of an operation that the function calls while it is traced."""
        self.count += 1
        tensors = tensors_in((arguments, options))
        if self._computes or not any(self.is_traced(tensor) for tensor in tensors):
            return self._uniform(function, arguments, options)
        name = function._schema.name.removeprefix("aten::")
        if function is torch.ops.aten._local_scalar_dense.default and self.value_of(arguments[0]).literal is not None:
            return self.value_of(arguments[0]).literal
        if function in _NUMBERS:
            return self._number(function, arguments, options)
        if RANDOM in function.tags:
            self._refuse(name, "makes random numbers, and a score function must be pure")
        values, named = (map_tensors(self.value_of, each) for each in (arguments, options))
        if name == "detach" and "score" in values[0].deps:
            self._refuse(name, "stops gradients, which the derived backward pass would not do")
        in_place = name.endswith("_") and not name.endswith("__")
        if in_place and values[0].tensor is not None:
            self._refuse(name, "writes into a captured tensor")
        if named.get("out") is not None or (in_place and values[0].is_shared):
            self._refuse(name, "writes into a tensor that another one shows; write the operation without it")
        base = name[:-1] if in_place else name
        meta = self._meta(function, values, named, name)
        if not isinstance(meta, torch.Tensor):
            return self._several(function, values, named, meta, name)
        self._check_gradients(name, meta, values_in((values, named)))
        result = self._result_of(base, function, values, named, meta)
        if "score" in result.deps and result.node is None:
            self._refuse(name, self._why_not(function, values_in((values, named)), result))
        if in_place:
            result.dtype = values[0].dtype
            self._values[id(arguments[0])] = (arguments[0], self._converted(result, values[0].dtype))
            return arguments[0]
        return self._placeholder(result)

    def _number(self, function, arguments, options):
        """The number that is asked of values which no element decides: literals in the function's text, and what is made of them and captured tensors."""
        given = map_tensors(self.value_of, (arguments, options))
        made_of = leaves_of(values_in(given))
        tensors = [each.tensor for each in made_of if each.tensor is not None]
        if any(each.deps or (each.tensor is None and each.literal is None) for each in made_of) or not all(map(has_data, tensors)):
            self.refuse_number("its number is asked for")
        if tensors:
            self.ask("reads the numbers of a captured tensor")
        with _disable_current_modes():
            plain, named = map_values(lambda value: evaluated(value, {}), given)
            return function(*plain, **named)

    def _check_gradients(self, name, meta, inputs):
        """Refuses what the function computes where it has turned gradients off."""
        if self._cuts_gradients and meta.is_floating_point() and (any("score" in value.deps for value in inputs) or learned_by(inputs)):
            self._refuse(
                name, "is called where gradients are off, as in torch.no_grad(), which the derived backward pass would not do; detach captured tensors instead"
            )

    def _converted(self, value, dtype):
        """A Value after an in-place operation on a tensor of a dtype."""
        if value.node is not None and self.builder.type(value.node) != OPERAND_TYPES.get(dtype):
            value.node = self.builder.op(OPERAND_TYPES[dtype], value.node)
        return value

    def _result_of(self, base, function, values, named, meta):
        deps = frozenset().union(*(value.deps for value in values_in((values, named))))
        if base in FILLS and all(size == 1 for size in meta.shape) and not isinstance(FILLS[base](values), Value):
            return Value(meta.shape, meta.dtype, literal=FILLS[base](values))
        result = Value(meta.shape, meta.dtype, deps, operation=(function, values, named))
        if base in SHARING and values[0].literal is None:
            values[0].is_shared = result.is_shared = True
        if base == "detach" and not learned_by(values[:1]):  # PyTorch computes what stops gradients
            result.node, result.view, result.literal = self.node_of(values[0]), values[0].view, values[0].literal
        elif _is_other_number(function, values, meta):
            result.node = None
        elif base in RULES and result.is_single and all(value.is_single for value in values_in((values, named))):
            if not self._stays_outside(values_in((values, named)), result) and not _may_wrap(base, meta.dtype):
                try:
                    result.node = RULES[base](Operands(self, meta.dtype), values, named)
                except NoNode:
                    result.node = None
            if result.node is not None and meta.dtype == torch.int64 and base in GROWING and not self._fits(result):
                result.node = None
        elif base in ("index", "select", "unsqueeze", "squeeze", "slice", "view", "alias"):
            result.view = self._view(base, values, named, result)
        return result

    def _stays_outside(self, inputs, result):
        """Whether PyTorch goes on computing: with a value that it computes anyway, over the same indices, an operand is as large."""
        computed = [value for value in inputs if value.deps and value.node is None and value.view is None]
        return "score" not in result.deps and any(value.deps == result.deps for value in computed)

    def _view(self, base, values, named, result):
        """The view of a tensor that is indexed once more."""
        if base == "index":
            self._check_not_empty(values[0], values[1])
        view = whole(values[0])
        if view is None:
            return None
        if view.base.tensor.device != self.device:
            raise InvalidArgumentError(
                f"{self._described(view.base)}, indexed at {_line()}: expected one on {self.device}, where query is, found one on {view.base.tensor.device}; move it"
            )
        indices, dims = list(view.indices), list(view.dims)
        if base == "index":
            for dim, index in enumerate(values[1]):
                if index is None:
                    continue
                if not isinstance(index, Value) or index.shape != () or index.dtype == torch.bool:
                    return None
                node = self.node_of(index)
                if node is None or self.builder.type(node) != "i32":
                    return None
                indices[dims[dim]] = self._in_range(view.base, dims[dim], node)
            dims = [dim for i, dim in enumerate(dims) if i >= len(values[1]) or values[1][i] is None]
        elif base == "select" and not isinstance(values[2], Value):
            dim, extent = dims[values[1]], view.base.shape[dims[values[1]]]
            indices[dim] = self.builder.constant(values[2] % extent, "i32")
            dims.remove(dim)
        else:
            return None
        return ArrayView(view.base, tuple(indices), tuple(dims)) if len(dims) == len(result.shape) else None

    def _check_not_empty(self, base, index):
        """Raises InvalidArgumentError for an index along a dimension of a captured tensor that has no element."""
        for dim, each in enumerate(index):
            if isinstance(each, Value) and each.shape == () and each.dtype != torch.bool and base.is_uniform and base.shape[dim] == 0:
                by = f" by {each.axis}" if each.axis else ""
                raise InvalidArgumentError(f"{self._described(base)}, indexed at {_line()}{by}: expected elements along dimension {dim}, found none")

    def _in_range(self, base, dim, node):
        """The node of an index as PyTorch reads it: negative ones count from the end."""
        extent = base.shape[dim]
        op, position = self.builder.nodes[node].op, self.builder.constant_value(node)
        if position is not None:
            if not -extent <= position < extent:
                raise InvalidArgumentError(f"{self._described(base)}, indexed at {_line()}: expected an index below {extent}, found {position}")
            return self.builder.constant(position % extent, "i32")
        if op in AXES:
            if op in self.extents.are_limits and self.extents.end(op) > extent:
                self.ask_sizes([base.tensor])
                return self.builder.op("min", node, self.builder.constant(extent - 1, "i32"))
            self._check_extent(base, dim, op)
            return node
        if self.builder.is_never_negative(node):  # then the tensor's size is no part of the program
            return node
        self.ask_sizes([base.tensor])
        negative = self.builder.op("lt", node, self.builder.constant(0, "i32"))
        return self.builder.op("select", negative, self.builder.op("add", node, self.builder.constant(extent, "i32")), node)

    def _check_extent(self, base, dim, axis):
        count, end, remedy = self.extents.count(axis), self.extents.end(axis), ""
        # Batches may be fewer than a serving buffer has, and positions fewer than a table of them.
        if axis == "h" and not self.extents.is_part and count < base.shape[dim]:
            remedy = f". Where the first {count} are meant, index a slice of it; where the call has some of all heads, say which by offsets="
        if remedy or end > base.shape[dim]:
            raise InvalidArgumentError(
                f"{self._described(base)}, indexed at {_line()} by {axis}: expected a size of {end} along dimension {dim}, one for each "
                f"{axis}, found {base.shape[dim]}{remedy}"
            )

    def check_rank(self, tensor, index):
        """Raises InvalidArgumentError for more indices than a tensor has dimensions."""
        count = sum(each is not None and each is not Ellipsis for each in index)
        if count > tensor.dim():
            raise InvalidArgumentError(
                f"{self._described(self.value_of(tensor))}, indexed at {_line()}: expected {tensor.dim()} indices at most, found {count}"
            )

    def _described(self, base):
        name = None if base.tensor is None else name_of(base.tensor, self._functions)
        return f"{self._name}: {repr(name) if name else 'a tensor'} of shape {base.shape}"

    def _several(self, function, values, named, meta, name):
        """The results of an operation that has several, which only PyTorch can compute."""
        deps = frozenset().union(*(value.deps for value in values_in((values, named))))
        if "score" in deps:
            self._refuse(name, "depends on the score and is no operation of a score program")
        whole_result = Value((), None, deps, operation=(function, values, named))

        def part(i):
            each = meta[i]
            picked = Value(each.shape, each.dtype, deps, operation=(lambda results: results[i], (whole_result,), {}))
            return self._placeholder(picked)

        return type(meta)(part(i) for i in range(len(meta))) if type(meta) in (list, tuple) else tuple(part(i) for i in range(len(meta)))

    def _uniform(self, function, arguments, options):
        """An operation on captured tensors alone: PyTorch computes it now."""
        name = function._schema.name.removeprefix("aten::")
        if RANDOM in function.tags:
            self._refuse(name, "makes random numbers, and a score function must be pure")
        self._check_pure(function, name, arguments, options)
        if function in _NUMBERS or _BY_NUMBERS.intersection(function.tags):
            self.ask("reads the numbers of a captured tensor")
        result = function(*arguments, **options)
        literal = self.value_of(arguments[0]).literal if name == "detach" else _literal(name, arguments, result)
        for tensor in tensors_in(result):
            if self.is_traced(tensor):  # a number of the text that was written over
                del self._values[id(tensor)]
        if literal is not None:
            self._values[id(result)] = (result, Value((), result.dtype, literal=literal))
        elif tensors_in(result):
            line = _line()
            self._lines.update((id(tensor), line) for tensor in tensors_in(result))
        shows = name != "lift_fresh" and any(each.alias_info is not None for each in function._schema.returns)
        if not shows or all(id(tensor) in self._made for tensor in tensors_in(arguments)):  # otherwise it shows what was there before
            self._made.update((id(tensor), tensor) for tensor in tensors_in(result))
        return result

    def _check_pure(self, function, name, arguments, options):
        """Refuses what writes into a tensor that was there before."""
        for parameter, given in zip(function._schema.arguments, arguments):
            if parameter.alias_info is not None and parameter.alias_info.is_write and any(id(each) not in self._made for each in tensors_in(given)):
                self._refuse(name, "writes into a captured tensor")

    def _meta(self, function, values, named, name):
        """An operation's result on the meta device: its shape and dtype."""

        def like(value):
            if value.dtype is None:
                return value
            return torch.empty(value.shape, dtype=value.dtype, device="meta")

        options = {**named, "device": "meta"} if named.get("device") is not None else named
        with _disable_current_modes():
            try:
                return function(*map_values(like, values), **map_values(like, options))
            except (RuntimeError, NotImplementedError) as error:
                self._refuse(name, f"can't be traced: {str(error).splitlines()[0]}")

    def refuse_number(self, what):
        raise InvalidArgumentError(
            f"{self._name}: at {_line()} cannot convert a traced score or index to a Python or NumPy number ({what}); the function is called once for all, "
            f"with 0-dim tensors that stand for any element: {_HOW}"
        )

    def _refuse(self, name, why):
        raise UnsupportedError(f"{self._name}: '{name}' at {_line()} {why}. {command_for('guide/functions')} says what score functions can be made of")

    def _why_not(self, function, inputs, result):
        if _takes_bits(function):
            return f"takes the bits of {inputs[0].dtype} for {result.dtype}; convert the number with .to({result.dtype})"
        if result.dtype in _ROUNDED:
            return f"rounds the score to {result.dtype}, and score programs compute in float32 alone; leave the conversion out"
        if not result.is_single:
            return f"makes a tensor of shape {result.shape} of the score, and a score function is of one score, whose operations are on 0-dim tensors"
        if result.dtype not in OPERAND_TYPES:
            return f"makes {result.dtype} of the score, and score programs have float32, int32 and bool alone"
        if any(value.view is not None and value.node is None for value in inputs):
            return f"reads a tensor at more than {MAX_TABLE_RANK} indices that are computed"
        if not result.dtype.is_floating_point and any(value.dtype == torch.int64 for value in inputs):
            return f"makes {result.dtype} of the score that may be beyond int32, which score programs have alone"
        return "depends on the score and is no operation of a score program"


def _takes_bits(function):
    """Whether an operation is x.view(dtype)."""
    return function._overloadname == "dtype" and function._schema.name == "aten::view"


def _is_other_number(function, values, meta):
    """Whether an operation makes another number than programs have of an element: its bits taken for another dtype, or one that is rounded."""
    if values and isinstance(values[0], Value) and values[0].dtype != meta.dtype:
        return _takes_bits(function) or (meta.dtype in _ROUNDED and function._schema.name == "aten::_to_copy" and values[0].literal is None)
    return False


def _literal(name, arguments, result):
    """The number of the function's text that an operation on no placeholder makes a tensor of; None for any other."""
    if not isinstance(result, torch.Tensor) or result.dim() != 0:
        return None
    if name == "lift_fresh" and result.device.type == "cpu" and has_data(result):
        return result.item()  # torch.tensor(number)
    fill = FILLS.get(name)
    number = None if fill is None else fill(arguments)
    return number if isinstance(number, (bool, int, float)) else None


def _may_wrap(base, dtype):
    """Whether integers of a dtype come out of an operation otherwise than 32-bit ones: narrow ones wrap earlier, 64-bit products later."""
    return dtype in (torch.int8, torch.int16, torch.uint8) or (dtype == torch.int64 and base in PRODUCTS)


def _last_frame(traceback):
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback.tb_frame


def _line(frame=None):
    """The line of the user's code that asked for an operation, or that led to a frame."""
    frame = frame or sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((*OWN_FOLDERS, "<frozen")):
        frame = frame.f_back
    return "an unknown line" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"
