"""Real runs of attnbench on plants (copies of the reference with extra work), counted by their verdicts.

A run of ``attnbench profile`` times the reference and the plants by interleaved calls. One plant needs one more byte of
memory instead of extra work; a run of ``attnbench compare`` has to find this byte.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnbench.analysis.speed_verdict import decide_speed
from attnbench.plugins.registry import display_name
from attnbench.records import run_file
from attnbench.records.types import Timing
from attnbench.words.speed import explain_no_verdict
from research.detection.load import measure_busy_cores, run_competitor
from research.detection.plants import BASE, BYTE, BYTE_SHARE, PATHS
from research.detection.pools import (
    PAUSE_S,
    WINDOW_S,
    Condition,
    Setup,
    list_samples,
    make_header,
    set_child_environment,
)
from research.lines import Lines, StudyError, read

__all__ = ["count_verdicts", "gather_runs", "run_compare", "run_profile"]

# Time-out of a run, in seconds of wall time. It is long, because calls take several times as long while a competing
# process runs.
TIMEOUT_S = 1800.0
# Number of failed runs after which the study ends.
FAILURES = 5
COMMAND = "import sys; from attnbench.cli import main; sys.argv[0] = 'attnbench'; main()"

Record = dict[str, Any]


def gather_runs(
    path: Path,
    condition: Condition,
    setup: Setup,
    *,
    rows: Mapping[str, int],
    shares: Sequence[int],
    runs: int,
    options: Sequence[str] = (),
    resume: bool,
    say: Callable[[str], None] = print,
) -> list[Record]:
    """Make runs until the file has ``runs`` runs of every plant (a copy of the reference with extra work).

    A run measures all plants that have the fewest stored runs. ``PLUS_BYTE`` has runs of its own.

    Raises: StudyError after too many failed runs.
    """
    set_child_environment(rows)
    case = f"length {setup.length}, forward"
    head = make_header(condition, setup, case, rows) | {"kind": "runs", "options": list(options)}
    with Lines.open(path, head, resume=resume) as lines, run_competitor(condition.load) as competitor:
        before = _count_failed(lines)
        while left := [share for share in shares if _count_runs(lines, share) < runs]:
            if _count_failed(lines) - before >= FAILURES:
                reason = lines.records[-1]["reason"]
                raise StudyError(f"{path}: {FAILURES} runs failed; the last failed with: {reason}")
            fewest = min(_count_runs(lines, share) for share in left)
            together = [share for share in left if _count_runs(lines, share) == fewest and share != BYTE_SHARE]
            begin, used_s = time.monotonic(), competitor.read_cpu_s()
            records, processes = _try_run(condition, setup, together or [BYTE_SHARE], options)
            used = round((competitor.read_cpu_s() - used_s) / (time.monotonic() - begin), 2)
            for process in processes:
                lines.add(process | {"competitor": used})
            for record in records:
                lines.add(record)
                result, share = record.get("verdict") or record["reason"], record["share"]
                plant = "one byte" if share == BYTE_SHARE else f"{share} %"
                done = _count_runs(lines, share)
                say(f"{path.name}: run {done} of {runs}, {plant}: {result}, {record['took_s']:.0f} s")
        return [record for record in lines.records if record["kind"] == "run"]


def _try_run(
    condition: Condition, setup: Setup, shares: Sequence[int], options: Sequence[str]
) -> tuple[list[Record], list[Record]]:
    """Make one run; return a record for each copy of the reference and a record for each process of the run.

    If the run failed, the record of each copy has the reason, and the list of records of processes is empty.
    """
    try:
        if shares == [BYTE_SHARE]:
            return [run_compare(condition, setup)], []
        return run_profile(condition, setup, shares, options)
    except (OSError, subprocess.TimeoutExpired) as error:
        time.sleep(PAUSE_S)
        return [{"kind": "failed", "share": share, "reason": str(error), "took_s": 0.0} for share in shares], []


def run_profile(
    condition: Condition, setup: Setup, shares: Sequence[int], options: Sequence[str] = ()
) -> tuple[list[Record], list[Record]]:
    """Run ``attnbench profile`` once, and return one record per plant and one record per process.

    The record of a plant has the speed verdict and the ratio of its time to the reference's. The record of a process
    has the samples of the reference, its A/A control and the plants, in the form in which a pool stores them.
    If the reference or a plant was not timed, the record of each plant has the reason, and there are no records of
    processes.
    """
    with tempfile.TemporaryDirectory(prefix="attnbench-study-") as folder:
        record, last = _run_command(
            folder, condition, setup, ["profile", *(PATHS[share] for share in shares), *options]
        )
        paths = list(Path(folder).glob("*/*.jsonl"))
        timings = {r.implementation: r.timing for r in run_file.read_run(paths[0]).results if r.timing} if paths else {}
    sides = {str(share): timings[name] for share in shares if (name := display_name(PATHS[share])) in timings}
    base = timings.get(BASE)
    if base is None or base.twin is None or len(sides) < len(shares):
        reason = f"exit code {record['exit']}, no speed verdict; last line of output: {last}"
        return [{"kind": "failed", "share": share, "reason": reason} | record for share in shares], []
    records = []
    for share in shares:
        found = decide_speed(sides[str(share)], base)
        reason = explain_no_verdict(found.reason)
        verdict = {"verdict": found.state, "processes": found.of, "counted": found.counted, "reason": reason}
        ratio = [round(x, 5) for x in (found.ratio.low, found.ratio.value, found.ratio.high)] if found.ratio else []
        records.append({"kind": "run", "share": share, "ratio": ratio} | verdict | record)
    return records, [
        one | {"others": record["others"]} for one in _list_processes({BASE: base, "twin": base.twin} | sides)
    ]


def _list_processes(sides: Mapping[str, Timing]) -> Iterator[Record]:
    """Yield a record for each process that timed the reference and all its copies."""
    for number in range(len(sides[BASE].samples_ns)):
        columns = {
            name: list_samples(side, number)
            for name, side in sides.items()
            if number < len(side.samples_ns) and side.samples_ns[number]
        }
        if len(columns) == len(sides):
            yield {"kind": "process", "seed": number, "sides": columns}


def run_compare(condition: Condition, setup: Setup) -> Record:
    """Run ``attnbench compare`` on the copy that needs one more byte; return a record with the memory verdict."""
    with tempfile.TemporaryDirectory(prefix="attnbench-study-") as folder:
        path = Path(folder, "changes.json")
        # Byte counts are exact and need no timing, so one process is enough.
        arguments = ["compare", BASE, BYTE, "--processes", "1", "--json", str(path)]
        record, last = _run_command(folder, condition, setup, arguments)
        changes = json.loads(path.read_text())["changes"] if path.exists() and path.stat().st_size else []
    found = [change for change in changes if change["aspect"] == "peak_bytes"]
    record["share"] = BYTE_SHARE
    if len(found) != 1:
        return record | {
            "kind": "failed",
            "reason": f"exit code {record['exit']}, no verdict on peak_bytes; last line of output: {last}",
        }
    return record | {"kind": "run", "verdict": found[0]["verdict"], "told": found[0]["told"]}


def _run_command(folder: str, condition: Condition, setup: Setup, arguments: Sequence[str]) -> tuple[Record, str]:
    """Run a command of attnbench; return a record of the command, and its last line of output.

    The record has the exit code, the wall time, and the number of cores in use before the command.
    """
    others = measure_busy_cores(WINDOW_S)
    begin = time.monotonic()
    common = ["--lengths", str(setup.length), "--passes", "forward", "--threads", str(condition.threads)]
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments, *common, "--results", folder],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    took_s = round(time.monotonic() - begin, 2)
    last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no output"]
    return {"exit": done.returncode, "took_s": took_s, "others": others}, last[0]


def count_verdicts(folder: Path) -> list[tuple[str, int, dict[str, int], float]]:
    """Count the verdicts of the stored runs, for each condition and each copy of the reference.

    A row is (condition, extra work in percent, number of runs with each verdict, median wall time in seconds).
    """
    rows = []
    names = sorted({path.name.removesuffix(".gz") for path in folder.glob("runs-*.jsonl*")})
    for name in names:
        found = read(folder / name)
        assert found is not None
        head, records = found
        records = [record for record in records if record["kind"] == "run"]
        for share in sorted({record["share"] for record in records}):
            some = [record for record in records if record["share"] == share]
            verdicts = [record["verdict"] for record in some]
            walls = sorted(record["took_s"] for record in some)
            states = {verdict: verdicts.count(verdict) for verdict in dict.fromkeys(verdicts)}
            rows.append(
                (Condition(threads=head["threads"], load=head["load"]).label, share, states, walls[len(walls) // 2])
            )
    return rows


def _count_failed(lines: Lines) -> int:
    return sum(record["kind"] == "failed" for record in lines.records)


def _count_runs(lines: Lines, share: int) -> int:
    return sum(record["kind"] == "run" and record["share"] == share for record in lines.records)
