"""What was found of several models, as one summary: for the terminal, the page, Markdown, CSV and JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from attnbench.report.csv_files import render_csv
from attnbench.report.markdown_text import escape, format_code, format_table
from attnmodels.facts import ORDER, CheckedSource, Inspection, Situation
from attnmodels.texts import (
    LEGEND,
    MARKS,
    describe_deviations,
    describe_inspection,
    describe_left_out,
    describe_time,
    describe_versions,
)

__all__ = [
    "STEM",
    "TITLE",
    "ModelSummary",
    "SummaryRow",
    "encode_sources",
    "read_sources",
    "summarize",
    "write_documents",
]

# Name of the files, without their suffixes, and title of the section and of the Markdown file.
STEM, TITLE = "models", "Attention inside models"
COLUMNS = ("source", "model", "attention", "situation", "status", "layers", "found")


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRow:
    """An attention function in a model: a word for each situation of the summary; empty: the model lacks it."""

    model: str
    attention: str
    words: tuple[str, ...]
    time: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSummary:
    """Models and attention functions by situations, and a sentence for each kind of deviation, with its model."""

    situations: tuple[Situation, ...]
    rows: tuple[SummaryRow, ...]
    deviations: tuple[tuple[str, str], ...]
    left_out: tuple[tuple[str, str], ...]
    # What each model is: its size, how it was made small, what was not checked, and versions of libraries.
    models: tuple[tuple[str, str], ...]


def summarize(sources: Sequence[CheckedSource]) -> ModelSummary:
    """Return the summary of models."""
    met = {cell.situation for one in sources for cell in one.cells}
    situations = tuple(one for one in ORDER if one in met)
    return ModelSummary(
        situations=situations,
        rows=tuple(
            SummaryRow(
                model=one.label, attention=name,
                words=tuple(MARKS[cell.status] if (cell := one.get_cell(name, place)) else "" for place in situations),
                time=next((describe_time(own) for own in one.times if own.attention == name), ""),
            )
            for one in sources for name in one.attentions
        ),
        deviations=tuple((one.label, text) for one in sources
                         for text in describe_deviations(one.inspection.model, one.cells)),
        left_out=tuple((one.label, text) for one in sources if (text := describe_left_out(one.inspection))),
        models=tuple((one.label, _describe(one.inspection)) for one in sources),
    )  # fmt: skip


def _describe(found: Inspection) -> str:
    told = " ".join((*describe_inspection(found), describe_versions(found)))
    return told.removeprefix(f"{found.model}: ")


def encode_sources(sources: Sequence[CheckedSource]) -> str:
    """Return what was found as JSON."""
    return msgspec.json.format(msgspec.json.encode(sources), indent=1).decode() + "\n"


def read_sources(folder: Path) -> list[CheckedSource]:
    """Return what ``write_documents`` wrote to a folder; empty if nothing was written."""
    path = folder / f"{STEM}.json"
    return msgspec.json.decode(path.read_bytes(), type=list[CheckedSource]) if path.exists() else []


def write_documents(folder: Path, sources: Sequence[CheckedSource]) -> None:
    """Write models.json, models.md and models.csv into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{STEM}.json").write_text(encode_sources(sources), encoding="utf-8")
    (folder / f"{STEM}.md").write_text("\n\n".join(_render_markdown(summarize(sources))) + "\n", encoding="utf-8")
    (folder / f"{STEM}.csv").write_bytes(b"".join(render_csv(COLUMNS, _list_csv_rows(sources))))


def _render_markdown(summary: ModelSummary) -> Iterator[str]:
    yield f"# {TITLE}"
    timed = any(row.time for row in summary.rows)
    head = ("model", "attention", *(one.replace("-", " ") for one in summary.situations), *["time"] * timed)
    yield format_table(head, [
        (escape(row.model), format_code(row.attention), *row.words, *[escape(row.time)] * timed) for row in summary.rows
    ])  # fmt: skip
    yield escape(LEGEND)
    for title, texts in (
        ("Deviations and refusals", summary.deviations),
        ("Left out", summary.left_out),
        ("Models", summary.models),
    ):
        if texts:
            yield f"## {title}"
            yield "\n".join(f"- {escape(f'{model}: {text}')}" for model, text in texts)


def _list_csv_rows(sources: Sequence[CheckedSource]) -> Iterator[tuple[str, ...]]:
    for one in sources:
        for cell in one.cells:
            found = " ".join(describe_deviations(one.inspection.model, [cell]))
            yield (one.source, one.inspection.model, cell.attention, cell.situation, cell.status,
                   " ".join(cell.layers), found)  # fmt: skip
        for own in one.times:
            state = own.verdict.state if own.verdict else ""
            yield one.source, one.inspection.model, own.attention, "time", state, "", describe_time(own)
