"""Tests of joining run files of shards and of tasks into one run for each machine."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.cases import digest
from attnbench.records.joined_file import Joined, join_parts
from attnbench.records.parts import describe_missing, find_parts, group_parts
from attnbench.records.run_file import ResultsError, StoredRun, format_line, read_run
from attnbench.records.types import (
    PERF,
    Ceiling,
    Completion,
    End,
    Finding,
    Machine,
    Planned,
    Record,
    Result,
    Run,
    StoredJob,
)

MACHINE = Machine(name="some-cpu", cpu="Some CPU", cores=4, memory_bytes=2**33)
NAMES = ("torch_mha", "sdpa")


def make_run(name: str, *, shard: str = "", machine: Machine = MACHINE, node: str = "", **fields: object) -> Run:
    """Return the run of a part."""
    run = Run(
        id=name, time=f"2026-01-01T00:00:0{name[-1]}+00:00",
        command="attnbench conform --suite core sdpa" + (f" --shard {shard}" if shard else ""), machine=machine,
        versions={"attnbench": "0.1.0", "torch": "2.11.0"}, threads=2, suite="core", suite_digest="of-the-part",
        list_digest="whole", implementations=NAMES, node=node,
        job=StoredJob(planned={name: Planned(cases=2) for name in NAMES}),
    )  # fmt: skip
    return replace(run, **fields)  # type: ignore[arg-type]


def make_result(run: str, number: int, name: str = "sdpa", **fields: object) -> Result:
    """Return a result on the case with this number."""
    case = f"multihead/B1.L{number}.S{number}.E16.H2/bias/mask=none/regime=plain/seed=0/float32/cpu/eval"
    finding = Finding(check="forward_parity", status="passed", measured=number / 10, allowed=1.0)
    made = Result(run=run, implementation=name, case=case, findings=(finding,), suite="core")
    return replace(made, **fields)  # type: ignore[arg-type]


def end(run: str, code: int = 0) -> End:
    """Return the end of a finished run."""
    return End(run=run, time="2026-01-01T01:00:00+00:00", outcome="finished", exit_code=code)


def write_part(folder: Path, run: Run, *records: Record, ends: bool = True) -> Path:
    """Write a run file, and return its path."""
    path = folder / f"{run.id}.jsonl"
    path.write_bytes(b"".join(map(format_line, [run, *records, *([end(run.id)] if ends else [])])))
    return path


def write_shards(folder: Path, count: int = 2, **fields: object) -> list[Path]:
    """Write the shards of a list with four cases."""
    folder.mkdir(exist_ok=True)
    runs = [make_run(f"part-{index}", shard=f"{index}/{count}", **fields) for index in range(1, count + 1)]  # type: ignore[arg-type]
    return [
        write_part(folder, run, *(make_result(run.id, 2 * place + own, name) for own in (1, 2) for name in NAMES))
        for place, run in enumerate(runs)
    ]


def merge(inputs: Sequence[Path], into: Path) -> list[Joined]:
    """Join parts as the command does."""
    return join_parts(group_parts(list(find_parts(inputs))), into)


def read_one(joined: Sequence[Joined]) -> StoredRun:
    """Return the only run that was made."""
    (one,) = joined
    return read_run(one.path)


def test_all_shards_make_the_whole_run(tmp_path: Path) -> None:
    """The shards of a list become one run of the whole list, with every result, and without --shard."""
    write_shards(tmp_path / "in")
    stored = read_one(merge([tmp_path / "in"], tmp_path / "out"))
    assert len(stored.results) == 8
    assert {result.run for result in stored.results} == {stored.run.id}
    assert (stored.run.suite_digest, stored.run.list_digest) == ("whole", "")
    assert stored.run.command == "attnbench conform --suite core sdpa"
    assert stored.run.planned == {name: Planned(cases=4) for name in NAMES}
    assert stored.run.parts == ("part-1", "part-2")
    assert stored.end == end(stored.run.id)
    assert stored.problems == ()


def test_inputs_do_not_change(tmp_path: Path) -> None:
    """No byte of the inputs changes, and no file is added beside them."""
    paths = write_shards(tmp_path / "in")
    before = {path: path.read_bytes() for path in paths}
    merge(paths, tmp_path / "out")
    assert {path: path.read_bytes() for path in (tmp_path / "in").iterdir()} == before


def test_a_result_is_copied_digit_for_digit(tmp_path: Path) -> None:
    """Only the id of the run changes in the line of a result, also with fields that this version does not know."""
    line = b'{"record":"result","run":"part-1","implementation":"sdpa","case":"%s","findings":[],"new":1e-05}\n'
    line %= make_result("", 1).case.encode()
    path = write_part(tmp_path, make_run("part-1"))
    path.write_bytes(path.read_bytes() + line)
    (made,) = merge([path], tmp_path / "out")
    assert line.replace(b"part-1", made.run.id.encode()) in made.path.read_bytes()


def test_machines_are_kept_apart(tmp_path: Path) -> None:
    """Each machine and number of threads gets a file of its own."""
    other = replace(MACHINE, name="other-cpu", cpu="Other CPU")
    write_part(tmp_path, make_run("part-1"), make_result("part-1", 1))
    write_part(tmp_path, make_run("part-2", machine=other), make_result("part-2", 1))
    write_part(tmp_path, make_run("part-3", threads=1), make_result("part-3", 1))
    made = merge([tmp_path], tmp_path / "out")
    assert [(one.run.machine.name, one.run.threads, one.results) for one in made] == [
        ("some-cpu", 2, 1), ("other-cpu", 2, 1), ("some-cpu", 1, 1),
    ]  # fmt: skip
    assert len({one.path for one in made}) == 3


@pytest.mark.parametrize(("second", "files"), [(1, 2), (2, 1)])
def test_nodes_are_kept_apart_where_both_ran_a_case(second: int, files: int, tmp_path: Path) -> None:
    """Two nodes of one kind get a file each if both ran a case; otherwise they share a file."""
    write_part(tmp_path, make_run("part-1", node="aa"), make_result("part-1", 1))
    write_part(tmp_path, make_run("part-2", node="bb"), make_result("part-2", second))
    made = merge([tmp_path], tmp_path / "out")
    assert [one.run.node for one in made] == (["aa", "bb"] if files == 2 else [""])


def test_each_of_several_nodes_has_the_list_whose_cases_it_ran(tmp_path: Path) -> None:
    """The file of a node with every case of the list has the hash of the list; the other has a part of the list.

    A further case is none of the list.
    """
    results = make_result("part-1", 1), make_result("part-1", 2), make_result("part-1", 3, completes=True)
    whole = digest(one.case for one in results[:2])
    write_part(tmp_path, make_run("part-1", node="aa", list_digest=whole), *results)
    write_part(tmp_path, make_run("part-2", node="bb", list_digest=whole), make_result("part-2", 1))
    made = merge([tmp_path], tmp_path / "out")
    assert [(one.run.suite_digest, one.run.list_digest) for one in made] == [(whole, ""), ("", whole)]


def test_a_repeated_task_replaces_the_earlier_one(tmp_path: Path) -> None:
    """If two tasks of a node have a case, all results of the case are those of the later task, and it is counted."""
    write_part(tmp_path, make_run("part-1"), make_result("part-1", 1), make_result("part-1", 2))
    later = make_result("part-2", 2, findings=(Finding(check="forward_parity", status="failed", reason="NaN"),))
    write_part(tmp_path, make_run("part-2"), later)
    made = merge([tmp_path], tmp_path / "out")
    stored = read_one(made)
    assert (made[0].results, made[0].repeated) == (2, 1)
    assert [finding.status for result in stored.results for finding in result.findings] == ["passed", "failed"]


def test_a_repeated_task_does_not_hide_a_failure(tmp_path: Path) -> None:
    """If only the earlier of two tasks has a failure on a case, all results of the case are of the earlier one."""
    failed = (Finding(check="forward_parity", status="failed", reason="NaN"),)
    for suite in ("core", PERF):
        folder = tmp_path / suite
        folder.mkdir()
        earlier = [make_result("part-1", 1, name, suite=suite) for name in NAMES]
        earlier[0] = replace(earlier[0], findings=failed)
        write_part(folder, make_run("part-1"), *earlier)
        write_part(folder, make_run("part-2"), *(make_result("part-2", 1, name, suite=suite) for name in NAMES))
        made = merge([folder], folder / "out")
        statuses = [finding.status for result in read_one(made).results for finding in result.findings]
        assert (made[0].results, made[0].repeated, statuses) == (2, 2, ["failed", "passed"])


def test_a_repeated_case_is_planned_once(tmp_path: Path) -> None:
    """What was planned in two tasks of a node is counted once, whether the case is checked or timed."""
    for name in ("part-1", "part-2"):
        run = make_run(name, job=StoredJob(planned={"sdpa": Planned(cases=1, timed=1)}))
        write_part(tmp_path, run, make_result(name, 1), make_result(name, 2, suite=PERF))
    assert read_one(merge([tmp_path], tmp_path / "out")).run.planned == {"sdpa": Planned(cases=1, timed=1)}


def test_the_other_records_are_joined(tmp_path: Path) -> None:
    """The highest ceiling and the last completion of each implementation are kept; the exit code is the worst."""
    for number, rate in ((1, 3e9), (2, 2e9)):
        run = make_run(f"part-{number}")
        top = Ceiling(run=run.id, device="cpu", dtype="float32", threads=2, flop_per_s=rate, bytes_per_s=1 / rate)
        own = Completion(run=run.id, implementation="sdpa", suite="core", list_digest="x", listed=number)
        write_part(tmp_path, run, top, own, make_result(run.id, number), end(run.id, 3 - 2 * (number == 1)), ends=False)
    stored = read_one(merge([tmp_path], tmp_path / "out"))
    assert [(one.flop_per_s, one.bytes_per_s) for one in stored.ceilings] == [(3e9, 1 / 2e9)]
    assert [one.listed for one in stored.completions] == [2]
    assert stored.end is not None
    assert stored.end.exit_code == 1


def test_a_cut_part_makes_a_run_without_an_end(tmp_path: Path) -> None:
    """If a part was cut within a line, the line is left out and named, and the joined run has no end."""
    path = write_part(tmp_path, make_run("part-1"), make_result("part-1", 1), make_result("part-1", 2), ends=False)
    path.write_bytes(path.read_bytes()[:-40])
    made = merge([path], tmp_path / "out")
    assert made[0].problems == [
        f"{path}: line 3 cannot be read and left out",
        f"{path}: the run was cut, and has no end",
    ]
    stored = read_one(made)
    assert (len(stored.results), stored.problems, stored.end) == (1, (), None)


def test_missing_shards_are_named(tmp_path: Path) -> None:
    """Shards that are not there are named, and the joined run is known to be incomplete."""
    paths = write_shards(tmp_path / "in", 4)
    assert describe_missing(list(find_parts(paths[:1]))) == ["missing: shards 2/4, 3/4, 4/4"]
    assert describe_missing(list(find_parts(paths))) == []
    stored = read_one(merge(paths[1:], tmp_path / "out"))
    assert (stored.end, stored.run.list_digest) == (None, "whole")


def test_shards_on_several_machines_are_one_set(tmp_path: Path) -> None:
    """Shards may have run on different machines; if a shard ran on two, each machine is meant to have all."""
    other = replace(MACHINE, name="other-cpu")
    paths = write_shards(tmp_path / "in", 2)
    (tmp_path / "b").mkdir()
    last = write_part(tmp_path / "b", make_run("part-9", shard="2/2", machine=other), make_result("part-9", 3))
    assert describe_missing(list(find_parts([paths[0], last]))) == []
    assert describe_missing(list(find_parts([*paths, last]))) == ["missing on other-cpu: shard 1/2"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"suite": "full"}, "different suite: core in "),
        ({"versions": {"attnbench": "0.1.0", "torch": "2.12.0"}}, "different torch: 2.11.0 in "),
        ({"versions": {"attnbench": "0.2.0", "torch": "2.11.0"}}, "different attnbench: 0.1.0 in "),
        ({"commit": "abc"}, "different commit: none in "),
        ({"list_digest": "other"}, "different case list: whole in "),
        ({"implementations": ("flex",)}, "different implementations: torch_mha, sdpa in "),
        ({"sources": {"sdpa": "2"}}, "different versions of sdpa: its source files differ"),
        ({"shard": "1/3"}, "different number of shards: 2 in "),
        ({"shard": "1/2"}, "shard 1/2 is there twice: "),
        ({"shard": ""}, "which has no --shard, with "),
    ],
)
def test_parts_that_do_not_fit_are_refused(fields: dict[str, str], words: str, tmp_path: Path) -> None:
    """Parts of different lists, suites, versions or implementations are refused in one line, and nothing is written."""
    write_part(tmp_path, make_run("part-1", shard="1/2", sources={"sdpa": "1"}))
    write_part(tmp_path, make_run("part-2", **({"shard": "2/2"} | fields)))  # type: ignore[arg-type]
    with pytest.raises(ResultsError) as raised:
        merge([tmp_path], tmp_path / "out")
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_files_that_cannot_be_joined_are_refused(tmp_path: Path) -> None:
    """A file that is no run file, an empty folder, the same file twice, and a file that is there are refused."""
    paths = write_shards(tmp_path / "in")
    wrong, empty = tmp_path / "wrong.jsonl", tmp_path / "empty"
    wrong.write_text("{}\n")
    empty.mkdir()
    with pytest.raises(ResultsError, match="contains no run"):
        merge([wrong], tmp_path / "out")
    with pytest.raises(ResultsError, match="no run file"):
        merge([empty], tmp_path / "out")
    with pytest.raises(ResultsError, match="run part-1 is there twice"):
        merge([paths[0], paths[0]], tmp_path / "out")
    merge(paths, tmp_path / "out")
    with pytest.raises(ResultsError, match="is there already"):
        merge(paths, tmp_path / "out")
