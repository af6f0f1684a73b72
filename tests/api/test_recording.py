"""Tests of the recording of a run: what a resumed run keeps of the stored one."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnbench.api.recording import record
from attnbench.jobs.job import ProfileJob
from attnbench.plugins.registry import display_name
from attnbench.records.run_file import read_run
from scratch_repository import SOURCE, Repository
from timed_runs import case_of, time_calls


def make_session(digest: str, torch: str) -> Any:
    """Stand in for a session that has loaded ``sdpa`` with this hash of its sources, and this version of torch."""
    declared = {"sdpa": SimpleNamespace(sources=SimpleNamespace(digest=digest))}
    return SimpleNamespace(
        limits=SimpleNamespace(threads=1), libraries=SimpleNamespace(torch=torch, threads=1), declared=declared,
        whole_lists=[],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("digest", "torch", "kept"), [("one", "2.10.0", True), ("other", "2.10.0", False), ("one", "2.11.0", False)]
)
def test_a_resumed_run_keeps_the_timings_of_the_same_code(tmp_path: Path, digest: str, torch: str, kept: bool) -> None:
    """If the code of an implementation or a library has changed, the implementation is timed again."""
    given: dict[str, Any] = {
        "job": ProfileJob(results=tmp_path), "suite": "perf", "cases": [], "implementations": ["sdpa"],
    }  # fmt: skip
    with record(make_session("one", "2.10.0"), **given) as made:
        result = time_calls("sdpa", 0.5, case=case_of(64), run=made.run.id)
        made.add(result)
    with record(make_session(digest, torch), resumed=read_run(made.file.path), **given) as again:
        (found,) = again.results.values()
    assert (found.timing == result.timing) == kept
    assert (found.timing is None) == (not kept)
    assert found.findings == result.findings


def test_a_run_stores_the_commit_of_foreign_code(tmp_path: Path) -> None:
    """Files outside a checkout have none; the commit of what attnbench brings is that of attnbench."""
    repository = Repository(tmp_path / "repository")
    commit = repository.git("rev-parse", "--short=12", "HEAD")
    (tmp_path / "alone.py").write_text("")
    session = make_session("one", "2.10.0")
    names = {name: str(tmp_path / f"{name}.py:Attend") for name in ("repository/mine", "alone")}
    for place, name in names.items():
        folder = (tmp_path / place).parent
        sources = SimpleNamespace(digest="two", folder=str(folder), files=[f"{Path(place).name}.py"])
        session.declared[name] = SimpleNamespace(sources=sources)
    given: dict[str, Any] = {"suite": "perf", "cases": [], "implementations": ["sdpa", *names.values()]}
    found = []
    for change in ("", "# more"):
        repository.write(SOURCE + change)
        with record(session, job=ProfileJob(results=tmp_path), **given) as made:
            assert made.run.find_commit("sdpa") == made.run.commit
            found.append([made.run.find_commit(display_name(name)) for name in names.values()])
    assert found == [[commit, None], [f"{commit}+", None]]
