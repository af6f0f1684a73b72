"""The sections of the page: each has an anchor, a title, a template, and what the template shows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from attnbench.analysis import max_length
from attnbench.plugins.registry import list_names
from attnbench.report.content import Content
from attnbench.report.figures.drawings import Drawing
from attnbench.report.figures.marks import make_mark
from attnbench.report.figures.style import Look
from attnbench.report.matrix import list_legend, make_matrices
from attnbench.report.measures import make_measures
from attnbench.report.numbers import format_bytes
from attnbench.report.reasons import collect_exclusions, collect_reasons, collect_untimed
from attnbench.report.slugs import make_slug
from attnbench.words.max_length import HEAD, format_row
from attnbench.words.measures import list_methods
from attnbench.words.runs import describe_commit, describe_machine, describe_suite

__all__ = ["GROUP", "Section", "list_plugin_sections", "make_sections"]

# Entry-point group of the sections of plug-ins. Each entry names a function that gets the content of a report and the
# folder of the report, and returns a ``Section`` or None.
GROUP = "attnbench.report_sections"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section of the page."""

    # Id of its element.
    anchor: str
    # Heading, and the words of its link.
    title: str
    # Name of the template, or the template itself if ``source``; it escapes every text.
    template: str
    values: Mapping[str, Any] = field(default_factory=dict)
    source: bool = False


Maker = Callable[[Content, Sequence[Drawing], Mapping[str, Look]], Section | None]


def make_sections(content: Content, drawings: Sequence[Drawing], looks: Mapping[str, Look]) -> Iterator[Section]:
    """Yield the sections of the page in their order, without those of plug-ins."""
    for make in SECTIONS:
        if section := make(content, drawings, looks):
            yield section


def list_plugin_sections() -> dict[str, str]:
    """Return the names of the entry points of plug-ins' sections, by the name of the placeholder of each."""
    return {make_slug(name): name for name in list_names(GROUP)}


def _make_failures(content: Content, _: object, __: object) -> Section:
    values = {
        "failures": content.failures,
        "reasons": collect_reasons(content.results),
        "nodes": content.nodes,
    }
    return Section(anchor="failures", title="Failures", template="failures.html.j2", values=values)


def _make_figures(_: object, drawings: Sequence[Drawing], __: object) -> Section | None:
    # The first figure is on the first screen, if it shows ratios.
    shown = drawings[1:] if drawings and drawings[0].kind == "ratio" else drawings
    if not shown:
        return None
    places = {place: list(own) for place, own in groupby(shown, key=lambda one: one.place)}
    values = {"places": list(places.items())}
    return Section(anchor="figures", title="Time and memory", template="figures.html.j2", values=values)


def _make_maps(content: Content, _: object, looks: Mapping[str, Look]) -> Section | None:
    if not content.maps.every:
        return None
    names = {cell.name for table in content.maps.shown for _, cells in table.rows for cell in cells}
    values = {"maps": content.maps, "marks": {name: make_mark(looks[name]) for name in names if name in looks}}
    return Section(anchor="maps", title="Maps", template="maps.html.j2", values=values)


def _make_places(content: Content, _: object, __: object) -> Section | None:
    found = content.summary.disagreements
    if not found and not content.nodes.times:
        return None
    places = list(dict.fromkeys(place for one in found for place, _ in one.names))
    values = {"disagreements": found, "places": places, "nodes": content.nodes}
    return Section(anchor="places", title="Where places disagree", template="places.html.j2", values=values)


def _make_measures(content: Content, _: object, __: object) -> Section | None:
    values = {
        "measures": make_measures(content.summary, content.runs, content.results),
        "untimed": collect_untimed(content.results),
        "longest": [format_row(one) for one in max_length.find_max_lengths(content.every)],
        "longest_head": HEAD,
    }
    if not any(values[key] for key in ("untimed", "longest")) and not content.summary.timings:
        return None
    return Section(anchor="measures", title="Measures", template="measures.html.j2", values=values)


def _make_conformance(content: Content, _: object, __: object) -> Section:
    matrices = make_matrices(content.runs, content.results, content.failures.anchors)
    requirements = {check: text for one in matrices for check, text in one.requirements.items()}
    values = {"matrices": matrices, "legend": list_legend(matrices), "requirements": requirements}
    return Section(anchor="conformance", title="Conformance", template="matrix.html.j2", values=values)


def _make_runs(content: Content, _: object, __: object) -> Section:
    values = {
        "runs": content.runs,
        "commit": describe_commit,
        "machine": lambda machine: describe_machine(machine, format_bytes(machine.memory_bytes)),
        "suite": describe_suite,
        "unreadable": content.unreadable,
        "exclusions": collect_exclusions(content.summary.exclusions),
    }
    return Section(anchor="runs", title="Runs", template="runs.html.j2", values=values)


def _make_methods(content: Content, _: object, __: object) -> Section:
    methods = sorted({result.memory.method for result in content.results if result.memory})
    values = {"methods": list(list_methods(content.summary.timings, memory=methods, compact=content.compact))}
    return Section(anchor="methods", title="Methods", template="methods.html.j2", values=values)


SECTIONS: tuple[Maker, ...] = (
    _make_failures, _make_figures, _make_maps, _make_measures, _make_conformance, _make_places, _make_runs,
    _make_methods,
)  # fmt: skip
