"""Refusals of token lists that all bindings share."""

from scoremod.errors import InvalidArgumentError

# Pages of one token have numbers of int32.
MOST_TOKENS = 2**31 - 1

# Arguments that say, too, where keys are -> what takes their place.
_BESIDE = {
    "page_table": "give the list's entries as that table's pages, with pages of one token",
    "q_offsets": "give queries of several sequences as [batch, queries, ...], or each as a batch of one query",
    "kv_offsets": "give keys as [batch, heads, tokens, dim]",
    "max_length": "leave it out",
}


def refuse_beside(given):
    """Raises InvalidArgumentError for the first of these arguments that is given. given: name -> value, of others, too."""
    for name, instead in _BESIDE.items():
        if given.get(name) is not None:
            raise InvalidArgumentError(f"token_list: expected no {name} beside it, found one; {instead}")


def wrong_rank(name, expected, found):
    return InvalidArgumentError(f"{name}: expected 4 dimensions {expected} with token_list, found {found}")


def wrong_list(integers, batch, queries, found, where=""):
    """integers: which are taken."""
    return InvalidArgumentError(
        f"token_list: expected {integers} [batch, queries, entries] of shape ({batch}, {queries}, any){where}, or with 1 batch for all; found {found}"
    )


def wrong_entry(place, entry, tokens):
    """place: the indices of an entry that is no key's."""
    return InvalidArgumentError(
        f"token_list: expected entries below {tokens}, the number of keys, found {entry} at {list(place)}; a negative entry stands for no key"
    )
