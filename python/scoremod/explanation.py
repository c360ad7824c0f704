"""An explanation of a traced attention, for people and programs."""

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Operand:
    """A tensor that the traced program reads."""

    name: str
    origin: str  # "captured array", "scalar", or by whom it is computed before the attention
    axes: tuple[str, ...]  # what it has a dimension for; empty for a table, which has indices
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    called: str = ""  # the name by which the functions read it; nothing where they have none


@dataclasses.dataclass(frozen=True)
class Explanation:
    """str() of it is a page for people."""

    program: str  # as traced: `scoremod docs program_text`
    operands: tuple[Operand, ...]
    problem: dict[str, Any]  # `scoremod docs problem`
    compiled: dict[str, Any]  # what the compiler made of it: the fields of `scoremod explain --json`
    road: str = ""  # where there are sequences, pages or a sink: what they are of the problem
    # A token list makes each query of each batch a batch of the problem: these are the caller's numbers of batches and queries.
    listed: tuple[int, int] | None = None
    why_not_kept: str = ""  # what the functions do that has them traced at each call; nothing where a trace is kept
    # compiled's map of the mask -> the same with what operands hold, which takes up to seconds; None where that isn't known.
    decide: Callable[[dict[str, Any]], dict[str, Any]] | None = dataclasses.field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        lines = [self.program, ""]
        for operand in self.operands:
            where = f"over {', '.join(operand.axes)}" if operand.axes else "table" if operand.shape else "scalar"
            origin = f"{operand.origin} {operand.called}".rstrip()
            lines.append(f"{operand.name}: {operand.dtype}{list(operand.shape)}, {where}, {origin}, {operand.bytes} bytes")
        if self.road:
            lines += ["", f"sequences, pages and sinks: {self.road}"]
        if self.listed:
            batches, queries = self.listed
            rows = f"b is a row, one for each of {batches} batches * {queries} queries; kv_idx is a place in it"
            lines += ["", f"token list: {rows}. of_batch, of_query and keys have the caller's indices"]
        if self.why_not_kept:
            lines += ["", f"traced at each call: score_mod or mask_mod {self.why_not_kept}"]
        mask = self.compiled["mask"]
        lines += ["", f"mask: {mask['kind']}", *self._map(self.mask_map()), f"derivative:\n{self.compiled['derivative']}"]
        lines += [f"{name}: {'yes' if not reasons else '; '.join(reasons)}" for name, reasons in self.answers().items()]
        backward = f" (backward: {self.backward_backend})" if self.backward_backend not in (None, self.backend) else ""
        lines.append(f"runs on: {self.backend or 'none of them'}{backward}, chosen by {self.decided_by}")
        if set(self.gradient_backends.values()) - {self.backward_backend}:
            found = ", ".join(f"{gradient} on {backend}" for gradient, backend in self.gradient_backends.items())
            lines.append(f"with gradients of captured tensors: {found}")
        return "\n".join(lines)

    def mask_map(self) -> dict[str, Any]:
        """The mask's map (`scoremod docs command`), in which operands decide about tiles as far as their numbers are known."""
        drawn = self.compiled["mask"]["map"]
        return drawn if self.decide is None else self.decide(drawn)

    @staticmethod
    def _map(drawn):
        if not drawn["rows"]:
            return []
        open_tiles = "+ some" if drawn.get("decided") else "+ some, or operands decide"
        return [f"{drawn['tile_q']} x {drawn['tile_kv']} scores each; # all kept, . none, {open_tiles} (batch 0, head 0):", *drawn["rows"]]

    @property
    def backend(self) -> str | None:
        """The backend that runs the forward; None where none does."""
        return self._chosen("chosen")

    @property
    def backward_backend(self) -> str | None:
        """The backend that computes dq, dk and dv; None where none does."""
        return self._chosen("chosen_backward")

    @property
    def gradient_backends(self) -> dict[str, str]:
        """Gradient ("dq", "d_x0") -> the backend that computes it in a call that asks for the gradients of all captured tensors.

        In such a call the fastest backend for dq, dk and dv may be another than backward_backend. The dict is empty where there is nothing to
        choose: on a CPU, without a backward, or where no backend runs it."""
        found = {}
        for task in self.compiled["patterns"]:  # a later one computes anew what an earlier one has
            chosen = next((candidate["backend"] for candidate in task["candidates"] if candidate["chosen"]), None)
            found.update((gradient, chosen) for gradient in task["gradients"] if chosen is not None)
        return found

    def _chosen(self, field):
        return next((answer["backend"] for answer in self.compiled["backends"] if answer[field]), None)

    @property
    def decided_by(self) -> str:
        """Who said which backends may be chosen: "the caller", "SCOREMOD_BACKENDS" or "predicted time"."""
        return self.compiled["decided_by"]

    def answers(self) -> dict[str, tuple[str, ...]]:
        """backend -> why it can't run this; nothing where it can."""
        return {answer["backend"]: tuple(answer["reasons"]) for answer in self.compiled["backends"]}
