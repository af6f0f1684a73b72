"""Tests of the matrix of a report: what its cells count, what is folded, and where its links lead."""

import html
import re
from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.records.run_file import StoredRun
from attnbench.records.types import Finding, Machine, Planned, Result, Run, Status, StoredJob
from attnbench.report import collect
from attnbench.report.matrix import Matrix, list_legend, make_matrices
from rendered_reports import render_page

CASE = "multihead/B2.L5.S7.E24.H3/bias+batch_first/mask=none/regime=plain/seed={}/float32/cpu/eval"
HOSTILE = ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', r"\1", "a/../b", "", "x" * 10_000, "a|b`c")


def make_stored_run(*found: tuple[str, str, Status], number: int = 1, reason: str = "x But y") -> StoredRun:
    """Make a run on a machine of this number, with a case for each implementation, check and status."""
    run = Run(
        id=f"20260101-00000{number}-abcd", time="2026-01-01T00:00:00+00:00", command="attnbench conform",
        machine=Machine(name=f"machine-{number}", cpu="Some CPU", cores=4, memory_bytes=2**30), versions={}, threads=2,
    )  # fmt: skip
    results = tuple(
        Result(
            run=run.id, implementation=name, case=CASE.format(place), suite="quick",
            findings=(Finding(check=check, status=status, reason="" if status == "passed" else reason),),
        )
        for place, (name, check, status) in enumerate(found)
    )  # fmt: skip
    return StoredRun(run=run, results=results, path=Path(f"{run.id}.jsonl"))


def make(*runs: StoredRun) -> tuple[Matrix, ...]:
    """Return the matrices of a report on these runs."""
    content = collect(runs)
    return make_matrices(content.runs, content.results, content.failures.anchors)


def list_texts(matrix: Matrix) -> dict[str, list[str]]:
    """Return the texts of the cells, by chapter and check."""
    rows = [row for chapter in matrix.chapters for row in (chapter.row, *chapter.checks)]
    return {row.name: [cell.text for cell in row.cells] for row in rows}


def test_a_row_of_a_chapter_adds_up_its_checks() -> None:
    """A cell counts the findings of each status, failures first; a chapter has the sums of its checks.

    The run has no end, and "yours" has fewer cases than "mine": what it lacks was not run.
    """
    stored = make_stored_run(
        ("mine", "forward_parity", "passed"),
        ("mine", "forward_parity", "failed"),
        ("mine", "forward_parity", "crashed"),
        ("yours", "forward_parity", "expected_failure"),
        ("mine", "input_gradients", "unsupported"),
        ("mine", "parameter_gradients", "passed"),
        ("mine", "parameter_gradients", "not_run"),
    )
    (matrix,) = make(stored)
    assert matrix.names == ("mine", "yours")
    assert list_texts(matrix) == {
        "forward": ["✗ 2, ✓ 1", "~ 1"],
        "forward_parity": ["✗ 2, ✓ 1", "~ 1"],
        "gradients": ["✓ 1, – 1, · 1", "·"],
        "input_gradients": ["– 1", "·"],
        "parameter_gradients": ["✓ 1, · 1", "·"],
    }


def test_machines_have_matrices_of_their_own() -> None:
    """Findings of two machines are never added up; each matrix has the name of its machine above it."""
    runs = [make_stored_run(("mine", "forward_parity", "passed"), number=number) for number in (1, 2)]
    assert [list_texts(matrix)["forward"] for matrix in make(*runs)] == [["✓ 1"], ["✓ 1"]]
    page = render_page(runs)
    assert re.findall("<h3>On (.*?)</h3>", page) == ["machine-1", "machine-2"]
    assert "<h3>On" not in render_page(runs[:1])


def test_devices_of_a_machine_have_matrices_of_their_own() -> None:
    """Findings on the CPU and on the GPU of a machine are never added up; verdict and matrix link to the failures."""
    stored = make_stored_run(("mine", "forward_parity", "passed"), ("mine", "forward_parity", "failed"))
    on_gpu = replace(stored.results[1], case=stored.results[1].case.replace("/cpu/", "/cuda/"))
    stored = replace(stored, results=(stored.results[0], on_gpu))
    content = collect([stored])
    assert [(matrix.machine, list_texts(matrix)["forward"]) for matrix in make(stored)] == [
        ("machine-1, cpu", ["✓ 1"]), ("machine-1, cuda", ["✗ 1"]),
    ]  # fmt: skip
    (group,) = content.failures.groups
    assert group.machine == "machine-1, cuda"
    assert list(content.failures.headings) == [("machine-1, cuda", "mine")]
    page = render_page([stored])
    assert re.findall("<h3>On (.*?)</h3>", page) == ["machine-1, cpu", "machine-1, cuda"]


def test_implementations_on_which_nothing_was_checked_are_one_line() -> None:
    """Those that were refused or not run throughout have no column; they are named together with their reason."""
    stored = make_stored_run(
        ("good", "forward_parity", "passed"),
        ("one", "forward_parity", "unsupported"),
        ("other", "forward_parity", "not_run"),
        reason="no CUDA device",
    )
    (matrix,) = make(stored)
    assert matrix.names == ("good",)
    page = render_page([stored])
    assert "Not checked: <code>one</code>, <code>other</code>: no CUDA device." in page


def test_a_run_of_which_nothing_was_checked_has_no_table() -> None:
    """If every implementation was refused, there is the line with the reason, and no table."""
    page = render_page([make_stored_run(("one", "forward_parity", "unsupported"))])
    assert 'class="matrix"' not in page
    assert "Not checked: <code>one</code>: x But y." in page


def test_implementations_with_failures_come_first() -> None:
    """Failing columns are the first ones, and every mark of a column stands in a cell of its own."""
    stored = make_stored_run(
        ("good", "forward_parity", "passed"),
        ("good", "input_gradients", "unsupported"),
        ("wrong", "forward_parity", "failed"),
        ("wrong", "forward_parity", "passed"),
    )
    (matrix,) = make(stored)
    assert matrix.columns == (("wrong", ("bad", "good")), ("good", ("good", "refused")))
    page = render_page([stored])
    table = page.split('<table class="matrix">')[1].split("</table>")[0]
    assert [row.count("<td") for row in table.split("<tr>")[2:]] == [4, 4]
    assert table.count('colspan="2"') == 2


def test_the_legend_has_only_what_occurs() -> None:
    """The legend stands above the matrix, and names no mark that the matrix lacks."""
    stored = make_stored_run(("one", "forward_parity", "passed"), ("one", "input_gradients", "passed"))
    assert [mark for _, mark, _ in list_legend(make(stored))] == ["✓"]
    page = render_page([stored])
    assert page.index('<ul class="legend">') < page.index('<table class="matrix">')
    both = make_stored_run(("one", "forward_parity", "passed"), ("two", "input_gradients", "failed"))
    assert [mark for _, mark, _ in list_legend(make(both))] == ["✗", "✓", ""]


def test_what_a_cut_run_did_not_reach_is_not_run() -> None:
    """In a run without an end, an empty cell of an unfinished implementation is "not run", also if it never began."""
    stored = make_stored_run(
        ("one", "forward_parity", "passed"),
        ("one", "input_gradients", "passed"),
        ("two", "forward_parity", "passed"),
    )
    planned = {"one": Planned(cases=2), "two": Planned(cases=2), "three": Planned(cases=2)}
    cut = replace(stored, run=replace(stored.run, implementations=tuple(planned), job=StoredJob(planned=planned)))
    (matrix,) = make(cut)
    assert matrix.names == ("one", "two", "three")
    assert matrix.titles == ("one", "two, not finished", "three")
    assert list_texts(matrix)["gradients"] == ["✓ 1", "·", "·"]
    assert list_texts(matrix)["forward"] == ["✓ 1", "✓ 1", "·"]
    assert ("left", "·", "not run") in list_legend([matrix])


def test_a_cell_with_failures_links_to_their_group() -> None:
    """✗ links to the group of the check; in the row of a chapter to that of the check with the most failures."""
    stored = make_stored_run(
        ("mine", "input_gradients", "failed"),
        ("mine", "parameter_gradients", "failed"),
        ("mine", "parameter_gradients", "failed"),
        ("mine", "forward_parity", "passed"),
    )
    (matrix,) = make(stored)
    links = {row.name: row.cells[0].link for c in matrix.chapters for row in (c.row, *c.checks)}
    assert links["forward"] == links["forward_parity"] == ""
    assert links["gradients"] == links["parameter_gradients"] != links["input_gradients"]
    page = render_page([stored])
    for check, count in (("input_gradients", 1), ("parameter_gradients", 2)):
        assert f'<a class="bad" href="#{links[check]}">✗&thinsp;{count}</a>' in page
        assert f'<article class="failure" id="{links[check]}">' in page


def test_the_row_of_a_chapter_leads_to_its_checks() -> None:
    """The name of a chapter links to the name above its folded checks, for each machine."""
    runs = [make_stored_run(("mine", "forward_parity", "passed"), number=number) for number in (1, 2)]
    page = render_page(runs)
    links = re.findall(r'<a href="#(checks-[^"]*)">forward</a>', page)
    assert len(set(links)) == 2
    for link in links:
        assert re.search(rf'<details class="checks">(?:(?!</details>)[\s\S])*<h4 id="{link}">forward</h4>', page)


def test_requirements_of_checks_are_on_the_page() -> None:
    """What a check requires is in the title of its row and in a folded list, also for an unknown check."""
    stored = make_stored_run(("mine", "forward_parity", "passed"), ("mine", "from_the_future", "passed"))
    page = html.unescape(render_page([stored])).replace("<wbr>", "")
    required = make(stored)[0].requirements
    assert f'title="{required["forward_parity"]}">forward_parity</th>' in page
    assert f"<dt><code>forward_parity</code></dt><dd>{required['forward_parity']}</dd>" in page
    assert "<dt><code>from_the_future</code></dt><dd>This version does not know the check.</dd>" in page
    assert list_texts(make(stored)[0])["other"] == ["✓ 1"]


@pytest.mark.parametrize("machines", [1, 2])
@pytest.mark.parametrize("text", HOSTILE)
def test_names_and_reasons_stay_texts(text: str, machines: int) -> None:
    """Names of any kind are no markup in the page, and no id occurs twice."""
    statuses: tuple[Status, ...] = ("passed", "failed", "unsupported")
    found = [*((text, text, status) for status in statuses), ("refused", text, "unsupported")]
    runs = [make_stored_run(*found, number=n, reason=text or "-") for n in range(1, machines + 1)]
    page = render_page(runs)
    assert page.count("<script") == 1  # the page's own
    assert "<img src=x" not in page
    ids = re.findall(r' id="([^"]*)"', page)
    assert len(ids) == len(set(ids))
