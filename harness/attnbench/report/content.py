"""Content of a report, collected once from the runs: the summary, and what the sections of the page show besides."""

from collections.abc import Sequence
from dataclasses import dataclass

from attnbench.analysis.completeness import list_damage
from attnbench.analysis.exclusions import exclude_implausible
from attnbench.analysis.summarize import summarize
from attnbench.analysis.summary import Summary
from attnbench.records.run_file import StoredRun, merge_runs
from attnbench.records.types import WITHOUT_CASES, Ceiling, Result
from attnbench.report.failures import Failures, collect_failures
from attnbench.report.maps import Maps, make_maps
from attnbench.report.nodes import Nodes, collect_nodes

__all__ = ["Content", "collect_content"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Everything that a report shows."""

    runs: tuple[StoredRun, ...]
    # The merged results, without those of the search for the longest sequence; ``every`` has these too.
    results: tuple[Result, ...]
    every: tuple[Result, ...]
    summary: Summary
    failures: Failures
    # Where nodes of the same kind disagree.
    nodes: Nodes
    maps: Maps

    @property
    def compact(self) -> bool:
        """Whether findings that passed without a warning are left out of findings.csv."""
        return any(run.compact for run in self.runs)

    @property
    def ceilings(self) -> list[Ceiling]:
        """The ceilings of all runs."""
        return [ceiling for run in self.runs for ceiling in run.ceilings]

    @property
    def unreadable(self) -> list[str]:
        """Messages about lines of run files that could not be read."""
        return [line for run in self.runs for line in list_damage(run)]


def collect_content(runs: Sequence[StoredRun]) -> Content:
    """Collect the content of a report on these runs; what cannot be right is left out first, and named."""
    summary = summarize(runs)
    runs, _ = exclude_implausible(runs)
    every = merge_runs(runs)
    results = [result for result in every if result.suite not in WITHOUT_CASES]
    return Content(
        runs=tuple(runs),
        results=tuple(results),
        every=tuple(every),
        summary=summary,
        failures=collect_failures(runs, results),
        nodes=collect_nodes(runs),
        maps=make_maps(summary.tables),
    )
