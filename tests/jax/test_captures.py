"""Numbers and arrays that reach a program from outside: integers and complex numbers that would lose a part, arrays too short for an axis."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoremod
from scoremod.jax import explain, flex_attention, fused_attention, zoo
from scoremod.user_functions import name_of

B, S, H, D = 2, 16, 4, 8
Q = jax.ShapeDtypeStruct((B, S, H, D), jnp.float32)
ARRAY = jnp.ones((B, S, H, D), jnp.float32)

WIDE = 2**33 + 3
IDS = np.arange(B * S).reshape(B, S) + 2**33


def explained(score_mod=None, mask_mod=None):
    return explain(Q, Q, Q, score_mod, mask_mod)


def _closed_over(number):
    return lambda b, h, q_idx, kv_idx: q_idx + number > kv_idx


def _default(b, h, q_idx, kv_idx, *, number=np.uint64(WIDE)):
    return q_idx + number > kv_idx


def _partial(number, b, h, q_idx, kv_idx):
    return kv_idx < number


class _Callable:
    def __init__(self, limits):
        self.limits = limits

    def __call__(self, b, h, q_idx, kv_idx):
        return kv_idx < self.limits["far"]


@pytest.mark.parametrize(
    "mask_mod",
    [
        lambda b, h, q_idx, kv_idx: kv_idx < np.int64(WIDE),
        lambda b, h, q_idx, kv_idx: q_idx + 2**31 > kv_idx,
        lambda b, h, q_idx, kv_idx: kv_idx < 2**70,
        lambda b, h, q_idx, kv_idx: kv_idx < np.uint32(2**31 + 5),
        lambda b, h, q_idx, kv_idx: jnp.asarray(IDS)[b, q_idx] == 3,
        lambda b, h, q_idx, kv_idx: kv_idx < IDS[1, 2],
        lambda b, h, q_idx, kv_idx: jax.jit(lambda x: x < np.int64(WIDE))(kv_idx),
        _closed_over(np.int64(WIDE)),
        _closed_over(np.asarray(-WIDE)),
        _default,
        functools.partial(_partial, np.int64(WIDE)),
        _Callable({"far": np.int64(WIDE)}),
        zoo.sliding_window(np.int64(WIDE)),
        zoo.all_of(zoo.causal(), zoo.sliding_window(np.int64(WIDE))),
    ],
)
def test_integers_beyond_int32_are_refused(mask_mod):
    with pytest.raises(scoremod.InvalidArgumentError, match="mask_mod: .*expected integers"):
        explained(None, mask_mod)
    with pytest.raises(scoremod.InvalidArgumentError, match="mask_mod: .*expected integers"):
        flex_attention(ARRAY, ARRAY, ARRAY, None, mask_mod, backend="xla")


def test_integers_that_do_not_reach_the_function_are_nobodys():
    seed, small = 2**40, np.int64(7)
    unused = lambda b, h, q_idx, kv_idx: kv_idx < small + 0 * len(str(seed))  # noqa: E731
    assert explained(None, unused).program.startswith("let t3 = kv_idx < 7")
    # A number that stays a float loses nothing.
    explained(lambda score, *_: score * jnp.float32(2**33) * np.float64(2**34))
    # Hashes are made in uint32, which holds this one.
    hashed = lambda b, h, q_idx, kv_idx: kv_idx.astype(jnp.uint32) * np.uint32(2654435761) > np.uint32(2**31)  # noqa: E731
    got = flex_attention(ARRAY, ARRAY, ARRAY, None, hashed)
    np.testing.assert_allclose(got, flex_attention(ARRAY, ARRAY, ARRAY, None, hashed, backend="xla"), atol=1e-6)


def test_integers_that_a_score_takes_are_held_to_the_same():
    for score_mod in (lambda score, *_: score * np.int64(WIDE), lambda score, *_: jnp.where(score > 0, np.int64(WIDE), score)):
        with pytest.raises(scoremod.InvalidArgumentError, match="score_mod: .*expected integers"):
            explained(score_mod)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: zoo.documents(IDS), "query_documents"),
        (lambda: zoo.documents(IDS - 2**33, IDS), "key_documents"),
        (lambda: zoo.padding([1, 2**31]), "lengths"),
        (lambda: zoo.padding([1, 2**70]), "lengths"),
        (lambda: zoo.prefix_lm(np.asarray([2**31, 1])), "prefix"),
        (lambda: zoo.alibi(np.full(H, 2**32)), "slopes"),
    ],
)
def test_the_zoo_refuses_integers_beyond_int32(make, name):
    with pytest.raises(scoremod.InvalidArgumentError, match=f"{name}: expected integers from -2147483648"):
        make()


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1, 2**70, np.int64(WIDE), np.uint32(2**31), np.asarray([[[[WIDE]]]])])
def test_tensors_of_a_graph_refuse_integers_beyond_int32(number):
    with pytest.raises(scoremod.InvalidArgumentError, match=r"score_mod_tensors\['x'\]: expected integers .* found -?[0-9]+"):
        _with_tensor(number)


@pytest.mark.parametrize("value", [1 + 2j, np.complex64(1j), jnp.asarray(1 + 2j), np.ones((S, S), complex), None, "a", object()])
def test_tensors_of_a_graph_are_real_numbers(value):
    with pytest.raises(scoremod.InvalidArgumentError, match=r"score_mod_tensors\['x'\]: expected real numbers or bools, found"):
        _with_tensor(value)


def _with_tensor(value):
    return fused_attention(ARRAY, ARRAY, ARRAY, score_mod=lambda graph, score, tensors: graph.add(score, tensors["x"]), score_mod_tensors={"x": value})


def test_tensors_of_a_graph_at_the_ends_of_int32():
    for number in (2**31 - 1, -(2**31), np.uint64(5)):
        assert np.isfinite(_with_tensor(number)).all()


COMPLEX = np.full((B, H, S, S), 1j)


@pytest.mark.parametrize(
    "score_mod",
    [
        lambda score, b, h, q_idx, kv_idx: (score * (1 + 2j)).astype(jnp.float32),
        lambda score, b, h, q_idx, kv_idx: score + (jnp.asarray(2j) * q_idx).astype(jnp.float32),
        lambda score, b, h, q_idx, kv_idx: score + jnp.asarray(COMPLEX)[b, h, q_idx, kv_idx].astype(score.dtype),
        lambda score, b, h, q_idx, kv_idx: score + jax.jit(lambda x: (x * 1j).astype(jnp.float32))(kv_idx),
    ],
)
@pytest.mark.filterwarnings("ignore:Casting complex")
def test_complex_numbers_keep_their_imaginary_part_or_are_refused(score_mod):
    with pytest.raises(scoremod.InvalidArgumentError, match="score_mod: expected real numbers, found complex64 at .*test_captures.py"):
        explained(score_mod)
    with pytest.raises(scoremod.InvalidArgumentError, match="score_mod: expected real numbers, found complex64 at .*test_captures.py"):
        flex_attention(ARRAY, ARRAY, ARRAY, score_mod, backend="xla")


def test_complex_numbers_that_are_made_real_on_purpose():
    angles = jnp.linspace(0.0, 1.0, S)
    rotated = lambda score, b, h, q_idx, kv_idx: score + (jnp.exp(1j * angles[q_idx]) * jnp.exp(-1j * angles[kv_idx])).real  # noqa: E731
    assert [x.origin for x in explained(rotated).operands] == ["computed by XLA"]


def test_the_zoo_refuses_complex_numbers():
    for make in (zoo.alibi, zoo.head_temperature, zoo.full_bias):
        with pytest.raises(scoremod.InvalidArgumentError, match="expected real numbers or bools, found dtype complex128"):
            make(COMPLEX)
    with pytest.raises(scoremod.InvalidArgumentError, match="found complex64"):
        explained(zoo.soft_cap(2j))


short = jnp.ones(S - 5)
ids = jnp.zeros((B, S - 1), jnp.int32)


@pytest.mark.parametrize(
    ("score_mod", "message"),
    [
        (lambda score, b, h, q_idx, kv_idx: score + short[q_idx], r"'short' of shape \(11,\), .* by q_idx: expected a size of 16 .* found 11"),
        (lambda score, b, h, q_idx, kv_idx: score + ids[b, q_idx], r"'ids' .* dimension 1, .* found 15"),
        (lambda score, b, h, q_idx, kv_idx: score + ids[b][kv_idx], r"'ids' .* by kv_idx: .* dimension 1, .* found 15"),
        (lambda score, b, h, q_idx, kv_idx: score + ids[:, kv_idx][b], r"'ids' .* by kv_idx: .* dimension 1, .* found 15"),
        (lambda score, b, h, q_idx, kv_idx: score + jnp.ones(2)[h], r"an array of shape \(2,\), .* by h: expected a size of 4 .* found 2"),
        (lambda score, b, h, q_idx, kv_idx: score + jnp.ones((1, S))[h, q_idx], r".* by h: expected a size of 4 along dimension 0, .* found 1"),
        (lambda score, b, h, q_idx, kv_idx: score + jnp.exp(short)[q_idx], r"an array of shape \(11,\), .* found 11"),
        (lambda score, b, h, q_idx, kv_idx: score + jnp.ones(2 * 4)[h], r".* by h: expected a size of 4 .* found 8. .* index a slice"),
        (lambda score, b, h, q_idx, kv_idx: score + short.at[q_idx].get(), r"'short' of shape"),
        (lambda score, b, h, q_idx, kv_idx: score + jax.jit(lambda i: short[i])(q_idx), r"'short' of shape"),
    ],
)
def test_an_array_of_another_size_than_its_axis_is_refused(score_mod, message):
    with pytest.raises(scoremod.InvalidArgumentError, match=f"score_mod: {message}") as caught:
        explained(score_mod)
    assert f"test_captures.py:{score_mod.__code__.co_firstlineno}" in str(caught.value)


def test_the_zoos_arrays_are_held_to_the_axes():
    for score_mod, mask_mod, name in (
        (zoo.alibi(np.ones(H - 1)), None, "slopes"),
        (None, zoo.padding([1]), "lengths"),
        (None, zoo.documents(np.zeros((B, S - 1), np.int32)), "query_documents"),
    ):
        with pytest.raises(scoremod.InvalidArgumentError, match=f"mod: '{name}' of shape"):
            explained(score_mod, mask_mod)


def test_arrays_of_other_sizes_where_that_is_plain():
    """Longer than the sequence, or with what is beyond the end said."""

    def score_mod(score, b, h, q_idx, kv_idx):
        larger = jnp.arange(S + 5.0)[q_idx]
        last = jnp.arange(S - 5.0)[jnp.minimum(q_idx, S - 6)]
        taken = jnp.take(jnp.arange(S - 5.0), kv_idx, mode="clip")
        filled = jnp.take(jnp.arange(2.0), h, fill_value=7.0)
        return score + 0.1 * (larger + last + taken + filled)

    q = jax.random.normal(jax.random.key(0), Q.shape, jnp.float32)
    np.testing.assert_allclose(flex_attention(q, q, q, score_mod), flex_attention(q, q, q, score_mod, backend="xla"), atol=1e-5)


class _Unwilling:
    def __getattr__(self, name):
        raise RuntimeError(f"no {name}")


def test_objects_that_refuse_to_be_looked_into():
    unwilling, number = _Unwilling(), np.int64(WIDE)
    keep = lambda b, h, q_idx, kv_idx: kv_idx < (number if isinstance(unwilling, _Unwilling) else 0)  # noqa: E731
    with pytest.raises(scoremod.InvalidArgumentError, match=f"number: expected integers .* found {WIDE}"):
        explained(None, keep)


def test_names_of_arrays():
    inner = jnp.ones(3)
    table = {"a": [inner]}
    assert name_of(inner, [lambda: inner]) == "inner"
    assert name_of(short, [lambda: lambda: short]) == "short"
    assert name_of(inner, [lambda: table]) == "table['a'][0]"
    assert name_of(inner, [functools.partial(lambda x: x, x=inner)]) == "x"
    assert name_of(jnp.ones(3), [lambda: inner]) is None
