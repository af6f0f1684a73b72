"""``attnbench.choose``: what to use for a call, from what was measured."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, get_args

from attnbench.analysis.answers import DECIDED, Unbounded
from attnbench.analysis.dispatch import Chosen, Dispatch, NoChoiceError, Query, choose_at, read_dispatch
from attnbench.analysis.stats import Interval
from attnbench.api.stored import RESULTS, Source, find_run
from attnbench.records.environment import describe_machine
from attnbench.records.types import Pass
from attnbench.words.answers import UNCHECKED, describe_gain, describe_regret
from attnbench.words.say import say

__all__ = ["Asked", "Choice", "NoChoiceError", "choose"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What to use for a call, and the evidence for it."""

    name: str
    # Upper bound on the regret: 0.006 says that the time is at most 0.6 % above that of any other that may be chosen.
    # None: there is no bound, for the reason ``unbounded``.
    regret: float | None
    unbounded: Unbounded | None = None
    # The implementation at which the bound is reached; empty if no other may be chosen.
    behind: str = ""
    # Name of the reference, and the time of ``name`` divided by its time; None for the reference itself.
    reference: str
    ratio: Interval | None = None
    # The suite that gives the verdict on conformance, and the number of its checked cases, of which a verdict needs 20.
    suite: str = ""
    checked: int = 0
    # Whether the choice was made among implementations that are known to conform.
    conforming: bool = True
    # Where the timing is stored. ``line``: number of the line in the file of the run; 0 where unknown.
    run: str = ""
    line: int = 0
    case: str
    machine: str
    # Number of threads of the timed calls; with another number, another implementation may be the fastest.
    threads: int
    # Number of processes that timed the call.
    processes: int

    @property
    def decided(self) -> bool:
        """Whether the bound on the regret is at most 1 %."""
        return self.regret is not None and self.regret <= DECIDED

    def __str__(self) -> str:
        ratio, place = self.ratio, f"{self.run} line {self.line}" if self.line else self.run
        gain = describe_gain(ratio.value, ratio.low, ratio.high, self.reference) if ratio else ""
        parts = [gain, describe_regret(self.regret, self.unbounded), *[say(UNCHECKED)] * (not self.conforming)]
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}"
        return f"{self.name}: {', '.join(filter(None, parts))} [{place}: {self.case}, {threads}]"


class Asked(TypedDict, total=False):
    """The arguments of ``choose`` that may be left out, with their types."""

    keys: int | None
    batch: int | None
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    dtype: str | None
    passes: Pass | None
    mask: str | None
    needs: Collection[str]
    device: str | None
    threads: int | None
    machine: str | None
    case: str | None
    regret: float | None
    fallback: str | None


def choose(
    source: Source,
    *,
    queries: int,
    keys: int | None = None,
    batch: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    dtype: str | None = None,
    passes: Pass | None = None,
    mask: str | None = None,
    needs: Collection[str] = (),
    device: str | None = None,
    threads: int | None = None,
    machine: str | None = None,
    case: str | None = None,
    regret: float | None = None,
    fallback: str | None = None,
) -> Choice:
    """Return which implementation to use for a call, with a bound on its regret and the evidence.

    Of the implementations that conform, it is the one whose worst case against all others is smallest. Its ``regret``
    says how much slower than the fastest it may be: 0.006 is at most 0.6 %.

    ``source`` is a ``dispatch.json``, a folder that contains one, the file of a run, the id of a run below ``results``,
    or the result of ``attnbench.profile``. An argument that is left out has the value of the timed calls that fit the
    other arguments, if these calls have only one such value. ``machine``, the name of the machine that was measured, is
    by default this machine. ``mask`` is the name of a mask as in the ids of cases. ``needs`` are features that the
    implementation must not refuse, such as "weights". ``case`` is the id of a case, where several cases have the same
    sizes.

    Nothing is interpolated: only a call that was timed is answered. ``regret`` is the largest bound that is accepted.
    If the bound is larger, the choice is the implementation that ``fallback`` names.

    Raises: NoChoiceError if no such call was measured, or several were, or if the bound is larger than ``regret`` and
    there is no ``fallback``; ResultsError where the source cannot be read; ValueError for an unknown pass or a
    ``regret`` that is no share.
    """
    if passes is not None and passes not in get_args(Pass):
        raise ValueError(f"passes must be one of {', '.join(get_args(Pass))}, got {passes!r}")
    if regret is not None and not (isinstance(regret, int | float) and regret >= 0):
        raise ValueError(f"regret must be a share of at least 0, such as 0.01 for 1 %, got {regret!r}")
    sizes = {"queries": queries, "keys": keys, "batch": batch, "heads": heads, "kv_heads": kv_heads}
    for name, size in (sizes | {"head_dim": head_dim, "threads": threads}).items():
        if size is not None and not isinstance(size, int):
            raise ValueError(f"{name} must be a whole number, got {size!r}")
    if isinstance(needs, str):
        needs = (needs,)
    # A dtype of torch is written as in the ids of cases; torch is not imported for it.
    dtype = None if dtype is None else str(dtype).removeprefix("torch.")
    query = Query(
        queries=queries, keys=keys, batch=batch, heads=heads, kv_heads=kv_heads,
        head_dim=head_dim, dtype=dtype, passes=passes, mask=mask, device=device, threads=threads, case=case,
        machine=describe_machine().name if machine is None else machine,
    )  # fmt: skip
    return _make_choice(choose_at(_read(source), query, needs=needs, regret=regret, fallback=fallback))


def _make_choice(chosen: Chosen) -> Choice:
    cell, answer, offer = chosen.cell, chosen.answer, chosen.offer
    return Choice(
        name=answer.name,
        regret=answer.regret,
        unbounded=answer.unbounded,
        behind=answer.behind,
        reference=cell.reference,
        ratio=offer.ratio if offer else None,
        suite=offer.suite if offer else "",
        checked=offer.checked if offer else 0,
        conforming=cell.conforming,
        run=offer.run if offer else "",
        line=offer.line if offer else 0,
        case=cell.case,
        machine=cell.machine,
        threads=cell.threads,
        processes=cell.processes,
    )


def _read(source: Source) -> Dispatch:
    if isinstance(source, str | Path):
        path = Path(source) / "dispatch.json" if Path(source).is_dir() else Path(source)
        if path.suffix == ".json":
            return read_dispatch(path)
    from attnbench.analysis.summarize import summarize
    from attnbench.report.dispatch import make_dispatch

    run = find_run("source", source, RESULTS)
    return make_dispatch([run], summarize([run]))
