"""Tests of ``attnbench history``: its table, its files, its filters, and what it refuses."""

import json
from functools import partial
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from attnhistory.command import command
from commands import refuse_command
from stored_history import write_asv

refuse = partial(refuse_command, command, kind=click.UsageError)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """Two commits: of two implementations, each has one byte more at two lengths; the ratios do not move."""
    params = [["'a'", "'mine.py:b'"], ["8", "16"], ["'forward'"]]
    for number, peak in enumerate((4096, 4097)):
        write_asv(tmp_path / "asv", number, {"peak_bytes": peak, "time_ratio": 1.0}, params=params)
    return tmp_path / "asv"


def run(*words: str | Path) -> Result:
    """Run the command."""
    return CliRunner().invoke(command, [*map(str, words)], standalone_mode=False, catch_exceptions=False)


def test_the_table_has_a_row_for_cases_with_the_same_step(stored: Path) -> None:
    """Below it are the counts, what the rule of ratios needs, and one command for both implementations."""
    done = run(stored)
    assert done.return_value == 0
    assert done.stdout.count("peak_bytes") == 2
    assert "2 cases, such as" in done.stdout
    assert "4 series have steps, and 4 have none." in done.stdout
    assert "4 ratios have values without a confidence interval" in done.stdout
    gate = "attnbench gate a mine.py:b --base 00000000 --fail-on wrong,bigger --lengths 8,16 --bigger 1"
    assert f"in a checkout of 00000001: {gate}" in done.stdout


def test_a_command_measures_the_dtype_and_the_mask_of_its_steps(tmp_path: Path) -> None:
    """There is a command for each setting; float32 without a mask is what the gate measures by itself."""
    params = [["'a'"], ["8"], ["'forward'"], ["'float32'", "'bfloat16'"], ["'none'", "'causal'"]]
    for number, peak in enumerate((4096, 4097)):
        write_asv(tmp_path, number, {"peak_bytes": peak}, params=params)
    told = " ".join(run(tmp_path).stdout.split())
    gate = "attnbench gate a --base 00000000 --fail-on wrong,bigger --lengths 8 --bigger 1"
    assert told.count(gate) == 4
    for settings in (" --mask causal", " --dtype bfloat16", " --dtype bfloat16 --mask causal"):
        assert told.count(f"{gate}{settings} To") + told.endswith(gate + settings) == 1


def test_one_commit_has_nothing_to_compare_with(tmp_path: Path) -> None:
    """The output says why there is no step."""
    write_asv(tmp_path, 0, {"peak_bytes": 4096})
    assert "a step needs two" in run(tmp_path).stdout
    write_asv(tmp_path, 1, {"peak_bytes": 4096})
    assert "a step needs two" not in run(tmp_path).stdout


def test_all_shows_series_without_steps(stored: Path) -> None:
    """Each implementation and quantity has one row for its cases."""
    assert "time_ratio" not in run(stored).stdout
    assert run(stored, "--all").stdout.count("no step") == 2


def test_a_filter_keeps_the_series_of_an_implementation(stored: Path) -> None:
    """The option is repeatable, and refuses a name that no file has."""
    assert "mine.py:b" not in run(stored, "--implementation", "a").stdout
    message = refuse(stored, "--implementation", "c")
    assert message == "--implementation: no file has 'c'; there are a, mine.py:b"


def test_files_have_the_steps(stored: Path, tmp_path: Path) -> None:
    """JSON has all series; Markdown has the table; the page has a chart of each series with steps and loads nothing."""
    names = {kind: tmp_path / f"history.{kind}" for kind in ("json", "markdown", "html")}
    run(stored, *(word for kind, path in names.items() for word in (f"--{kind}", str(path))))
    series = json.loads(names["json"].read_text())["series"]
    assert len(series) == 8
    (step,) = next(one for one in series if one["key"]["quantity"] == "peak_bytes")["steps"]
    assert (step["earlier"]["value"], step["later"]["value"], step["rule"]) == (4096, 4097, "equality")
    assert step["command"] == "attnbench gate a --base 00000000 --fail-on wrong,bigger --lengths 8 --bigger 1"
    assert "| 00000000 → 00000001 | a | peak\\_bytes |" in names["markdown"].read_text()
    page = names["html"].read_text()
    assert page.count("<svg") == page.count("stroke-dasharray") == 4
    assert "default-src &#39;none&#39;" in page


def test_text_of_a_file_is_no_markup(tmp_path: Path) -> None:
    """A name from a result file is escaped on the page."""
    params = [[repr("<script>alert(1)</script>")], ["8"], ["'forward'"]]
    for number in range(2):
        write_asv(tmp_path / "asv", number, {"flop": number}, params=params)
    page = tmp_path / "page.html"
    run(tmp_path / "asv", "--html", page)
    assert "<script>alert" not in page.read_text()
    assert "alert(1)" in page.read_text()


def test_standard_output_may_have_a_file(stored: Path) -> None:
    """The table then goes to standard error."""
    done = run(stored, "--json", "-")
    assert len(json.loads(done.stdout)["series"]) == 8
    assert "peak_bytes" in done.stderr


def test_what_is_not_read_is_a_warning(stored: Path) -> None:
    """The command goes on, and ends with 0."""
    cut = stored / "some-cpu" / "ffffffff-virtualenv.json"
    cut.write_text('{"commit')
    done = run(stored)
    assert done.return_value == 0
    assert f"warning: not read: {cut}: it is no whole result file of asv" in done.stderr


def test_without_a_path_the_repository_is_read(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration of asv names the folder of results."""
    monkeypatch.chdir(stored.parent)
    (stored.parent / "asv.conf.json").write_text('{"results_dir": "asv"}')
    assert "4 series have steps" in run().stdout


def test_usage_errors_name_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing to read, a path that does not exist, a folder or a file without values, two outputs in one file."""
    monkeypatch.chdir(tmp_path)
    assert refuse() == "PATH is missing, and the current folder has no asv.conf.json and no folder results: name one"
    assert refuse("nowhere").startswith("nowhere does not exist: name a folder of asv's results, a run file, or")
    remedy = "name a folder of asv's results of attnbench.asv, or of runs"
    assert refuse(tmp_path) == f"no file has a counter or a ratio: {remedy}"
    (tmp_path / "a.json").write_text("{}")
    assert refuse("a.json").endswith(f"): {remedy}")
    assert "name the same file 'a'" in refuse(".", "--json", "a", "--html", "a")
