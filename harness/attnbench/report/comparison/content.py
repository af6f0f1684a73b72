"""Content of a comparison, collected once. The terminal, the HTML page and the Markdown text all render it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from attnbench.analysis.completeness import judge_completeness, list_damage
from attnbench.analysis.exclusions import Exclusion
from attnbench.analysis.plain_names import join_words
from attnbench.analysis.run_diff import Change, index_results
from attnbench.analysis.unmatched import Unmatched, list_unmatched
from attnbench.records.run_file import StoredRun
from attnbench.report.comparison.conditions import Condition, explain_differences, list_conditions
from attnbench.report.comparison.rows import Row, Section, describe_common, make_sections
from attnbench.report.failures import Failures, collect_failures
from attnbench.report.hidden_characters import spell_out
from attnbench.report.numbers import shorten_text
from attnbench.words import compared_runs as run_words
from attnbench.words import comparison as words
from attnbench.words.changes import describe_lack
from attnbench.words.completeness import describe_gaps
from attnbench.words.exclusions import count_exclusions, describe_fault
from attnbench.words.say import say, say_count
from attnbench.words.unmatched import COUNTS, NAMES, count_failed, describe_lacks

__all__ = ["ComparisonContent", "Only", "Sentence", "collect_comparison"]

# Longest text in a sentence, in characters.
LONGEST = 110
# Most causes of one implementation in a sentence.
CAUSES = 2
# Longest reason in the table of what only one side has, in characters.
LONGEST_REASON = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """A sentence of the summary; ``anchor`` is the section that it is about."""

    kind: Literal["bad", "gap", "good"]
    text: str
    anchor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Only:
    """What only one side has, in words."""

    side: Literal["BASE", "NEW"]
    implementation: str
    what: str
    count: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonContent:
    """Everything that a comparison shows."""

    # What made the comparison, in words.
    title: str
    # Names of the two sides: ids of runs, or names of implementations.
    base: str
    new: str
    # How they were compared, in a sentence.
    method: str
    # Sentences on differences of the conditions, and on what is missing from the runs.
    warnings: tuple[str, ...]
    sentences: tuple[Sentence, ...]
    # How often each verdict was given, in words.
    counts: str
    # What all measured cases have in common, in words.
    common: str
    sections: tuple[Section, ...]
    # The new failures, by cause.
    failures: Failures
    only: tuple[Only, ...]
    conditions: tuple[Condition, ...]
    # Whether both sides are of one run.
    one_run: bool


def collect_comparison(
    found: Sequence[Change],
    base: StoredRun,
    new: StoredRun,
    *,
    names: tuple[str, str] | None = None,
    title: str = words.TITLE,
    threshold: float = 0.0,
    exclusions: Sequence[Exclusion] = (),
) -> ComparisonContent:
    """Collect the content of a comparison from the changes that ``run_diff`` found.

    ``names`` are those of two sides that were timed interleaved. ``base`` and ``new`` then have the results of one of
    them each, under the same names of implementations, and the same run. Without ``names``, ``base`` and ``new`` are
    two stored runs, ``threshold`` is the smallest relative change of time, and ``exclusions`` are what cannot be right
    in them. ``title`` says what made the comparison.
    """
    results, sections = index_results(new), make_sections(found)
    before = index_results(base)
    conditions = tuple(list_conditions(base.run, new.run))
    worse = {(one.implementation, one.case, one.aspect) for one in found if one.verdict == "wrong"}
    failed = [
        replace(r, findings=tuple(f for f in r.findings if (r.implementation, r.case, f.check) in worse), timing=None,
                memory=None)
        for r in results.values()
    ]  # fmt: skip
    failures = collect_failures([new], [result for result in failed if result.findings])
    warnings = (
        [] if names else [*explain_differences(base.run, new.run, conditions), *_list_gaps(base, new, exclusions)]
    )
    return ComparisonContent(
        title=title,
        base=names[0] if names else base.run.id,
        new=names[1] if names else new.run.id,
        method=run_words.describe_method(None if names else threshold),
        warnings=tuple(map(spell_out, warnings)),
        sentences=tuple(_list_sentences(found, sections, failures, one_run=names is not None)),
        counts=", ".join(f"{n} {verdict}" for verdict, n in Counter(one.verdict for one in found).most_common()),
        common=describe_common(found),
        sections=sections,
        failures=failures,
        only=tuple(map(_describe_only, list_unmatched(before, results))),
        conditions=conditions,
        one_run=names is not None,
    )


def _list_gaps(base: StoredRun, new: StoredRun, exclusions: Sequence[Exclusion]) -> Iterator[str]:
    for side, stored in (("BASE", base), ("NEW", new)):
        gaps = list(describe_gaps(judge_completeness(stored), named=True))
        # A half-written last line is among the gaps.
        unreadable = [] if gaps else [*list_damage(stored)][:1]
        if told := [*gaps, *unreadable]:
            yield say(run_words.INCOMPLETE, side=side, gaps=" ".join(told))
    if exclusions:
        first = shorten_text(describe_fault(exclusions[0].reason), LONGEST)
        yield say(run_words.EXCLUDED, things=count_exclusions(exclusions), first=first)


def _list_sentences(
    found: Sequence[Change], sections: Sequence[Section], failures: Failures, *, one_run: bool
) -> Iterator[Sentence]:
    """Yield the sentences of the summary, what became worse first."""
    if not found:
        yield Sentence(kind="gap", text=f"{say(words.NOTHING)}.", anchor="only")
        return
    if not any(section.kind == "bad" for section in sections):
        open_ones = next((section for section in sections if section.anchor == "undecided"), None)
        if open_ones is None:
            yield Sentence(kind="good", text=words.describe_none_worse(len(found)), anchor="")
        else:
            names = [group.implementation for group in open_ones.groups]
            text = words.describe_undecided(open_ones.count, len(found), names, one_run=one_run)
            yield Sentence(kind="gap", text=text, anchor="undecided")
            sections = [section for section in sections if section is not open_ones]
    for section in sections:
        wrong = section.anchor == "wrong"
        told = _tell_failures(failures) if wrong else _tell_section(section, one_run=one_run)
        yield from (Sentence(kind=section.kind, text=text, anchor=section.anchor) for text in told)


def _tell_failures(failures: Failures) -> Iterator[str]:
    own: dict[str, list[str]] = {}
    for group in failures.groups:
        cases = say_count(words.CASES, group.cases)
        own.setdefault(group.implementation, []).append(say(words.CAUSE, title=group.title, cases=cases))
    for name, causes in list(own.items())[: words.NAMED]:
        shown = [shorten_text(cause, LONGEST) for cause in causes[:CAUSES]]
        yield words.describe_wrong(name, shown, more=len(causes) - len(shown))
    if len(own) > words.NAMED:
        yield say_count(words.MORE_WRONG, len(own) - words.NAMED)


def _tell_section(section: Section, *, one_run: bool) -> Iterator[str]:
    """Yield sentences on the changes of a section other than the failures."""
    names = [group.implementation for group in section.groups]
    if section.anchor in ("undecided", "other", "missing"):
        yield words.describe_undirected(section.anchor, section.count, names, one_run=one_run)
        return
    for group in section.groups[: words.NAMED]:
        yield say(words.GROUP, name=group.implementation, changes=join_words(_tell_aspects(group.rows)))
    if len(names) > words.NAMED:
        yield words.describe_more_groups(section.anchor, names[words.NAMED :])


def _tell_aspects(rows: Sequence[Row]) -> Iterator[str]:
    """Yield words on the time, the memory and the checks; on another aspect only if there are none of these."""
    by_aspect: dict[str, list[Row]] = {}
    for row in rows:
        by_aspect.setdefault("checks" if row.verdict == "mended" else row.aspect, []).append(row)
    told = [name for name in ("time", "peak_bytes", "checks") if name in by_aspect] or list(by_aspect)[:1]
    for own in map(by_aspect.__getitem__, told):
        worst, count = own[0], sum(row.count for row in own)
        yield words.describe_aspect(worst.aspect, worst.verdict, count, worst.brief, worst.where)


def _describe_only(one: Unmatched) -> Only:
    lack = shorten_text(describe_lack(one.lacks[0][0]), LONGEST_REASON) if one.lacks else ""
    notes = (count_failed(one), describe_lacks(one, lack) if one.lacks else "")
    return Only(
        side="BASE" if one.side == "base" else "NEW",
        implementation=one.implementation,
        what=say(NAMES[one.kind]),
        count=say_count(COUNTS[one.kind], one.count),
        note="; ".join(filter(None, notes)),
    )
