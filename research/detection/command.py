"""How well a slowdown is found, and how rarely one is seen where there is none: ``python -m research.detection --help``.

``plants`` measures how much work makes a copy of the reference slower by the wanted share, and how much longer the
copies truly take. ``runs`` are real runs of the command, in which the reference, its twin and the copies take turns;
their processes are the pool from which ``judge`` draws comparisons, for our rule and for those of other tools.
``agreement`` holds our median against that of torch's own timer. Everything is stored as it is measured; the same
command with ``--resume`` goes on where it was left.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attnbench.analysis.speed_verdict import EFFECT
from research.detection.agreement import measure_agreement, format_agreement
from research.detection.comparisons import DrawSettings, Evaluation, evaluate_rules
from research.detection.load import LOADS
from research.detection.plants import BYTE_SHARE, SHARES
from research.detection.pools import Condition, Setup, calibrate_rows, gather_pool, read_pool
from research.detection.runs import count_verdicts, gather_runs
from research.detection.presentation import draw_figure, format_runs_table, format_table
from research.detection.starts import read_costs_s, measure_starts
from research.lines import StudyError

# What is to be kept here is packed with gzip.
DATA = Path(__file__).parents[1] / "data" / "detection"
# A length at which a call takes some milliseconds: long enough for a percent to be more than a clock's and a call's
# own cost, short enough for many calls.
LENGTH = 512
# Seconds that all sides share in a process in which the plants are measured.
BUDGET_S = 1.25
TRUE_PROCESSES, RUNS, AGREEMENT_PROCESSES, STARTED, DRAWS = 40, 30, 20, 10, 2000
# Wall time of a comparison in seconds and its processes, at one thread and at more, as the goals of the harness say;
# and how many processes a run may come to.
SECONDS, COMPARED, MOST = (15.0, 30.0), (10, 20), 30
# How much a real run measures: as long for each of three comparisons as compare does for one.
SUITE = "full"


def main(arguments: Sequence[str] | None = None) -> int:
    """Do one part of the study."""
    asked = _make_parser().parse_args(arguments)
    try:
        asked.do(asked)
    except StudyError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("what was measured is stored; the same command with --resume goes on", file=sys.stderr)
        return 130
    return 0


def _list_conditions(asked: Any) -> list[Condition]:
    return [Condition(threads=threads, load=load) for threads in asked.threads for load in asked.loads]


def _do_plants(asked: Any) -> None:
    setup = Setup(length=asked.length, budget_s=asked.budget)
    for threads in asked.threads:
        quiet = Condition(threads=threads, load=LOADS[0])
        rows = calibrate_rows(asked.data, threads, setup, resume=asked.resume, say=_say)
        path = asked.data / f"true-{threads}.jsonl"
        gather_pool(path, quiet, setup, rows=rows, processes=asked.processes, resume=asked.resume, say=_say)
        measure_starts(asked.data / f"starts-{threads}.jsonl", quiet, setup, rounds=STARTED, resume=asked.resume)


def _do_judge(asked: Any) -> None:
    wanted = DrawSettings(
        seconds=_map_threads(asked.threads, asked.seconds),
        processes=_map_threads(asked.threads, asked.processes),
        most=asked.most,
        draws=asked.draws,
        effect=asked.effect,
    )
    found: list[Evaluation] = []
    for condition in _list_conditions(asked):
        pool = read_pool(asked.data / f"runs-{condition}.jsonl")
        if pool is None or not pool.processes:
            _say(f"no runs of {condition} in {asked.data}")
            continue
        threads = condition.threads
        starts_s = read_costs_s(asked.data / f"starts-{threads}.jsonl")
        if starts_s is None:
            raise StudyError(f"{asked.data} does not say what a process costs to start: measure it with plants")
        truth = read_pool(asked.data / f"true-{threads}.jsonl")
        found.append(evaluate_rules(condition.label, pool, truth, wanted, starts_s=starts_s))
        _say(f"judged {condition}")
    if not found:
        raise StudyError(f"no runs in {asked.data}; measure them with: python -m research.detection runs")
    runs = count_verdicts(asked.data)
    parts = [format_table(found), format_runs_table(runs) if runs else "", format_agreement(asked.data)]
    asked.data.mkdir(parents=True, exist_ok=True)
    (asked.data / "detection.md").write_text("\n\n".join(part for part in parts if part) + "\n")
    (asked.data / "detection.json").write_text(json.dumps([asdict(one) for one in found], indent=1))
    for ending in ("svg", "png"):
        draw_figure(found, asked.data / f"detection.{ending}")
    print((asked.data / "detection.md").read_text())


def _do_runs(asked: Any) -> None:
    setup = Setup(length=asked.length, budget_s=0.0)
    for condition in _list_conditions(asked):
        path = asked.data / f"rows-{condition.threads}.json"
        if not path.exists():
            raise StudyError(
                f"{path} is missing: how much is to be planted is measured by: python -m research.detection plants"
            )
        options = ["--suite", asked.suite, *(["--processes", str(asked.processes)] if asked.processes else [])]
        shares = asked.shares or SHARES
        if not asked.shares and (condition.threads, condition.load) == (1, LOADS[0]):
            shares = (*shares, BYTE_SHARE)  # exact, whatever else the machine does
        gather_runs(
            asked.data / f"runs-{condition}.jsonl",
            condition,
            setup,
            rows=json.loads(path.read_text()),
            shares=shares,
            runs=asked.runs,
            options=options,
            resume=asked.resume,
            say=_say,
        )
    print(format_runs_table(count_verdicts(asked.data)))


def _do_agreement(asked: Any) -> None:
    setup = Setup(length=asked.length, budget_s=0.0)
    for threads in asked.threads:
        path = asked.data / f"agreement-{threads}.jsonl"
        measure_agreement(path, threads, setup, processes=asked.processes, resume=asked.resume)
    print(format_agreement(asked.data))


def _map_threads(threads: Sequence[int], values: Sequence[Any]) -> dict[int, Any]:
    return {count: values[0] if count == 1 else values[-1] for count in threads}


def _say(text: str) -> None:
    print(text, flush=True)


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m research.detection", description=__doc__.partition("\n")[0])
    parts = parser.add_subparsers(required=True)
    plants = _add_command(parts, "plants", _do_plants, "how much is to be planted, and how much longer that truly takes")
    plants.add_argument("--processes", type=int, default=TRUE_PROCESSES, help="processes for a plant's true size")
    plants.add_argument("--budget", type=float, default=BUDGET_S, help="seconds of each process")
    judge = _add_command(parts, "judge", _do_judge, "draw comparisons from the runs' processes and judge them")
    judge.add_argument("--draws", type=int, default=DRAWS, help="comparisons of each rule and plant")
    judge.add_argument("--seconds", type=_parse_floats, default=SECONDS, help="of a comparison, at one thread and at more")
    judge.add_argument("--processes", type=_parse_integers, default=COMPARED, help="of ours, at one thread and at more")
    judge.add_argument("--most", type=int, default=MOST, help="processes of ours where it is undecided")
    judge.add_argument("--effect", type=float, default=EFFECT, help="relative difference that counts")
    runs = _add_command(parts, "runs", _do_runs, "real runs of attnbench")
    runs.add_argument("--runs", type=int, default=RUNS, help="of each condition and plant")
    runs.add_argument("--processes", type=int, help="as the command's own option")
    runs.add_argument("--suite", default=SUITE, help="as the command's own option: how much is measured")
    runs.add_argument(
        "--shares", type=_parse_integers, help=f"plants in percent, of {', '.join(map(str, SHARES))}; {BYTE_SHARE}: a byte"
    )
    agreement = _add_command(parts, "agreement", _do_agreement, "our median and that of torch's timer")
    agreement.add_argument("--processes", type=int, default=AGREEMENT_PROCESSES)
    return parser


def _add_command(parts: Any, name: str, do: Any, told: str) -> argparse.ArgumentParser:
    part: argparse.ArgumentParser = parts.add_parser(name, help=told, description=told)
    part.set_defaults(do=do)
    part.add_argument("--data", type=Path, default=DATA, help="folder of the raw data")
    part.add_argument("--resume", action="store_true", help="go on with what is there")
    part.add_argument("--threads", type=_parse_integers, default=(1, 2))
    part.add_argument("--loads", type=lambda text: tuple(text.split(",")), default=LOADS, help="quiet, busy or both")
    part.add_argument("--length", type=int, default=LENGTH, help="sequence length of the case")
    return part


def _parse_integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _parse_floats(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))
