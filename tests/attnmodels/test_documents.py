"""Tests of the summary of models: Markdown, CSV, JSON and the section of the page."""

import csv
from pathlib import Path

from attnbench.analysis.speed_verdict import SpeedVerdict
from attnbench.analysis.stats import Estimate
from attnmodels.documents import read_sources, summarize, write_documents
from attnmodels.facts import (
    MODEL,
    Cause,
    Cell,
    CheckedSource,
    Inspection,
    LeftOut,
    Situation,
    Status,
    TimedModel,
    Visibility,
    WholeError,
)
from attnmodels.section import make_section
from attnmodels.texts import describe_deviations, format_time

SEEN = Visibility(seen=35, hidden=0, pairs=228, cause=Cause(argument="attention_mask"))
OVER = WholeError(tensor="h.0.ln_1.bias", error=3.0, allowed=1.0)
VERDICT = SpeedVerdict(
    state="faster", ratio=Estimate(value=0.8, low=0.78, high=0.82, level=0.95, processes=10), counted=10, of=10
)  # fmt: skip


def make_cell(attention: str, situation: Situation, status: Status = "held", **more: object) -> Cell:
    """Make a cell."""
    return Cell(attention=attention, situation=situation, status=status, calls=2, **more)  # type: ignore[arg-type]


SOURCE = CheckedSource(
    source="transformers:OPTConfig",
    inspection=Inspection(
        model="OPT|Model", parameters=100, layers=("h.0",), changed={}, situations=("alone", "packed"),
        left_out=(LeftOut(situation="window", reason="no window"),), cast_floor=0.0, unknown_patterns=(), cells=(),
    ),
    cells=(
        make_cell(MODEL, "alone"), make_cell(MODEL, "packed", "deviates", layers=("h.0", "h.1"), facts=(SEEN,)),
        make_cell("eager", "alone"), make_cell("eager", "packed"),
        make_cell("eager", "end-to-end", "deviates", facts=(WholeError(tensor="output", error=0.1, allowed=1.0), OVER)),
    ),
    timed_batch=4, timed_length=16,
    times=(TimedModel(attention="eager", share=0.25, median_ns=2e6, verdict=VERDICT),),
)  # fmt: skip


def test_one_summary_has_models_functions_and_situations() -> None:
    """A situation that a function was not checked in is empty; deviations name their model."""
    found = summarize([SOURCE])
    assert found.situations == ("alone", "packed", "end-to-end")
    assert [row.words for row in found.rows] == [("yes", "NO", ""), ("yes", "yes", "NO")]
    assert [row.time for row in found.rows] == ["", "2 ms, 0.800 (0.780 to 0.820) × the first, faster"]
    assert found.deviations == (
        ("OPT|Model", "(the model), packed: h.0 and 1 more layer: attention_mask is ignored: 35 hidden keys are seen, "
                      "of 228"),
        ("OPT|Model", "eager, end-to-end: the gradient of h.0.ln_1.bias is 3 from float64 (allowed 1)"),
    )  # fmt: skip
    assert found.left_out == (("OPT|Model", "window (no window)"),)


def test_documents_have_the_same_facts(tmp_path: Path) -> None:
    """Markdown has the table and the sentences, CSV a row for each cell and time, and JSON is read back."""
    write_documents(tmp_path / "new", [SOURCE])
    text = (tmp_path / "new" / "models.md").read_text()
    assert "| OPT\\|Model | `(the model)` | yes | NO |  |  |" in text
    assert "attention\\_mask is ignored: 35 hidden keys are seen" in text
    with (tmp_path / "new" / "models.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(SOURCE.cells) + 1
    assert (rows[1]["status"], rows[1]["layers"], rows[-1]["situation"]) == ("deviates", "h.0 h.1", "time")
    assert read_sources(tmp_path / "new") == [SOURCE]
    assert read_sources(tmp_path) == []


def test_the_page_has_a_section_if_the_folder_has_models(tmp_path: Path) -> None:
    """Without models.json there is no section."""
    assert make_section(None, tmp_path) is None
    write_documents(tmp_path, [SOURCE])
    section = make_section(None, tmp_path)
    assert section is not None
    assert section.values["summary"] == summarize([SOURCE])
    assert section.values["timed"]


def test_a_wrong_output_has_no_time() -> None:
    """The share of the error says why."""
    assert format_time(TimedModel(attention="fast", share=9.0)) == (
        "fast", "", "", "wrong output in a timed call", "9.00",
    )  # fmt: skip


def test_what_holds_everywhere_for_a_function_is_said_once() -> None:
    """A function that is refused in every situation has one short sentence."""
    cells = [make_cell("sdpa", situation, "refused") for situation in ("alone", "packed", "window")]
    assert list(describe_deviations("M", cells)) == ["sdpa, in every situation: "]
