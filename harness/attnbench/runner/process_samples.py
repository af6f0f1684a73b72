"""Samples of one call from several processes, and their conversion to the stored record."""

from dataclasses import dataclass, field
from typing import Any, Self

from attnbench.processes.candidate_requests import Samples
from attnbench.records.types import SAMPLE_FIELDS, Timing

__all__ = ["ProcessSamples"]


@dataclass(slots=True)
class ProcessSamples:
    """Samples of one call; each column has a tuple per process, which is empty if the process did not time the call."""

    columns: dict[str, list[tuple[Any, ...]]] = field(
        default_factory=lambda: {name: [] for name in ("times_ns", *SAMPLE_FIELDS)}
    )
    # Methods by which the processes measured the times; a single method unless the processes differ.
    methods: dict[str, None] = field(default_factory=dict)
    # Sources of the readings of a device's clock; a single source unless the processes differ.
    clocks: dict[str, None] = field(default_factory=dict)
    build_ns: list[int] = field(default_factory=list)
    first_call_ns: list[int] = field(default_factory=list)
    # What was done with the input values of the calls, as in ``Timing.values``.
    values: str = ""
    # Number of sampled calls whose results were evaluated, and passed.
    judged: int = 0

    def add(self, process: int, taken: Samples) -> None:
        """Add the samples that a process took; earlier processes without samples get empty tuples."""
        for name, column in self.columns.items():
            column.extend([()] * (process - len(column)))
            column.append(tuple(getattr(taken, name)))
        self.methods[taken.method] = None
        self.clocks[taken.clock] = None
        # A single process with fixed values makes a timing one of fixed values.
        self.values = "fixed" if "fixed" in (self.values, taken.values) else taken.values
        if taken.build_ns is not None:
            self.build_ns.append(taken.build_ns)
        self.first_call_ns.append(taken.first_call_ns)

    @classmethod
    def from_timing(cls, timing: Timing) -> Self:
        """Return the samples of a stored timing, to which further processes can be added."""
        nothing = [()] * len(timing.samples_ns)
        fields = {name: list(getattr(timing, name)) or list(nothing) for name in SAMPLE_FIELDS}
        return cls(
            columns={"times_ns": list(timing.samples_ns), **fields},
            methods={timing.method: None},
            clocks={timing.clock: None},
            build_ns=list(timing.build_ns),
            first_call_ns=list(timing.first_call_ns),
            values=timing.values,
            judged=timing.judged,
        )

    def to_timing(self, processes: int, threads: int) -> Timing:
        """Return the record to store, whose columns have one tuple for each of the ``processes`` processes."""
        whole: dict[str, Any] = {
            name: tuple(column + [()] * (processes - len(column))) for name, column in self.columns.items()
        }
        return Timing(
            samples_ns=whole["times_ns"],
            **{name: whole[name] for name in SAMPLE_FIELDS if any(whole[name])},
            threads=threads,
            method="; ".join(self.methods),
            clock="; ".join(self.clocks),
            values=self.values,
            judged=self.judged,
            trainable=True,
            build_ns=tuple(self.build_ns),
            first_call_ns=tuple(self.first_call_ns),
        )
