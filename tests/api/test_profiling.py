"""Tests of ``attnbench.profile``."""

import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pytest

import attnbench
from attnbench.api import profiling
from attnbench.api.progress import show_interactive_progress
from attnbench.api.recording import Recording
from attnbench.jobs.job import ProfileJob
from attnbench.jobs.stored import read_job
from attnbench.records.types import StoredJob
from attnbench.report.terminal import format_summary
from timed_runs import REFERENCE, store, time_calls

OWN = """
import math

def attention(q, k, v):
    weights = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1)
    return weights @ v
"""
SIZES = {"lengths": [8], "batch": 2, "heads": 2, "head_dim": 4, "passes": "forward", "processes": 2, "threads": 1}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[attnbench.ProfileResult]:
    """A profile of a function that only this process's search path finds."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_attention.py").write_text(OWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        own = importlib.import_module("own_attention")
        yield attnbench.profile([own.attention], results=folder / "results", **SIZES)
    del sys.modules["own_attention"]


@pytest.mark.extended
def test_a_profile_is_measured_and_stored(made: attnbench.ProfileResult) -> None:
    """The function and the reference are timed on the chosen sizes, and the run file has the same results."""
    frame = made.to_frame()
    assert list(frame["implementation"]) == [REFERENCE, "own_attention.py:attention"]
    assert set(frame["case"].str.split("/").str[1]) == {"B2.L8.S8.E8.H2"}
    assert (frame["median_ns"] > 0).all()
    assert made.path is not None
    pd.testing.assert_frame_equal(frame, attnbench.results.read(made.path))
    assert made.to_frame("memory")["peak_bytes"].min() > 0


@pytest.mark.extended
def test_the_run_has_the_command_line_that_repeats_it(made: attnbench.ProfileResult) -> None:
    """The stored command and the stored job give the same job again."""
    stored = made.run.run
    job = read_job(stored)
    assert job == read_job(replace(stored, job=StoredJob()))
    assert isinstance(job, ProfileJob)
    assert (job.lengths, job.processes, job.implementations) == ((8,), 2, ("own_attention.py:attention",))


@pytest.mark.extended
def test_a_choice_is_read_from_the_result(made: attnbench.ProfileResult) -> None:
    """``choose`` of the result answers as ``attnbench.choose`` with the run file."""
    choice = made.choose(queries=8, batch=2)
    assert choice == attnbench.choose(made, queries=8) == attnbench.choose(made.path or "", queries=8)
    assert choice.run == made.run.run.id


@pytest.mark.extended
def test_a_result_prints_the_table_of_the_terminal(made: attnbench.ProfileResult) -> None:
    """``str`` has the summary as ``attnbench profile`` prints it, and the path of the run."""
    assert str(made) == f"{format_summary(made.summary)}\nstored in {made.path}"
    assert repr(made) == str(made)
    (table,) = made.summary.tables
    assert len(made.to_frame("summary")) == sum(len(row.cells) for row in table.rows)


def test_a_notebook_shows_an_escaped_table() -> None:
    """Every text of a run is escaped in HTML, and a result that is not stored names no path."""
    run = store([time_calls(REFERENCE), time_calls("<script>", 0.5)])
    html = attnbench.ProfileResult(run=run, path=None)._repr_html_()
    assert "<script>" not in html
    assert "\n&lt;script&gt; " in html
    assert "stored in" not in html


def test_a_profile_may_leave_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``results=None``, the run is read and its file is removed."""
    monkeypatch.chdir(tmp_path)
    seen: list[ProfileJob] = []

    def record_profile(job: ProfileJob, *, start_recording: Any, **others: Any) -> Recording:
        class Started:
            limits = type("Limits", (), {"threads": 1})
            libraries = type("Libraries", (), {"torch": "2.10.0", "threads": 1})
            declared: ClassVar[dict[str, Any]] = {}
            whole_lists: ClassVar[list[str]] = []

        seen.append(job)
        recording: AbstractContextManager[Recording] = start_recording(
            Started(), job=job, suite="perf", cases=[], implementations=job.implementations
        )
        with recording as recorded:
            return recorded

    monkeypatch.setattr(profiling, "record_profile", record_profile)
    result = attnbench.profile(
        "sdpa", lengths=(77, (1, 512)), mask=["none", "causal"], padding=0.3, batch=8, results=None
    )
    (job,) = seen
    assert result.path is None
    assert not job.results.exists()
    assert list(tmp_path.iterdir()) == []
    assert (job.lengths, job.mask, job.padding) == ((77, (1, 512)), ("none", "causal"), (0.3,))
    assert result.run.run.command.startswith(
        "attnbench profile sdpa --lengths 77,1:512 --batch 8 --mask none,causal --padding 0.3"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"lengths": [(1, 2, 3)]},
            "lengths: needs whole numbers of at least 1, or pairs of queries and keys, got 1:2:3",
        ),
        ({"batch": [2.5]}, "batch: needs whole numbers of at least 1, got 2.5; for example 1,8"),
        ({"heads": True}, "heads: needs whole numbers of at least 1, got True"),
        ({"threads": 4096}, "threads: needs numbers of at most "),
    ],
)
def test_an_argument_that_cannot_be_used_is_named(arguments: dict[str, Any], message: str) -> None:
    """A wrong argument raises a ValueError of one line, before anything is measured."""
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        attnbench.profile("sdpa", results=None, **arguments)
    assert "\n" not in str(raised.value)
    assert "--" not in str(raised.value)


def test_progress_is_shown_to_readers_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A notebook gets plain lines; without a reader, or if switched off, nothing is printed."""

    def show(*, wanted: bool) -> str:
        with show_interactive_progress(wanted=wanted) as progress:
            progress.begin("time", 1)
            progress.now("sdpa")
            progress.done("sdpa")
        return capsys.readouterr().err

    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    assert show(wanted=True) == ""
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    assert show(wanted=True) == "time: 1 step\n"
    assert show(wanted=False) == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert "time" in show(wanted=True)
    assert show(wanted=False) == ""
