"""Types of cheats and honest oddities, and the decorators that list them."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from attnbench.cases import Case, Mode
from attnbench.interface import Call, Implementation, Inputs
from attnbench.processes.candidate_requests import Defence
from attncheats.labour import Labour

__all__ = ["Cheat", "CheatList", "Laborious", "Oddity", "OddityList"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    """An implementation that a worker loads by its place."""

    implementation: Implementation

    @property
    def name(self) -> str:
        """Name of the implementation."""
        return self.implementation.name

    @property
    def place(self) -> str:
        """The name by which a worker loads the implementation, such as ``package.module:Class``."""
        kind = type(self.implementation)
        return f"{kind.__module__}:{kind.__qualname__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cheat(_Listed):
    """An implementation that is slower than the reference, and makes the timing say otherwise."""

    # The defence that stops the cheat. Without this defence and ``also_by``, the cheat looks faster than it is.
    stopped_by: Defence
    # What the cheat does.
    why: str
    # Where the cheat was seen: a URL, or "constructed: " and the reason.
    source: str
    # Call mode in which the cheat works.
    mode: Mode = "inference"
    # Further defences that stop the cheat.
    also_by: frozenset[Defence] = frozenset()

    @property
    def defences(self) -> frozenset[Defence]:
        """The defences that stop the cheat."""
        return self.also_by | {self.stopped_by}


@dataclass(frozen=True, slots=True, kw_only=True)
class Oddity(_Listed):
    """An honest implementation that does something unusual, which no defence may take for a cheat."""

    # What is unusual.
    why: str


class Laborious(Implementation):
    """Multi-head attention that does more work than the reference; a cheat overrides ``begin``."""

    def unsupported(self, case: Case) -> str | None:
        """Return why the case is refused: the labour is self-attention without masks and dropout."""
        problem = case.problem
        plain = problem.self_attention and problem.batch_first and problem.mask == "none" and problem.bias
        return None if plain and not problem.need_weights else "only plain self-attention"

    def build(self, reference: object) -> object:
        """Return the reference, whose parameters the labour uses."""
        return reference

    def prepare(self, module: object, case: Case, inputs: Inputs) -> Call:
        """Return the function that is timed."""
        del inputs
        return self.finish(self.begin(Labour(module, heads=case.problem.num_heads)))

    def begin(self, labour: Labour) -> Call:
        """Return the function that makes the output from the queries, given the honest labour."""
        return labour

    def finish(self, work: Call) -> Call:
        """Return a function with the arguments and the result of the reference, given what ``begin`` returned."""

        def call(query: Tensor, **others: Any) -> Any:
            del others
            return work(query), None

        return call


# A cheat or an oddity as its author writes it: the ``begin`` of a ``Laborious``, or a class.
Written = Callable[[Labour], Call] | type[Implementation]


class CheatList(list[Cheat]):
    """The cheats of one kind. Calling the list returns a decorator that appends what it decorates as a cheat."""

    def __call__(
        self,
        stopped_by: Defence,
        why: str,
        *,
        source: str,
        mode: Mode = "inference",
        also_by: frozenset[Defence] = frozenset(),
    ) -> Callable[[Written], type[Implementation]]:
        """Return the decorator; the arguments are the fields of ``Cheat``."""

        def decorate(written: Written) -> type[Implementation]:
            made = _make_class(written)
            self.append(
                Cheat(
                    implementation=made(),
                    stopped_by=stopped_by,
                    why=why,
                    source=source,
                    mode=mode,
                    also_by=also_by,
                )
            )
            return made

        return decorate


class OddityList(list[Oddity]):
    """Honest oddities. Calling the list returns a decorator that appends what it decorates as an oddity."""

    def __call__(self, why: str) -> Callable[[Written], type[Implementation]]:
        """Return the decorator; ``why`` says what is unusual."""

        def decorate(written: Written) -> type[Implementation]:
            made = _make_class(written)
            self.append(Oddity(implementation=made(), why=why))
            return made

        return decorate


def _make_class(written: Written) -> type[Implementation]:
    """Return a class of implementations that is named after what was written, in snake case."""
    made: type[Implementation] = (
        written
        if isinstance(written, type)
        else type(
            written.__name__,
            (Laborious,),
            {"begin": staticmethod(written), "__module__": written.__module__, "__doc__": written.__doc__},
        )
    )
    made.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", made.__name__).lower()
    return made
