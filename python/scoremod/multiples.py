"""Which results of a backward function's operations are multiples of the gradient that it is given, as a program's derivatives are."""

ZERO, CONSTANT, MULTIPLE = range(3)

# How a kind of operation goes on with multiples: of its only argument, a sum, a choice by its first argument, a product, a quotient.
ALONE, SUM, CHOICE, PRODUCT, QUOTIENT = "alone", "sum", "choice", "product", "quotient"

NOT_A_MULTIPLE = "that is not known to be a multiple of the gradient that it is given, and a program's derivative is"


def kind_of(rule: str | None, given: list[int]) -> int | None:
    """The kind of an operation's result (ZERO, CONSTANT or MULTIPLE), given those of its arguments; None where it isn't known.

    rule: one of those above; None of an operation that makes no multiples of any."""
    if MULTIPLE not in given:
        return ZERO if rule == ALONE and CONSTANT not in given else CONSTANT
    others = given[1:]
    if rule == ALONE:
        known = True
    elif rule == SUM:
        known = CONSTANT not in given
    elif rule == CHOICE:
        known = given[0] != MULTIPLE and CONSTANT not in others
    elif rule == PRODUCT:
        known = given.count(MULTIPLE) == 1
    else:
        known = rule == QUOTIENT and MULTIPLE not in others
    return MULTIPLE if known else None
