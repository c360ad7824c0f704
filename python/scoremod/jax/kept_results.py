"""The results that a forward pass keeps for the backward pass, by the names that policies of jax.checkpoint know."""

import contextlib
import contextvars

from jax.ad_checkpoint import checkpoint_name

from scoremod.errors import InvalidArgumentError

OUTPUT_NAME = "scoremod_output"
LSE_NAME = "scoremod_lse"
# jax.checkpoint_policies.save_only_these_names(*CHECKPOINT_NAMES) keeps all that the backward pass needs, so the forward isn't run again.
CHECKPOINT_NAMES = (OUTPUT_NAME, LSE_NAME)
_second_name: contextvars.ContextVar[str | None] = contextvars.ContextVar("second_name", default=None)


@contextlib.contextmanager
def also_named(name):
    """Results of the calls inside have this name, too, so that a policy with this name alone keeps them all. None: no other name."""
    if name is not None and not isinstance(name, str):
        raise InvalidArgumentError(f"context_checkpoint_name: expected a text, found {type(name).__name__}")
    token = _second_name.set(name)
    try:
        yield
    finally:
        _second_name.reset(token)


def second_name():
    """The name that also_named() gives a call that is made now. Rules of derivatives run later, so the call keeps it."""
    return _second_name.get()


def named_results(also, o, *sums):
    """The results of a forward pass, named: the output, and what it keeps of each row's sum. also: their second name, or None."""
    named = (checkpoint_name(o, OUTPUT_NAME), *(checkpoint_name(x, LSE_NAME) for x in sums))
    return named if also is None else tuple(checkpoint_name(x, also) for x in named)
