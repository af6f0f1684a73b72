"""``attnbench.choose``: what to use for a call, from what was measured."""

from collections.abc import Collection
from pathlib import Path
from typing import TypedDict, get_args

from attnbench.analysis.dispatch import Choice, Dispatch, NoChoiceError, OnTie, Query, choose_at, read_dispatch
from attnbench.api.stored import RESULTS, Source, find_run
from attnbench.records.environment import describe_machine
from attnbench.records.types import Pass

__all__ = ["Asked", "Choice", "NoChoiceError", "choose"]


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
    on_tie: OnTie


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
    on_tie: OnTie = "reference",
) -> Choice:
    """Return which implementation to use for a call, with its gain and the evidence.

    ``source`` is a ``dispatch.json``, a folder that contains one, the file of a run, the id of a run below ``results``,
    or the result of ``attnbench.profile``. An argument that is left out has the value of the timed calls that fit the
    other arguments, if these calls have only one such value. ``machine``, the name of the machine that was measured, is
    by default this machine. ``mask`` is the name of a mask as in the ids of cases. ``needs`` are features that the
    implementation must not refuse, such as "weights". ``case`` is the id of a case, where several cases have the same
    sizes.

    Nothing is interpolated: only a call that was timed is answered. A tie and an undecided comparison give the
    reference; with ``on_tie="fastest"`` a tie gives the implementation with the smallest ratio.

    Raises: NoChoiceError if no such call was measured, or several were; ResultsError where the source cannot be read;
    ValueError for an unknown pass or value of ``on_tie``.
    """
    given = () if passes is None else (("passes", passes, get_args(Pass)),)
    for name, value, allowed in (*given, ("on_tie", on_tie, get_args(OnTie))):
        if value not in allowed:
            raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
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
    return choose_at(_read(source), query, needs=needs, on_tie=on_tie)


def _read(source: Source) -> Dispatch:
    if isinstance(source, str | Path):
        path = Path(source) / "dispatch.json" if Path(source).is_dir() else Path(source)
        if path.suffix == ".json":
            return read_dispatch(path)
    from attnbench.report.content import collect_content
    from attnbench.report.dispatch import make_dispatch

    content = collect_content([find_run("source", source, RESULTS)])
    return make_dispatch(content.runs, content.decisions.entries)
