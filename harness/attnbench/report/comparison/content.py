"""Content of a comparison, collected once. The terminal, the HTML page and the Markdown text all render it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from attnbench.analysis.completeness import judge_completeness, list_damage
from attnbench.analysis.left_out import LeftOut, count_left_out
from attnbench.analysis.plain_names import join_words
from attnbench.analysis.run_diff import Change, index_results
from attnbench.analysis.unmatched import Unmatched, list_unmatched
from attnbench.records.run_file import StoredRun
from attnbench.report.comparison.conditions import Condition, explain_differences, list_conditions
from attnbench.report.comparison.rows import Row, Section, describe_common, make_sections
from attnbench.report.failures import Failures, collect_failures
from attnbench.report.numbers import format_count, shorten_text
from attnbench.report.spelled import spell_out_in
from attnbench.words.changes import describe_lack
from attnbench.words.completeness import describe_gaps

__all__ = ["Comparison", "Only", "Sentence", "collect_comparison"]

# Most implementations that are named in a sentence, and the longest text in it, in characters.
NAMED, LONGEST = 4, 110
# Longest reason in the table of what only one side has, in characters.
LONGEST_REASON = 200
# What may decide what has no verdict, by whether both sides are of one run. By default, ``compare`` times in at most
# 30 processes.
DECIDING = {
    False: "Time both again while nothing else runs, in more processes (attnbench profile --processes 30).",
    True: "Compare again while nothing else runs, or in more processes (--processes 40).",
}
# Words for what one side has and the other lacks: of one, of several.
KINDS = {
    "implementation": ("case", "cases", "the whole implementation"),
    "case": ("case", "cases", "cases"),
    "check": ("finding", "findings", "checks that ran"),
    "timing": ("timing", "timings", "timings"),
}


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
class Comparison:
    """Everything that a comparison shows."""

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
    threshold: float = 0.0,
    left_out: Sequence[LeftOut] = (),
) -> Comparison:
    """Collect the content of a comparison from the changes that ``run_diff`` found.

    ``names`` are those of two implementations that were timed interleaved. ``base`` and ``new`` then have the results
    of one of them each, and the same run. Without ``names``, ``base`` and ``new`` are two stored runs, ``threshold`` is
    the smallest relative change of time, and ``left_out`` is what cannot be right in them.
    """
    results, sections = index_results(new), make_sections(found)
    before = index_results(base)
    if names is not None:
        before = {(names[1], case): replace(result, implementation=names[1]) for (_, case), result in before.items()}
    conditions = tuple(list_conditions(base.run, new.run))
    worse = {(one.implementation, one.case, one.aspect) for one in found if one.verdict == "wrong"}
    failed = [
        replace(r, findings=tuple(f for f in r.findings if (r.implementation, r.case, f.check) in worse), timing=None,
                memory=None)
        for r in results.values()
    ]  # fmt: skip
    failures = collect_failures([new], [result for result in failed if result.findings])
    warnings = [] if names else [*explain_differences(base.run, new.run, conditions), *_list_gaps(base, new, left_out)]
    return spell_out_in(
        Comparison(
            base=names[0] if names else base.run.id,
            new=names[1] if names else new.run.id,
            method=_describe_method(names, threshold),
            warnings=tuple(warnings),
            sentences=tuple(_list_sentences(found, sections, failures, one_run=names is not None)),
            counts=", ".join(f"{n} {verdict}" for verdict, n in Counter(one.verdict for one in found).most_common()),
            common=describe_common(found),
            sections=sections,
            failures=failures,
            only=tuple(map(_describe_only, list_unmatched(before, results))),
            conditions=conditions,
            one_run=names is not None,
        )
    )


def _describe_method(names: tuple[str, str] | None, threshold: float) -> str:
    if names:
        return (
            "The two implementations were timed with interleaved calls in the same processes. A time below is the "
            "new implementation's time compared with the base's."
        )
    return (
        "Times of two runs are compared by their ratios to the reference's time in the same run. A change is slower or "
        f"faster if its whole interval is beyond {100 * threshold:g} %. Bytes, flop and kernel calls are exact."
    )


def _list_gaps(base: StoredRun, new: StoredRun, left_out: Sequence[LeftOut]) -> Iterator[str]:
    for side, stored in (("BASE", base), ("NEW", new)):
        gaps = list(describe_gaps(judge_completeness(stored), named=True))
        # A half-written last line is among the gaps.
        unreadable = [] if gaps else [*list_damage(stored)][:1]
        if told := " ".join([*gaps, *unreadable]):
            yield f"{side} is incomplete: {told}"
    if left_out:
        first = shorten_text(left_out[0].reason, LONGEST)
        yield f"Left out, because it cannot be right: {count_left_out(left_out)}. The first: {first}."


def _list_sentences(
    found: Sequence[Change], sections: Sequence[Section], failures: Failures, *, one_run: bool
) -> Iterator[Sentence]:
    """Yield the sentences of the summary, what became worse first."""
    if not found:
        yield Sentence(kind="gap", text="BASE and NEW have nothing in common to compare.", anchor="only")
        return
    if not any(section.kind == "bad" for section in sections):
        undecided = sum(section.count for section in sections if section.anchor == "undecided")
        decided = f"{len(found) - undecided} of {len(found)} comparisons" if undecided else ""
        count = decided or format_count(len(found), "comparison")
        yield Sentence(kind="good", text=f"Nothing became worse in {count}.", anchor="")
    for section in sections:
        kind: Literal["bad", "gap", "good"] = (
            "bad" if section.kind == "bad" else "good" if section.kind == "good" else "gap"
        )
        tell = _tell_failures(failures) if section.anchor == "wrong" else _tell_section(section)
        if section.anchor == "undecided":
            tell = (f"{text} {DECIDING[one_run]}" for text in tell)
        yield from (Sentence(kind=kind, text=text, anchor=section.anchor) for text in tell)


def _tell_failures(failures: Failures) -> Iterator[str]:
    own: dict[str, list[str]] = {}
    for group in failures.groups:
        own.setdefault(group.implementation, []).append(f"{group.title} ({format_count(group.cases, 'case')})")
    for name, causes in list(own.items())[:NAMED]:
        more = f", and {format_count(len(causes) - 2, 'more cause')}" if len(causes) > 2 else ""
        yield f"{name} became wrong: {'; '.join(shorten_text(cause, LONGEST) for cause in causes[:2])}{more}."
    if len(own) > NAMED:
        yield f"{format_count(len(own) - NAMED, 'more implementation')} became wrong."


def _tell_section(section: Section) -> Iterator[str]:
    """Yield sentences on the changes of a section other than the failures."""
    names = [group.implementation for group in section.groups]
    if section.anchor in ("undecided", "other", "missing"):
        verb = {"undecided": "No verdict on", "other": "Other kernels in", "missing": "Missing in the new:"}
        yield f"{verb[section.anchor]} {format_count(section.count, 'comparison')} of {_name(names)}."
        return
    for group in section.groups[:NAMED]:
        yield f"{group.implementation} {join_words(_tell_aspects(group.rows))}."
    if len(names) > NAMED:
        yield f"{section.title}: {_name(names[NAMED:])}."


def _tell_aspects(rows: Sequence[Row]) -> Iterator[str]:
    """Yield words on the time, the memory and the checks; on another aspect only if there are none of these."""
    by_aspect: dict[str, list[Row]] = {}
    for row in rows:
        by_aspect.setdefault("checks" if row.verdict == "mended" else row.what, []).append(row)
    told = [name for name in ("time", "peak memory", "checks") if name in by_aspect] or list(by_aspect)[:1]
    for name in told:
        own = by_aspect[name]
        count = sum(row.count for row in own)
        if name == "checks":
            yield f"passes {format_count(count, 'finding')} that failed"
            continue
        worst = own[0]
        verb = {"time": f"is {worst.verdict} on"}.get(
            name, f"has {'more' if worst.verdict == 'bigger' else 'less'} {name} on"
        )
        of = "at most " if count > 1 else ""
        change = worst.change.partition(", ")[0] if name != "time" else worst.change.partition(" [")[0]
        yield f"{verb} {format_count(count, 'case')} ({of}{change}, {worst.where})"


def _name(names: Iterable[str]) -> str:
    some = list(names)
    shown = some[:NAMED] if len(some) > NAMED + 1 else some
    return join_words([*shown, *([f"{len(some) - len(shown)} more"] if len(some) > len(shown) else [])])


def _describe_only(one: Unmatched) -> Only:
    single, several, what = KINDS[one.kind]
    notes = [f"{one.failed} with failures"] if one.failed and one.kind != "check" else []
    notes += [f"{one.failed} failed"] if one.failed and one.kind == "check" else []
    if one.lacks:
        lack, count = one.lacks[0]
        more = f" (and {format_count(len(one.lacks) - 1, 'other reason')})" if len(one.lacks) > 1 else ""
        notes.append(
            f"{shorten_text(describe_lack(lack), LONGEST_REASON)}{f' ×{count}' if count < one.count else ''}{more}"
        )
    return Only(
        side="BASE" if one.side == "base" else "NEW",
        implementation=one.implementation,
        what=what,
        count=format_count(one.count, single, several),
        note="; ".join(notes),
    )
