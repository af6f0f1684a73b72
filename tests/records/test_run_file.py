"""Tests of run files: records are read as they were written, and a damaged line costs only the record on that line."""

import errno
import io
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.analysis.speed_verdict import decide_speed
from attnbench.analysis.stats import choose_measure
from attnbench.cli.recording import Recording
from attnbench.records.outcome_facts import NotConforming
from attnbench.records.run_file import (
    ResultsError,
    RunFile,
    StoredRun,
    find_empty_runs,
    find_runs,
    find_runs_since,
    merge_runs,
    read_run,
)
from attnbench.records.types import (
    PERF,
    SAMPLE_FIELDS,
    SCHEMA,
    Ceiling,
    End,
    Finding,
    Machine,
    Memory,
    Planned,
    Result,
    Resumption,
    Run,
    StoredJob,
    Timing,
)

DATA = Path(__file__).parents[1] / "data"
CASE = "multihead/B2.L5.S7.E24.H3/bias+batch_first/mask=none/regime=plain/seed=0/float32/cpu/eval"
PASSED = Finding(check="forward_parity", status="passed", measured=1e-7, allowed=1e-6)
MACHINE = Machine(name="some-cpu", cpu="Some CPU", cores=4, memory_bytes=2**33)
CONTROL = Timing(samples_ns=((11, 11), (12, 12)), threads=2)
TIMING = Timing(
    samples_ns=((10, 11), (12, 13)), waited_ns=((0, 0), (0, 1)), switches=((0, 0), (1, 0)), threads=2,
    interleaved_with=("torch_mha",), twin=CONTROL, build_ns=(5, 6), first_call_ns=(20, 21),
)  # fmt: skip
ON_DEVICE = Timing(
    samples_ns=((10, 11), (12, 13)), device_ns=((4, 5), (6, 7)), graph_ns=((3, 4), ()), late=((False, True), ()),
    clock_before_mhz=((1980, 1980), (1980, 0)), clock_after_mhz=((1980, 1965), (1980, 1980)),
    throttle_reasons=((0, 4), (1, 0)), threads=1, clock="NVML",
    method="device (CUDA events, cold L2 cache, launch hidden), graph replay and end-to-end wall",
)  # fmt: skip
MEMORY = Memory(
    peak_bytes=1024, saved_bytes=None, workspace_bytes=512, physical_bytes=900_000, outside_bytes=898_976,
    reserved_bytes=2048, threads=2, method="allocator",
)  # fmt: skip
CEILING = Ceiling(
    run="20260101-000000-abcd", device="cpu", dtype="float32", threads=2, flop_per_s=1e11, bytes_per_s=2e10
)

RESUMPTION = Resumption(run="20260101-000000-abcd", time="2026-01-01T02:00:00+00:00")
END = End(run="20260101-000000-abcd", time="2026-01-01T03:00:00+00:00", outcome="finished", exit_code=0)


def make_run(name: str = "20260101-000000-abcd", *, machine: Machine = MACHINE) -> Run:
    """Make the record of a run on a machine."""
    return Run(
        id=name,
        time="2026-01-01T00:00:00+00:00",
        command="attnbench run",
        machine=machine,
        versions={"torch": "2.10.0"},
        threads=2,
    )


def make_result(*, of: str = "20260101-000000-abcd", name: str = "sdpa", finding: Finding = PASSED) -> Result:
    """Make a result without measurements; ``of`` is the id of its run."""
    return Result(run=of, implementation=name, case=CASE, findings=(finding,), flop=1000, suite="quick")


def make_stored_run(*results: Result, of: Run | None = None) -> StoredRun:
    """Make a run and its results as ``read_run`` returns them."""
    return StoredRun(run=of or make_run(), results=results, path=Path("run.jsonl"))


def write_run(folder: Path, *results: Result | End) -> Path:
    """Write a run file with these records, and return its path."""
    with RunFile.create(folder, make_run()) as file:
        for one in results:
            file.append(one)
    return file.path


def test_appended_records_are_read(tmp_path: Path) -> None:
    """Every field of a run and of its results is read as it was written, with the last line of each timing."""
    measured = replace(make_result(name="other"), timing=TIMING, memory=MEMORY, bytes=4096, kernels=("aten::bmm ×2",))
    results = (make_result(), measured)
    path = write_run(tmp_path, *results, measured)
    assert path == tmp_path / "some-cpu" / "20260101-000000-abcd.jsonl"
    lines = {("other", measured.case): 4}
    assert read_run(path) == StoredRun(run=make_run(), results=(*results, measured), path=path, timed_lines=lines)


def test_a_ceiling_is_stored_beside_the_results_of_its_run(tmp_path: Path) -> None:
    """A ceiling is read as it was written; a ceiling with the id of another run is reported and left out."""
    with RunFile.create(tmp_path, make_run()) as file:
        file.append(CEILING)
        file.append(make_result())
        file.append(replace(CEILING, run="second"))
    found = read_run(file.path)
    assert (found.ceilings, found.results) == ((CEILING,), (make_result(),))
    assert found.problems[0].endswith(
        "the record belongs to run 'second', but its file contains run '20260101-000000-abcd'"
    )


def test_a_recording_keeps_the_ceilings_of_its_run(tmp_path: Path) -> None:
    """A ceiling that is added to a recording is in the recording's list, and in the file at once."""
    with RunFile.create(tmp_path, make_run()) as file:
        recorded = Recording(run=make_run(), file=file)
        recorded.add_ceiling(CEILING)
        assert read_run(file.path).ceilings == (CEILING,)
    assert recorded.ceilings == [CEILING]


def test_a_result_is_stored_as_soon_as_it_is_known(tmp_path: Path) -> None:
    """A result can be read from the file as soon as it is appended, before the file is closed."""
    with RunFile.create(tmp_path, make_run()) as file:
        file.append(make_result())
        assert read_run(file.path).results == (make_result(),)


def test_a_run_file_is_never_written_over(tmp_path: Path) -> None:
    """A second run with the same id is refused."""
    write_run(tmp_path)
    with pytest.raises(ResultsError, match=r"^cannot write results to .*: File exists; "):
        RunFile.create(tmp_path, make_run())


def test_a_line_cut_in_its_middle_loses_that_line_only(tmp_path: Path) -> None:
    """If the end of a file is cut off, the lines before the cut line are read, and the cut line is reported."""
    path = write_run(tmp_path, make_result(name="whole"), make_result(name="cut"))
    path.write_bytes(path.read_bytes()[:-40])
    found = read_run(path)
    assert [r.implementation for r in found.results] == ["whole"]
    (problem,) = found.problems
    assert problem.startswith("20260101-000000-abcd.jsonl line 3 cannot be read and is left out: ")


def test_resuming_a_cut_file_keeps_the_new_results(tmp_path: Path) -> None:
    """Resuming a file whose last line is cut adds a line break, so that the next result is on a new line."""
    path = write_run(tmp_path, make_result(name="whole"), make_result(name="cut"))
    path.write_bytes(path.read_bytes()[:-40])
    with RunFile.resume(path) as file:
        file.append(make_result(name="cut"))
    found = read_run(path)
    assert [r.implementation for r in found.results] == ["whole", "cut"]
    assert len(found.problems) == 1


def test_resuming_a_complete_file_adds_no_empty_line(tmp_path: Path) -> None:
    """Resuming adds nothing to a file that ends with a line break."""
    path = write_run(tmp_path, make_result(name="first"))
    with RunFile.resume(path) as file:
        file.append(make_result(name="second"))
    assert path.read_bytes().count(b"\n") == 3
    assert b"\n\n" not in path.read_bytes()


def test_a_file_of_a_newer_schema_is_refused(tmp_path: Path) -> None:
    """A file of a newer schema is refused; the message says to upgrade attnbench."""
    path = write_run(tmp_path)
    path.write_text(path.read_text().replace(f'"schema":{SCHEMA}', '"schema":99'))
    with pytest.raises(
        ResultsError, match=r"newer attnbench \(schema 99\); this version reads schemas up to 8: upgrade attnbench$"
    ):
        read_run(path)


def test_device_timings_are_read_as_they_were_written(tmp_path: Path) -> None:
    """The device fields of a timing are read as they were written, for example device times and clock readings."""
    on_device = replace(make_result(), case=CASE.replace("/cpu/", "/cuda/"), timing=replace(ON_DEVICE, twin=ON_DEVICE))
    found = read_run(write_run(tmp_path, on_device))
    assert found.problems == ()
    assert found.results == (on_device,)


def test_a_run_without_device_timings_is_read() -> None:
    """A run of schema 2 from before device timing has empty device fields, and is compared by wall time."""
    (_, _, base, own) = read_run(DATA / "run-schema-2.jsonl").results
    for one in (base, own):
        assert one.timing is not None
        assert {getattr(one.timing, name) for name in SAMPLE_FIELDS if name not in ("waited_ns", "switches")} == {()}
        assert (one.timing.clock, choose_measure(one.timing)) == ("", "wall")


def test_a_file_of_schema_1_is_read() -> None:
    """A run file that was stored by the first version stays readable."""
    found = read_run(DATA / "run-schema-1.jsonl")
    assert found.problems == ()
    assert (found.run.schema, found.run.machine.name, found.run.suite) == (1, "example-cpu", "quick")
    statuses = [f.status for r in found.results for f in r.findings]
    assert statuses == ["passed", "passed", "unsupported", "passed", "passed"]
    timing, memory = found.results[2].timing, found.results[2].memory
    assert timing is not None
    assert memory is not None
    assert timing.samples_ns == ((41250, 40980, 41105), (42010, 41870, 41900))
    assert (memory.peak_bytes, memory.saved_bytes) == (98304, None)


def test_a_file_of_schema_2_is_read() -> None:
    """A stored file of schema 2 is read: counters, A/A control, first calls, memory, work, kernels and ceilings."""
    found = read_run(DATA / "run-schema-2.jsonl")
    assert found.problems == ()
    assert (found.run.schema, found.run.machine.name) == (2, "example-cpu")
    base, own = found.results[2], found.results[3]
    assert base.timing is not None
    assert own.timing is not None
    assert base.memory is not None
    assert [len(process) for process in base.timing.switches] == [7] * 8
    assert base.timing.twin is not None
    assert base.timing.first_call_ns[0] == 4 * base.timing.samples_ns[0][0]
    verdict = decide_speed(own.timing, base.timing)
    assert (verdict.state, verdict.counted, verdict.control.state if verdict.control else None) == ("faster", 8, "same")
    assert (base.memory.workspace_bytes, base.memory.outside_bytes) == (327_680, 815_104)
    assert (own.flop, own.bytes) == (37_748_736, 1_183_744)
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in own.kernels
    assert [(c.dtype, c.threads) for c in found.ceilings] == [("float32", 2)]


@pytest.mark.parametrize("line", ["not json", '{"record":"other"}', "[1]", '{"record":"result","run":"x"}'])
def test_a_line_that_is_no_record_is_reported_and_left_out(tmp_path: Path, line: str) -> None:
    """A line that is no record does not stop the other lines from being read."""
    path = write_run(tmp_path, make_result())
    with path.open("a") as file:
        file.write(line + "\n")
    found = read_run(path)
    assert len(found.results) == len(found.problems) == 1
    assert "line 3" in found.problems[0]


def test_two_concatenated_files_are_not_one_run(tmp_path: Path) -> None:
    """Of two concatenated run files, the first run is read; the records of the second one are reported and left out."""
    path = write_run(tmp_path, make_result())
    with RunFile.create(tmp_path, make_run("second")) as file:
        file.append(make_result(of="second"))
    path.write_bytes(path.read_bytes() + file.path.read_bytes())
    found = read_run(path)
    assert (found.run, found.results) == (make_run(), (make_result(),))
    assert [problem.split(": ", 1)[1] for problem in found.problems] == [
        "a second run and its results are left out: a run file contains only one run",
        "the record belongs to run 'second', but its file contains run '20260101-000000-abcd'",
    ]


def test_a_result_whose_case_is_no_case_id_is_reported_and_left_out(tmp_path: Path) -> None:
    """A result with a malformed case id is reported and left out, because code that uses results parses the id."""
    path = write_run(tmp_path, replace(make_result(), case="odd"), make_result())
    found = read_run(path)
    assert found.results == (make_result(),)
    reason = (
        "line 2 cannot be read and is left out: a case id has 9 parts "
        "'operator/sizes/flags/mask=…/regime=…/seed=…/dtype/device/mode', got 1: 'odd'"
    )
    assert found.problems == (f"20260101-000000-abcd.jsonl {reason}",)


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    """The message of a failed write is one line; closing the file afterwards does not replace it by another error."""

    class Full(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, _: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    reason = "No space left on device; the records written so far are kept"
    with (
        pytest.raises(ResultsError, match=rf"^cannot write to run\.jsonl: {reason}$"),
        RunFile(Path("run.jsonl"), io.BufferedWriter(Full())) as file,
    ):
        file.append(make_result())


def test_a_file_without_a_run_is_refused(tmp_path: Path) -> None:
    """A file without the record of a run, here an empty file, raises ResultsError."""
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(ResultsError, match="contains no run"):
        read_run(tmp_path / "empty.jsonl")


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    """The message is one line and names the option for another folder, --results."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError) as caught:
        RunFile.create(tmp_path / "file", make_run())
    assert str(caught.value).endswith("; name another folder with --results DIR")
    assert "\n" not in str(caught.value)


def test_the_newest_run_is_found_where_none_is_named(tmp_path: Path) -> None:
    """Without a named run, ``find_runs`` finds the run with the largest id; ids begin with the time.

    Runs without results are skipped and can be listed; files that are no run files are skipped.
    """
    for name, machine in (("20260102-000000-aaaa", "a"), ("20260101-000000-ffff", "b")):
        with RunFile.create(tmp_path, make_run(name, machine=replace(MACHINE, name=machine))) as file:
            file.append(make_result(of=name))
    with RunFile.create(tmp_path, make_run("20260103-000000-0000")):
        pass
    for name, text in (("8x512-2", '{"kind":"header"}\n{}\n'), ("9", "\n\n"), ("91", "no JSON\n\n")):
        (tmp_path / "a" / f"{name}.jsonl").write_text(text)
    (newest,) = find_runs(tmp_path, [])
    assert newest == tmp_path / "a" / "20260102-000000-aaaa.jsonl"
    assert find_empty_runs(tmp_path, newest) == ["20260103-000000-0000"]
    assert find_runs(tmp_path, ["20260101-000000-ffff"]) == [tmp_path / "b" / "20260101-000000-ffff.jsonl"]


def test_runs_since_a_run_are_found_in_the_order_of_their_start(tmp_path: Path) -> None:
    """The run itself comes first, then newer runs of all machines; older runs and runs without results are left out."""
    first = write_run(tmp_path, make_result())
    for machine, day in (("a", "31"), ("some-cpu", "03"), ("b", "02")):
        (tmp_path / machine).mkdir(exist_ok=True)
        shutil.copy(first, tmp_path / machine / f"{'2025' if day == '31' else '2026'}01{day}-000000-abcd.jsonl")
    header = first.read_text().splitlines(keepends=True)[0]
    (tmp_path / "b" / "20260104-000000-abcd.jsonl").write_text(header)
    since = find_runs_since(tmp_path, "20260101-000000-abcd")
    assert [path.stem[:8] for path in since] == ["20260101", "20260102", "20260103"]
    assert find_runs_since(tmp_path, str(since[1]))[1:] == since[2:]
    with pytest.raises(ResultsError, match="did you mean 20260101-000000-abcd"):
        find_runs_since(tmp_path, "20260101-000000-abce")


def test_a_run_is_found_by_its_path(tmp_path: Path) -> None:
    """``find_runs`` accepts the path of a run file in any folder."""
    assert find_runs(tmp_path, [str(DATA / "run-schema-1.jsonl")]) == [DATA / "run-schema-1.jsonl"]


def test_the_message_of_an_unknown_run_suggests_a_similar_id(tmp_path: Path) -> None:
    """For an unknown run id, the message suggests the most similar id."""
    write_run(tmp_path)
    with pytest.raises(
        ResultsError, match=r"^no run '20260101-000000-abce' in .*; did you mean 20260101-000000-abcd\?$"
    ):
        find_runs(tmp_path, ["20260101-000000-abce"])


def test_no_run_at_all_says_how_to_make_one(tmp_path: Path) -> None:
    """The message about an empty folder of results names the command that makes a run."""
    with pytest.raises(ResultsError, match="make one with attnbench run"):
        find_runs(tmp_path, [])


def test_of_two_results_the_later_one_is_kept() -> None:
    """Of two results with the same machine, implementation and case, ``merge_runs`` keeps that of the later run."""
    failed = Finding(check="forward_parity", status="failed", reason="off")
    first, second = make_stored_run(make_result(finding=failed)), make_stored_run(make_result())
    assert merge_runs([first, second]) == [make_result()]
    assert merge_runs([second, first]) == [make_result(finding=failed)]


def test_a_failure_on_a_node_is_not_hidden_by_another_node() -> None:
    """If two nodes ran the same code, a failure is kept in either order; other code or the same node replaces it."""
    failed = Finding(check="forward_parity", status="failed", reason="off")
    runs = {node: replace(make_run(node), node=node, sources={"sdpa": "hash"}) for node in ("a", "b")}
    first = make_stored_run(make_result(of="a", finding=failed), of=runs["a"])
    second = make_stored_run(make_result(of="b"), of=runs["b"])
    assert merge_runs([first, second]) == merge_runs([second, first]) == [*first.results]
    for changed in (replace(runs["b"], sources={"sdpa": "other"}), replace(runs["b"], node="a")):
        assert merge_runs([first, replace(second, run=changed)]) == [*second.results]


def test_results_of_two_machines_are_both_kept() -> None:
    """``merge_runs`` keeps the results of two machines for the same implementation and case."""
    other = make_run("other", machine=replace(MACHINE, name="other-cpu"))
    assert merge_runs([make_stored_run(make_result()), make_stored_run(make_result(of="other"), of=other)]) == [
        make_result(),
        make_result(of="other"),
    ]


def test_measurements_on_different_numbers_of_threads_are_all_kept() -> None:
    """``merge_runs`` keeps two timings on different numbers of threads, but only the later of two conformance results.

    Findings do not depend on the number of threads.
    """
    alone = replace(make_run("alone"), threads=1)
    both = [replace(make_result(of=name), suite=PERF, timing=TIMING) for name in (alone.id, make_run().id)]
    assert merge_runs([make_stored_run(both[0], of=alone), make_stored_run(both[1])]) == both
    assert merge_runs([make_stored_run(make_result(of="alone"), of=alone), make_stored_run(make_result())]) == [
        make_result()
    ]


def test_memory_of_a_probe_and_timing_of_the_same_run_are_joined() -> None:
    """A result with memory and a later one with a timing, of one run and with equal findings, become one result."""
    probe, later = replace(make_result(), memory=MEMORY), replace(make_result(), timing=TIMING)
    assert merge_runs([make_stored_run(probe, later)]) == [replace(make_result(), memory=MEMORY, timing=TIMING)]


def test_two_results_of_a_later_run_replace_a_measured_result() -> None:
    """The two results of a run are joined first; then the later run's measurements replace those of the earlier run."""
    before = make_stored_run(replace(make_result(of="first"), memory=MEMORY, timing=TIMING), of=make_run("first"))
    after = make_stored_run(replace(make_result(), memory=MEMORY), replace(make_result(), timing=TIMING))
    assert merge_runs([before, after]) == [replace(make_result(), memory=MEMORY, timing=TIMING)]


def test_work_and_kernels_of_a_probe_are_kept_where_a_later_result_has_none() -> None:
    """FLOP, bytes and kernels of an earlier result are kept if the later result of the run, with a timing, has none."""
    probe = replace(make_result(), memory=MEMORY, bytes=4096, kernels=("aten::bmm",))
    later = replace(make_result(), flop=None, timing=TIMING)
    assert merge_runs([make_stored_run(probe, later)]) == [replace(probe, timing=TIMING)]


def test_a_timing_is_dropped_where_a_later_check_fails() -> None:
    """If a later result of the run has a failed check, the timing is dropped, and ``untimed`` gives the failure."""
    failed = Finding(check="forward_parity", status="failed", reason="off")
    (one,) = merge_runs([make_stored_run(replace(make_result(), timing=TIMING), make_result(finding=failed))])
    assert one == replace(make_result(finding=failed), untimed=NotConforming(check="forward_parity", status="failed"))


def test_findings_of_two_checks_of_the_same_run_are_joined() -> None:
    """A result keeps findings of checks that a later result of the same run and case does not have.

    A profile runs fewer checks than a conformance run, and must not hide a failure.
    """
    failed = Finding(check="no_stale_state", status="failed", reason="off")
    conformed = replace(make_result(), findings=(PASSED, failed))
    (one,) = merge_runs([make_stored_run(conformed, replace(make_result(), timing=TIMING, memory=MEMORY))])
    assert one.findings == (PASSED, failed)
    assert (one.timing, one.memory, one.untimed) == (None, None, NotConforming(check="no_stale_state", status="failed"))
    passed = replace(failed, status="passed", reason="")
    (one,) = merge_runs(
        [make_stored_run(replace(conformed, findings=(PASSED, passed)), replace(make_result(), timing=TIMING))]
    )
    assert (one.findings, one.timing) == ((PASSED, passed), TIMING)


def test_a_measurement_stays_with_the_run_that_made_it() -> None:
    """A measured result is replaced only by a measured one: a later run without measurements leaves it unchanged."""
    measured = replace(make_result(), timing=TIMING, memory=MEMORY)
    later = make_stored_run(make_result(of="later"), of=make_run("later"))
    assert merge_runs([make_stored_run(measured), later]) == [measured]
    again = replace(make_result(of="later"), timing=TIMING, memory=MEMORY)
    assert merge_runs([make_stored_run(measured), make_stored_run(again, of=make_run("later"))]) == [again]


def test_the_end_of_a_run_is_its_last_record(tmp_path: Path) -> None:
    """An end counts until another line follows; a resumption after a cut line makes up for that line."""
    path = write_run(tmp_path, make_result(name="whole"), END)
    assert (read_run(path).end, read_run(path).lost_lines) == (END, 0)
    with RunFile.resume(path) as file:
        file.append(RESUMPTION)
        file.append(make_result(name="cut"))
    path.write_bytes(path.read_bytes()[:-40])
    cut = read_run(path)
    assert (cut.end, cut.lost_lines, cut.ends_in_line) == (None, 1, True)
    with RunFile.resume(path) as file:
        file.append(RESUMPTION)
        file.append(make_result(name="cut"))
        file.append(END)
    found = read_run(path)
    assert [r.implementation for r in found.results] == ["whole", "cut"]
    assert (found.end, found.lost_lines, found.ends_in_line, len(found.problems)) == (END, 0, False, 1)


def test_a_file_that_lacks_only_its_last_line_break_lacks_nothing(tmp_path: Path) -> None:
    """A last line without a line break is read if it is complete."""
    path = write_run(tmp_path, make_result(), END)
    path.write_bytes(path.read_bytes()[:-1])
    found = read_run(path)
    assert (found.end, found.lost_lines, found.ends_in_line, len(found.results)) == (END, 0, False, 1)


def test_a_run_has_what_was_planned(tmp_path: Path) -> None:
    """What was planned for each implementation is read as it was written."""
    run = replace(make_run(), job=StoredJob(planned={"sdpa": Planned(cases=30, timed=6)}))
    with RunFile.create(tmp_path, run) as file:
        pass
    assert read_run(file.path).run == run


@pytest.mark.parametrize("schema", [3, 4, 5, 6, 7])
def test_a_stored_run_of_this_schema_is_read(schema: int) -> None:
    """A run that attnbench wrote with this schema is read without a problem."""
    found = read_run(DATA / f"run-schema-{schema}.jsonl")
    assert (found.run.schema, found.problems, len(found.results)) == (
        schema,
        (),
        {3: 4, 4: 5, 5: 4, 6: 8, 7: 8}[schema],
    )
    assert (found.end is not None, bool(found.run.planned)) == (schema >= 4, schema >= 4)
