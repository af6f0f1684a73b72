"""Real runs of ``attnbench compare`` against planted copies, each counted by what it said."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from studies.lines import Lines, StudyError, read
from studies.load import beside, busy_cores
from studies.plants import BASE, BYTE, BYTE_SHARE, NAMES
from studies.pools import LOOK_S, PAUSE_S, Condition, Setup, header, tell_children

__all__ = ["compared", "counted", "run"]

# Wall time beyond which a run is taken to hang, in seconds: beside a competitor, calls take several times as long.
TIMEOUT_S = 1800.0
FAILURES = 5
COMMAND = "import sys; from attnbench.cli import main; sys.argv[0] = 'attnbench'; main()"

Record = dict[str, Any]


def run(
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
    """Compare until the file holds so many runs of every plant; the plants take turns.

    Raises: StudyError where runs fail again and again.
    """
    tell_children(rows)
    case = f"length {setup.length}, forward"
    head = header(condition, setup, case, rows) | {"kind": "runs", "options": list(options)}
    with Lines.opened(path, head, resume=resume) as lines, beside(condition.load):
        before = _failed(lines)
        while left := [share for share in shares if _count(lines, share) < runs]:
            if _failed(lines) - before >= FAILURES:
                raise StudyError(f"{path}: {FAILURES} runs failed, the last time: {lines.held[-1]['reason']}")
            share = min(left, key=lambda one: _count(lines, one))
            record = _tried(condition, setup, share, options)
            lines.add(record)
            said = record.get("verdict") or record["reason"]
            plant = "one byte" if share == BYTE_SHARE else f"{share} %"
            say(f"{path.name}: run {_count(lines, share)} of {runs}, {plant}: {said}, {record['took_s']:.0f} s")
        return [record for record in lines.held if record["kind"] == "run"]


def _tried(condition: Condition, setup: Setup, share: int, options: Sequence[str]) -> Record:
    """One run, or why there is none."""
    try:
        return compared(condition, setup, share, options)
    except (OSError, subprocess.TimeoutExpired) as error:
        time.sleep(PAUSE_S)
        return {"kind": "failed", "share": share, "reason": str(error), "took_s": 0.0}


def compared(condition: Condition, setup: Setup, share: int, options: Sequence[str] = ()) -> Record:
    """One run of ``attnbench compare``: its verdict on what was planted, and all that it told of it."""
    aspect, new = ("peak_bytes", BYTE) if share == BYTE_SHARE else ("time", NAMES[share])
    others = busy_cores(LOOK_S)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="attnbench-study-") as folder:
        told = Path(folder, "told.json")
        asked = ["compare", BASE, new, "--lengths", str(setup.length), "--passes", "forward"]
        asked += ["--threads", str(condition.threads), "--results", folder, "--json", str(told)]
        # Bytes are exact and counted before anything is timed: one process is enough.
        asked += ["--processes", "1"] if share == BYTE_SHARE else options
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, *asked], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        changes = json.loads(told.read_text())["changes"] if told.exists() and told.stat().st_size else []
    record: Record = {
        "share": share, "exit": done.returncode, "took_s": round(time.monotonic() - begin, 2), "others": others
    }  # fmt: skip
    found = [change for change in changes if change["aspect"] == aspect]
    if len(found) != 1:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["it said nothing"]
        return record | {"kind": "failed", "reason": f"exit code {done.returncode}, no verdict on {aspect}: {last[0]}"}
    return record | {"kind": "run", "verdict": found[0]["verdict"], "told": found[0]["told"]}


def counted(folder: Path) -> list[tuple[str, int, dict[str, int], float]]:
    """Condition, plant, number of runs by verdict, and median wall time in seconds, of all files of runs."""
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
                (Condition(threads=head["threads"], load=head["load"]).told, share, states, walls[len(walls) // 2])
            )
    return rows


def _failed(lines: Lines) -> int:
    return sum(record["kind"] == "failed" for record in lines.held)


def _count(lines: Lines, share: int) -> int:
    return sum(record["kind"] == "run" and record["share"] == share for record in lines.held)
