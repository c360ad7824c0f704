"""The results that a forward pass keeps for the backward pass, by the names that policies of jax.checkpoint know."""

from jax.ad_checkpoint import checkpoint_name

OUTPUT_NAME = "scoremod_output"
LSE_NAME = "scoremod_lse"
# jax.checkpoint_policies.save_only_these_names(*CHECKPOINT_NAMES) keeps all that the backward pass needs, so the forward isn't run again.
CHECKPOINT_NAMES = (OUTPUT_NAME, LSE_NAME)


def named_results(o, *sums):
    """The results of a forward pass, named: the output, and what it keeps of each row's sum."""
    return (checkpoint_name(o, OUTPUT_NAME), *(checkpoint_name(x, LSE_NAME) for x in sums))
