"""Tests of samples that are stored process by process: readers join them, wherever the file ends."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.analysis.exclusions import exclude_implausible
from attnbench.api.recording import Recording
from attnbench.records.compact_reading import PART, FiledTiming, load_samples, read_compactly
from attnbench.records.joined_file import join_parts
from attnbench.records.outcome_facts import EndedProcesses
from attnbench.records.parts import find_parts, group_parts
from attnbench.records.run_file import ResultsError, RunFile, StoredRun, merge_runs, read_run
from attnbench.records.types import PERF, End, Machine, Planned, Result, Resumption, Run, Samples, StoredJob, Timing
from timed_runs import PASSED, case_of

NAMES = ("sdpa", "other")
MACHINE = Machine(name="some-cpu", cpu="Some CPU", cores=4, memory_bytes=2**33)
RUN = Run(
    id="20260101-000000-abcd", time="2026-01-01T00:00:00+00:00", command="attnbench profile sdpa other",
    machine=MACHINE, versions={}, threads=1, suite=PERF, implementations=NAMES,
    job=StoredJob(command="profile", planned=dict.fromkeys(NAMES, Planned(cases=0, timed=1, processes=4))),
)  # fmt: skip
END = End(run=RUN.id, time=RUN.time, outcome="finished", exit_code=0)


def make_timing(processes: int, *, name: str = "sdpa", seed: int = 0) -> Timing:
    """Make a timing whose samples are all different; that of ``sdpa`` has an A/A control."""
    columns = tuple(tuple(1000 * seed + 100 * number + call + 1 for call in range(3)) for number in range(processes))
    cycles = ((0, 1, 2),) * processes
    twin = Timing(samples_ns=columns, cycles=cycles, threads=1) if name == "sdpa" else None
    return Timing(
        samples_ns=columns, cycles=cycles, threads=1, twin=twin, judged=processes, values="fresh", trainable=True,
        build_ns=tuple(range(processes)), first_call_ns=tuple(range(processes)),
        interleaved_with=tuple(one for one in NAMES if one != name),
    )  # fmt: skip


def make_result(name: str = "sdpa", timing: Timing | None = None) -> Result:
    """Make the result of a timed call."""
    return Result(
        run=RUN.id, implementation=name, case=case_of(), findings=(PASSED,), timing=timing, flop=9, suite=PERF
    )


EXCLUDED = replace(make_result("other"), untimed=EndedProcesses(count=3))


def list_results(processes: int, *, excluded: bool = False) -> Iterator[Result]:
    """Yield what a profile records: both results after their probe, then after each process."""
    yield from (make_result(name) for name in NAMES)
    for number in range(1, processes + 1):
        if excluded and number == processes:
            yield EXCLUDED
        own = NAMES[:1] if excluded and number == processes else NAMES
        yield from (make_result(name, make_timing(number, name=name)) for name in own)


def write(folder: Path, results: Sequence[Result], *ends: End) -> Path:
    """Record results in a run file, and return its path."""
    with RunFile.create(folder, RUN) as file:
        recorded = Recording(run=RUN, file=file)
        for result in results:
            recorded.add(result)
        for one in ends:
            file.append(one)
        return file.path


def find_timings(stored: StoredRun) -> dict[str, Timing | None]:
    """Return the timing of each implementation with all its fields, as a report sees it."""
    (cleaned,), _ = exclude_implausible([stored])
    return {one.implementation: one.timing and load_samples(one.timing) for one in merge_runs([cleaned])}


@pytest.mark.parametrize("stored", [1, 2, 3])
def test_a_timing_is_what_was_stored_and_what_is_new(stored: int) -> None:
    """Joined to the processes before it, the new part of a timing gives the whole one."""
    whole, before = make_timing(4), make_timing(stored)
    first, new = whole.select_new(before)
    assert (first, new.processes) == (stored, 4 - stored)
    assert before.join(new, first) == whole


def test_samples_of_other_processes_replace_a_timing() -> None:
    """A timing that does not begin with the stored samples is stored whole."""
    whole, other = make_timing(3), make_timing(2, seed=1)
    assert whole.select_new(other) == whole.select_new(None) == (0, whole)
    assert other.join(whole, 0) == whole


def test_samples_are_stored_once(tmp_path: Path) -> None:
    """A line has the samples of one process, and no findings; readers see one timing for each call."""
    path = write(tmp_path, list(list_results(4)), END)
    kinds = [line.split(b'"')[3] for line in path.read_bytes().splitlines()]
    assert kinds == [b"run", b"result", b"result", *[b"samples"] * 8, b"end"]
    assert path.read_bytes().count(b'"findings"') == 2
    stored = read_run(path)
    assert (stored.problems, len(stored.results)) == ((), 2)
    assert find_timings(stored) == {name: make_timing(4, name=name) for name in NAMES}
    assert stored.timed_lines == {("sdpa", case_of()): 10, ("other", case_of()): 11}


def test_samples_stay_in_the_file_of_a_compact_run(tmp_path: Path) -> None:
    """Each timing has the places of its lines, and reads them when they are used."""
    path = write(tmp_path, list(list_results(4)), END)
    whole, compact = read_run(path), read_compactly(path)
    for own, other in zip(compact.results, whole.results, strict=True):
        assert isinstance(own.timing, FiledTiming)
        assert other.timing is not None
        assert (len(own.timing.parts), own.timing.processes) == (4 * PART.size, 4)
        assert load_samples(own.timing) == other.timing
    assert compact.timed_lines == whole.timed_lines


@pytest.mark.parametrize("read", [read_run, read_compactly])
def test_a_file_that_is_cut_at_any_byte_is_read(tmp_path: Path, read: object) -> None:
    """Both implementations have the same processes, and an excluded one has no time once its exclusion is stored."""
    assert callable(read)
    path = write(tmp_path, list(list_results(3, excluded=True)), END)
    content = path.read_bytes()
    exclusion = content.index(b'"type":"EndedProcesses"')
    excluded = content.index(b"\n", exclusion)
    seen = set()
    for end in range(0, len(content) + 1, 7):
        path.write_bytes(content[:end])
        if end < content.index(b"\n"):
            with pytest.raises(ResultsError):
                read(path)
            continue
        stored = read(path)
        found = find_timings(stored)
        timings = {name: one for name, one in found.items() if one is not None}
        assert end < excluded or "other" not in timings
        assert len({timing.processes for timing in timings.values()}) <= 1
        for name, timing in timings.items():
            whole = make_timing(3, name=name)
            assert all(own in ((), all_) for own, all_ in zip(timing.samples_ns, whole.samples_ns, strict=False))
        seen.add((len(timings), next((one.processes for one in timings.values()), 0)))
    assert seen == {(0, 0), (1, 1), (2, 1), (2, 2), (1, 2), (1, 3)}


def test_a_run_goes_on_wherever_it_was_cut(tmp_path: Path) -> None:
    """After a resumption, the samples that were lost are empty, and the later ones have their own processes."""
    path = write(tmp_path, list(list_results(2)))
    content = path.read_bytes()
    ends = [place + 1 for place, byte in enumerate(content) if byte == ord("\n")]
    for end in [*ends[2:], *(place - 20 for place in ends[3:])]:
        path.write_bytes(content[:end])
        before = read_run(path)
        results = {(one.implementation, one.case): one for one in before.results}
        with RunFile.resume(path) as file:
            file.append(Resumption(run=RUN.id, time=RUN.time))
            recorded = Recording(run=RUN, file=file, results=dict(results))
            stored = next((one.timing for one in before.results if one.timing), None)
            done = stored.processes if stored else 0
            alone = sum(one.timing is not None for one in before.results) == 1
            for name in NAMES:
                own = make_timing(4, name=name)
                timing = results["other" if name == "other" else "sdpa", case_of()].timing
                if timing is not None and not alone:
                    # The runner continues the processes that are stored, also an empty one.
                    rest = own.select_new(make_timing(done, name=name))[1]
                    own = timing.join(rest, done)
                recorded.add(make_result(name, own))
            file.append(END)
        after = read_run(path)
        assert after.lost_lines == 0
        for name, found in find_timings(after).items():
            assert found is not None
            assert found.processes == 4
            whole = make_timing(4, name=name).samples_ns
            assert all(own in ((), all_) for own, all_ in zip(found.samples_ns, whole, strict=True))
            assert sum(own == () for own in found.samples_ns) <= 1


@pytest.mark.parametrize("outcome", ["interrupted", "error"])
def test_an_interrupt_between_two_lines_of_a_process_loses_one_sample_list(tmp_path: Path, outcome: str) -> None:
    """The process counts for both implementations: the one that lacks its samples has an empty process."""
    results = list(list_results(2))[:-1]
    path = write(tmp_path, results, replace(END, outcome=outcome))  # type: ignore[arg-type]
    found = find_timings(read_run(path))
    assert found["sdpa"] == make_timing(2)
    assert found["other"] is not None
    assert found["other"].samples_ns == (*make_timing(1).samples_ns, ())


@pytest.mark.parametrize("read", [read_run, read_compactly])
@pytest.mark.parametrize("lost", range(3, 9))
def test_a_line_that_cannot_be_read_moves_no_process(tmp_path: Path, lost: int, read: object) -> None:
    """Samples of one process are never taken for those of another one."""
    assert callable(read)
    path = write(tmp_path, list(list_results(3)), END)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join((*lines[:lost], b"?\n", *lines[lost + 1 :])))
    stored = read(path)
    assert len(stored.problems) == 1
    for name, timing in find_timings(stored).items():
        assert timing is not None
        whole = make_timing(3, name=name).samples_ns
        assert all(own in ((), all_) for own, all_ in zip(timing.samples_ns, whole, strict=False))


def test_samples_without_a_result_that_may_be_timed_are_left_out(tmp_path: Path) -> None:
    """Samples belong to a result of the run that passed, and that no later record excludes."""
    samples = Samples(run=RUN.id, implementation="other", case=case_of(), first=0, timing=make_timing(1))
    failed = replace(make_result("other"), findings=(replace(PASSED, status="failed", reason="off"),))
    for before in ([], [failed], [make_result("other"), EXCLUDED]):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        with RunFile.create(tmp_path, RUN, path) as file:
            for one in (*before, samples):
                file.append(one)
        stored = read_run(path)
        assert all(one.timing is None for one in merge_runs([stored]))
        assert len(stored.problems) == 1


def test_merged_parts_keep_the_samples(tmp_path: Path) -> None:
    """The lines of samples are copied with those of their results."""
    (tmp_path / "in").mkdir()
    path = write(tmp_path / "in", list(list_results(3, excluded=True)), END)
    (made,) = join_parts(group_parts(list(find_parts([path]))), tmp_path / "out")
    assert (made.results, made.problems) == (3, [])
    assert find_timings(read_run(made.path)) == find_timings(read_run(path)) == {"sdpa": make_timing(3), "other": None}
