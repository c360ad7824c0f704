"""Arguments that say a tree of draft tokens, for both front ends: sizes of tables, how often parents are followed, and messages of errors."""

from scoremod.errors import InvalidArgumentError


def rounds_of(drafts):
    """How often the reach of ancestors must double to span so many drafts. As many for up to 64 drafts, so that one graph serves them all."""
    rounds = 6
    while 2**rounds < drafts:
        rounds += 1
    return rounds


def room_of(drafts):
    """How many drafts a table has room for. Programs know the extents of their tables, so that one serves up to 64 drafts."""
    return 2 ** rounds_of(drafts)


def wrong_tree(found):
    return InvalidArgumentError(
        f"tree: expected parents, integers [batch, drafts], or ancestors, bool [batch, drafts, drafts], either without the batch too; found {found}"
    )


def wrong_parent(at, parent, drafts):
    return InvalidArgumentError(f"tree: expected parents from -1, for a root, to {drafts - 1}, the last draft; found {parent} at {at}")


def with_a_cycle(at):
    return InvalidArgumentError(f"tree: expected parents that lead to a root, -1; found draft {at} among its own ancestors")


def wrong_cached(batch, found, place=""):
    expected = "integers [batch]" if batch is None else f"{batch} integers, one for each batch of tree"
    return InvalidArgumentError(f"cached: expected {expected}{place}; found {found}")
