"""A comparison as Markdown for a comment on a pull request: short, what became worse first."""

from collections.abc import Iterator

from attnbench.report.comparison.content import ComparisonContent
from attnbench.report.comparison.rows import Row, Section
from attnbench.report.failures import FailureGroup
from attnbench.report.markdown_text import escape, format_code, format_table, hide_comments
from attnbench.report.numbers import shorten_text
from attnbench.words import comparison as words
from attnbench.words.say import say, say_count

__all__ = ["render"]

# Longest text, in characters. GitHub takes comments of up to 65,536; nobody reads one that long.
LONGEST = 10_000
# Most rows of a table, tried one after another until the text is short enough. With 0 rows a section is only counted.
ROWS = (20, 10, 5, 2, 1, 0)
# Longest text in a cell and in a sentence, in characters.
LONGEST_CELL, LONGEST_SENTENCE = 120, 300
# Most sentences of the summary, and most warnings above it.
SENTENCES, WARNINGS = 12, 6
# Sections whose changes are only counted: they are neither worse nor better.
COUNTED = ("undecided", "other")


def render(content: ComparisonContent) -> str:
    """Return the Markdown text of a comparison, of at most ``LONGEST`` characters."""
    texts = (hide_comments("\n\n".join(filter(None, _list_parts(content, rows)))) + "\n" for rows in ROWS)
    return next((text for text in texts if len(text) <= LONGEST), _render_shortest(content))


def _list_parts(content: ComparisonContent, rows: int) -> Iterator[str]:
    yield _render_title(content)
    yield _render_warnings(content)
    yield "\n".join(
        f"- {_mark(one.kind)}{_shorten(one.text, LONGEST_SENTENCE)}" for one in content.sentences[:SENTENCES]
    )
    if content.common:
        yield say(words.COMMON, common=_shorten(content.common))
    for section in content.sections:
        if section.anchor not in COUNTED:
            yield from _render_section(section, content, rows)
    yield from _render_only(content, rows)
    yield from _render_conditions(content, rows)


def _render_title(content: ComparisonContent) -> str:
    return f"### {_shorten(content.title)}: {_code(content.base)} → {_code(content.new)}"


def _render_warnings(content: ComparisonContent) -> str:
    """Return the warnings as an alert of GitHub, which other viewers show as a quotation."""
    if not content.warnings:
        return ""
    lines = [f"> **{_shorten(line, LONGEST_SENTENCE)}**" for line in content.warnings[:WARNINGS]]
    return "> [!WARNING]\n" + "\n>\n".join(lines)


def _mark(kind: str) -> str:
    return {"bad": "❌ ", "gap": "❔ ", "good": "✅ "}[kind]


def _render_section(section: Section, content: ComparisonContent, most: int) -> Iterator[str]:
    yield f"#### {section.title}: {section.count}"
    if not most:
        return
    if section.anchor == "wrong":
        groups = content.failures.groups
        yield format_table(("implementation", "cause", "cases", "one of them"), map(_list_failure, groups[:most]))
        left = len(groups) - most
        commands = [group.command for group in groups[:1] if len(group.command) < LONGEST_SENTENCE]
        yield from (say(words.COMMAND, command=_code(one, len(one))) for one in commands)
        yield say_count(words.MORE_CAUSES, left) if left > 0 else ""
        return
    # The largest changes of each implementation, so that a long table of one does not hide another.
    own = sorted(
        ((place, row) for group in section.groups for place, row in enumerate(group.rows)), key=lambda pair: pair[0]
    )[:most]
    kept = {id(row) for _, row in own}
    rows = [row for group in section.groups for row in group.rows if id(row) in kept]
    several = len({row.verdict for group in section.groups for row in group.rows}) > 1
    yield format_table(
        ("implementation", "what", "change", "from → to", "where"),
        (_list_row(row, with_verdict=several) for row in rows),
    )
    left = sum(len(group.rows) for group in section.groups) - len(rows)
    yield say_count(words.MORE_ROWS, left) if left > 0 else ""


def _list_failure(group: FailureGroup) -> tuple[str, ...]:
    found = f"{group.worst.excess}: {group.worst.fault}" if group.worst.excess else group.worst.fault
    return (_code(group.implementation), _shorten(group.title), str(group.cases), _shorten(found))


def _list_row(row: Row, *, with_verdict: bool) -> tuple[str, ...]:
    what = f"{row.what}, {row.verdict}" if with_verdict else row.what
    sides = f"{row.base} → {row.new}{row.unit}" if row.base or row.new else ""
    change = " ".join(filter(None, (f"**{_shorten(row.change)}**" if row.change else "", _shorten(row.detail))))
    return (_code(row.implementation), _shorten(what), change, _shorten(sides), _shorten(row.where))


def _render_only(content: ComparisonContent, most: int) -> Iterator[str]:
    if not content.only:
        return
    yield f"#### Only in one: {len(content.only)}"
    if most:
        yield format_table(
            ("implementation", "only in", "what", "how many", "in the other"),
            (
                (_code(one.implementation), one.side, one.what, one.count, _shorten(one.note))
                for one in content.only[:most]
            ),
        )
        left = len(content.only) - most
        yield say_count(words.MORE_ROWS, left) if left > 0 else ""


def _render_conditions(content: ComparisonContent, most: int) -> Iterator[str]:
    rows = [one for one in content.conditions if one.differs]
    if rows and most:
        yield "#### What differs"
        yield format_table(
            ("condition", "base", "new"),
            (
                (
                    f"**{_shorten(one.what)}**" if one.warns else _shorten(one.what),
                    _shorten(one.base),
                    _shorten(one.new),
                )
                for one in rows[:most]
            ),
        )


def _render_shortest(content: ComparisonContent) -> str:
    """Return the counts alone, if nothing else is short enough."""
    return hide_comments(f"{_render_title(content)}\n\n{_shorten(content.counts)}") + "\n"


def _code(text: str, longest: int = LONGEST_CELL) -> str:
    return format_code(shorten_text(text, longest))


def _shorten(text: str, longest: int = LONGEST_CELL) -> str:
    return escape(shorten_text(text, longest))
