"""What the gate, asv and the history say of thirty commits: ``python -m research.story --help``.

The commits have three regressions in time and memory, two faults, a repair of each, and one improvement; the others
change nothing. Each is compared with the commit before it.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from attnbench.records.environment import describe_machine
from attnhistory.points import RATIO
from research.lines import Lines, StudyError, read
from research.story.commits import STORY, Repository, make_repository
from research.story.gates import TOLD, Shard, check_part, expect_verdicts, run_gate
from research.story.histories import find_moves, find_steps, measure_commits, prepare, publish

__all__ = ["main"]

DATA = Path(__file__).parents[1] / "data" / "story"
GATES, STEPS, TABLE = "gates.jsonl", "steps.json", "README.md"
# Folder of asv: its configuration, its results, whose names have the path of Python, and its page. Git ignores it.
WORK = Path("reports") / "story"
# Name of the implementation in asv's results.
IN_ASV = "mine:MyAttention"
PARTS = ("gate", "asv")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen parts on all commits, and write the table of what is stored."""
    options = _make_parser().parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="story-") as made:
            repository, commits = make_repository(Path(made) / "repository", STORY)
            if "gate" in options.parts:
                run_gates(options.data / GATES, repository, commits, options)
            if "asv" in options.parts:
                run_asv(options.work, repository, commits, options)
    except StudyError as error:
        print(error, file=sys.stderr)
        return 1
    text = format_table(options.data, commits)
    (options.data / TABLE).write_text(text, encoding="utf-8")
    print(text)
    return 0


def run_gates(path: Path, repository: Repository, commits: Sequence[str], options: argparse.Namespace) -> None:
    """Gate each commit that has no record, and store what the gate said.

    Raises: StudyError if the file exists and ``--resume`` is not given, or if it has gates of other options.
    """
    header = {
        "kind": "header", "fail_on": options.fail_on, "part_of_core": options.shard, "last": commits[-1],
        "machine": describe_machine().cpu,
    }  # fmt: skip
    with Lines.open(path, header, resume=options.resume) as lines, check_part(options.shard):
        done = {record["commit"] for record in lines.records}
        for number, (base, commit) in enumerate(pairwise(commits), start=2):
            if commit in done or (options.commits and number not in options.commits):
                continue
            repository.check_out(commit)
            found = run_gate(repository, base, ["--fail-on", options.fail_on])
            told = sorted(TOLD & {one["verdict"] for one in found["changes"]})
            lines.add({
                "kind": "gate", "commit": commit, "number": number, "told": told,
                **{name: found[name] for name in ("outcome", "worse", "mended", "undecided", "untimed", "kept")},
            })  # fmt: skip
            print(f"gate {number} of {len(commits)}: {found['outcome']} {' '.join(told)}", flush=True)


def run_asv(folder: Path, repository: Repository, commits: Sequence[str], options: argparse.Namespace) -> None:
    """Measure each commit that asv has no results of, make its page, and store what moved at each commit.

    Raises: StudyError where asv fails.
    """
    prepare(folder, repository, processes=options.processes, budget_s=options.budget)
    measure_commits(folder, repository, commits)
    moves = find_moves(publish(folder, repository))
    steps = find_steps([folder / "results"], IN_ASV)
    stored = {
        "processes": options.processes,
        "budget_s": options.budget,
        "peaks_of_the_page": [commits[one] for one in moves],
        "moved": {commit: sorted(steps.get(commit, ())) for commit in commits},
    }
    (options.data / STEPS).write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


def format_table(data: Path, commits: Sequence[str]) -> str:
    """Return the page: a row for each commit, with what was expected and told."""
    stored = read(data / GATES)
    header, records = stored or ({}, [])
    gates = {record["commit"]: record for record in records}
    steps = json.loads((data / STEPS).read_text(encoding="utf-8")) if (data / STEPS).exists() else None
    fail_on = str(header.get("fail_on", "")).split(",")
    rows, missed = [], 0
    for number, (commit, planted) in enumerate(zip(commits, STORY, strict=True), start=1):
        found = gates.get(commit)
        told = "" if found is None else " ".join(found["told"]) or "holds"
        moved = set(steps["moved"][commit]) if steps else None
        expected = " ".join(expect_verdicts(planted, fail_on)) or "holds"
        # Ratios of times depend on other work.
        missed += found is not None and told != expected
        missed += moved is not None and moved - {RATIO} != planted.history
        shown = "" if steps is None else "yes" if commit in steps["peaks_of_the_page"] else ""
        wanted, what_moved = expected if found else "", " ".join(sorted(moved or ()))
        cells = (number, commit[:8], planted.subject, wanted, told, what_moved, shown)
        rows.append(f"| {' | '.join(map(str, cells))} |")
    first, parts = header.get("part_of_core") or (1, 1)
    part = f"part {first} of {parts} of `core`" if parts > 1 else "all of `core`"
    what = f"`--fail-on {header['fail_on']}`, checks on {part}" if header else "not run"
    measured = f"{steps['processes']} processes of {steps['budget_s']} s" if steps else "not run yet"
    return "\n".join([
        "# Thirty commits", "",
        "Made by `python -m research.story`. asv: "
        f"{measured}. Gates: {what}; {len(gates)} of {len(commits) - 1} were run.",
        f"Verdicts and steps that differ from what was expected, without ratios of times: {missed}.", "",
        "| | commit | what | expected of the gate | told | moved, by the history | peak on asv's page |",
        "|---|---|---|---|---|---|---|", *rows, "",
    ])  # fmt: skip


def _read_shard(word: str) -> Shard:
    first, _, parts = word.partition("/")
    if not (first.isdecimal() and parts.isdecimal() and 0 < int(first) <= int(parts)):
        raise argparse.ArgumentTypeError(f"must be a number of so many parts, such as 1/40, got {word!r}")
    return int(first), int(parts)


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m research.story", description=__doc__.partition(":")[0])
    parser.add_argument("parts", nargs="*", choices=PARTS, default=PARTS, help="what to run; default: both")
    parser.add_argument("--fail-on", default="wrong,slower,bigger", help="what gates fail on; default: %(default)s")
    parser.add_argument("--shard", type=_read_shard, help="part of core, such as 1/40; default: the whole suite")
    parser.add_argument(
        "--commits", type=int, nargs="+", choices=range(2, len(STORY) + 1), metavar="NUMBER",
        help="numbers of the commits to gate; default: all",
    )  # fmt: skip
    parser.add_argument("--processes", type=int, default=7, help="timing processes of asv; default: %(default)s")
    parser.add_argument("--budget", type=float, default=0.2, help="seconds of timed calls; default: %(default)s")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the data")
    parser.add_argument("--work", type=Path, default=WORK, help="folder of asv; default: %(default)s")
    parser.add_argument("--resume", action="store_true", help="continue with the gates that are not stored")
    return parser


if __name__ == "__main__":
    sys.exit(main())
