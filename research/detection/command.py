"""How often attnbench finds real slowdowns and reports false ones: ``python -m research.detection --help``.

A plant is a copy of the reference that does extra work in every call. The study has seven commands:

- ``plants`` finds how much extra work makes a copy 2 or 3 % slower, and measures the true slowdown of each plant.
- ``runs`` makes real runs of attnbench on the reference and the plants, and stores the samples of their processes.
- ``judge`` makes comparisons from randomly drawn sets of stored processes. The rule of the harness and the rules of
  other tools decide each comparison.
- ``regret`` draws answers to "what to use" from the stored processes, and counts how often the told bound is too small.
- ``gates`` makes real runs of ``attnbench gate`` on a change without effect, and stores the samples of their processes.
- ``gate`` draws gates from these processes, with slowdowns planted; the rules of other tools decide the same cases.
- ``agreement`` times the same call with the harness and with torch's own timer, and compares the medians.

Every measurement is stored immediately. With ``--resume``, an interrupted command continues.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attnbench.analysis.speed_verdict import EFFECT
from research.detection.agreement import format_agreement, measure_agreement
from research.detection.comparisons import DrawSettings, Evaluation, evaluate_rules
from research.detection.gate_draws import GateTally, count_gates, evaluate_gates, format_gate_table, read_gates
from research.detection.gate_runs import gather_gates
from research.detection.load import LOADS
from research.detection.plants import BYTE_SHARE, SHARES
from research.detection.pools import Condition, Setup, calibrate_rows, gather_pool, read_pool
from research.detection.presentation import draw_figure, format_runs_table, format_table
from research.detection.regret import evaluate_regret, format_regret_table
from research.detection.runs import count_verdicts, gather_runs
from research.detection.starts import measure_starts, read_start_times_s
from research.lines import StudyError

# Default folder of the raw data. Its files in the repository are compressed with gzip.
DATA = Path(__file__).parents[1] / "data" / "detection"
# Default sequence length. At this length, a call takes some milliseconds. 1 % of this time exceeds the overhead of the
# clock and of a Python call, and a process still has time for many calls.
LENGTH = 512
# Default seconds of timed calls per process of the command ``plants``. The calls of the reference and of all its copies
# share these seconds.
BUDGET_S = 1.25
# Default numbers. TRUE_PROCESSES: processes that measure the true slowdowns. RUNS: runs of each plant and condition.
# AGREEMENT_PROCESSES: processes of the command ``agreement``. DRAWS: comparisons for each rule and each plant. STARTED
# has no option: it is the number of rounds that measure the start of processes.
TRUE_PROCESSES, RUNS, AGREEMENT_PROCESSES, STARTED, DRAWS = 40, 30, 20, 10, 2000
# GATES: gates of each condition. START_S: seconds to start a process that imports torch, measured beside the gates.
GATES, START_S = 15, 2.0
# SECONDS: default wall seconds of a comparison. COMPARED: default number of processes with which a comparison by
# attnbench starts. Each of these two has a value for one thread and a value for several threads. MOST: default largest
# number of processes of a comparison; processes are added while the verdict is ``unknown``.
SECONDS, COMPARED, MOST = (15.0, 30.0), (10, 20), 30
# Default value of the option ``--suite`` of ``attnbench profile`` in this study. A run compares three plants with the
# reference. The suite ``full`` gives each of these comparisons as much time as a comparison by ``attnbench compare``.
SUITE = "full"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command of the study."""
    options = _make_parser().parse_args(arguments)
    try:
        options.do(options)
    except StudyError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the measurements are stored: continue with the same command and --resume", file=sys.stderr)
        return 130
    return 0


def _list_conditions(options: Any) -> list[Condition]:
    return [Condition(threads=threads, load=load) for threads in options.threads for load in options.loads]


def _do_plants(options: Any) -> None:
    setup = Setup(length=options.length, budget_s=options.budget)
    for threads in options.threads:
        quiet = Condition(threads=threads, load=LOADS[0])
        rows = calibrate_rows(options.data, threads, setup, resume=options.resume, say=_print_line)
        path = options.data / f"true-{threads}.jsonl"
        gather_pool(path, quiet, setup, rows=rows, processes=options.processes, resume=options.resume, say=_print_line)
        measure_starts(options.data / f"starts-{threads}.jsonl", quiet, setup, rounds=STARTED, resume=options.resume)


def _do_judge(options: Any) -> None:
    settings = DrawSettings(
        seconds=_map_threads(options.threads, options.seconds),
        processes=_map_threads(options.threads, options.processes),
        most=options.most,
        draws=options.draws,
        effect=options.effect,
    )
    evaluations: list[Evaluation] = []
    for condition in _list_conditions(options):
        pool = read_pool(options.data / f"runs-{condition}.jsonl")
        if pool is None or not pool.processes:
            _print_line(f"no runs for condition {condition} in {options.data}")
            continue
        threads = condition.threads
        starts_s = read_start_times_s(options.data / f"starts-{threads}.jsonl")
        if starts_s is None:
            raise StudyError(
                f"{options.data} has no measured times to start a process: "
                f"run python -m research.detection plants --threads {threads}"
            )
        plants = read_pool(options.data / f"true-{threads}.jsonl")
        evaluations.append(evaluate_rules(condition.label, pool, plants, settings, starts_s=starts_s))
        _print_line(f"evaluated {condition}")
    if not evaluations:
        raise StudyError(f"no runs in {options.data}: run python -m research.detection runs")
    runs = count_verdicts(options.data)
    parts = [format_table(evaluations), format_runs_table(runs) if runs else "", format_agreement(options.data)]
    options.data.mkdir(parents=True, exist_ok=True)
    (options.data / "detection.md").write_text("\n\n".join(part for part in parts if part) + "\n")
    (options.data / "detection.json").write_text(json.dumps([asdict(one) for one in evaluations], indent=1))
    for ending in ("svg", "png"):
        draw_figure(evaluations, options.data / f"detection.{ending}")
    print((options.data / "detection.md").read_text())


def _do_regret(options: Any) -> None:
    settings = DrawSettings(seconds={}, processes={}, most=0, draws=options.draws)
    tallies = []
    for condition in _list_conditions(options):
        pool = read_pool(options.data / f"runs-{condition}.jsonl")
        if pool is None or not pool.processes:
            _print_line(f"no runs for condition {condition} in {options.data}")
            continue
        plants = read_pool(options.data / f"true-{condition.threads}.jsonl")
        tallies += evaluate_regret(condition.label, pool, plants, settings)
        _print_line(f"evaluated {condition}")
    (options.data / "regret.md").write_text(format_regret_table(tallies) + "\n")
    (options.data / "regret.json").write_text(json.dumps([asdict(one) for one in tallies], indent=1))
    print(format_regret_table(tallies))


def _do_runs(options: Any) -> None:
    setup = Setup(length=options.length, budget_s=0.0)
    for condition in _list_conditions(options):
        path = options.data / f"rows-{condition.threads}.json"
        if not path.exists():
            raise StudyError(
                f"{path}, the extra work of each plant, does not exist: run python -m research.detection plants"
            )
        arguments = ["--suite", options.suite, *(["--processes", str(options.processes)] if options.processes else [])]
        shares = options.shares or SHARES
        if not options.shares and (condition.threads, condition.load) == (1, LOADS[0]):
            shares = (*shares, BYTE_SHARE)  # PLUS_BYTE: byte counts are exact, so one condition is enough
        gather_runs(
            options.data / f"runs-{condition}.jsonl",
            condition,
            setup,
            rows=json.loads(path.read_text()),
            shares=shares,
            runs=options.runs,
            options=arguments,
            resume=options.resume,
            say=_print_line,
        )
    print(format_runs_table(count_verdicts(options.data)))


def _do_gates(options: Any) -> None:
    for condition in _list_conditions(options):
        path = options.data / f"gates-{condition}.jsonl"
        gather_gates(path, condition, runs=options.runs, resume=options.resume, say=_print_line)


def _do_gate(options: Any) -> None:
    tallies: list[GateTally] = []
    for path in sorted(options.data.glob("gates-*.jsonl*")):
        gates = read_gates(path.with_name(path.name.removesuffix(".gz")))
        if gates is None:
            continue
        counts = ", ".join(f"{count} {outcome}" for outcome, count in count_gates(gates).items())
        _print_line(f"{gates.condition.label}: {len(gates.runs)} runs of {gates.took_s:.0f} s: {counts}")
        tallies += evaluate_gates(gates, draws=options.draws, start_s=options.start_s)
        # Written after each condition, because the draws of one take long.
        (options.data / "gate.md").write_text(format_gate_table(tallies) + "\n")
    if not tallies:
        raise StudyError(f"no gates in {options.data}: run python -m research.detection gates")
    print(format_gate_table(tallies))


def _do_agreement(options: Any) -> None:
    setup = Setup(length=options.length, budget_s=0.0)
    for threads in options.threads:
        path = options.data / f"agreement-{threads}.jsonl"
        measure_agreement(path, threads, setup, processes=options.processes, resume=options.resume)
    print(format_agreement(options.data))


def _map_threads(threads: Sequence[int], values: Sequence[Any]) -> dict[int, Any]:
    return {count: values[0] if count == 1 else values[-1] for count in threads}


def _print_line(text: str) -> None:
    print(text, flush=True)


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m research.detection", description=__doc__.partition(":")[0])
    parts = parser.add_subparsers(required=True)
    plants = _add_command(
        parts, "plants", _do_plants, "find the extra work that slows a call by 2 or 3 percent, and measure the slowdown"
    )
    plants.add_argument(
        "--processes", type=int, default=TRUE_PROCESSES, help="number of processes that measure the true slowdowns"
    )
    plants.add_argument("--budget", type=float, default=BUDGET_S, help="seconds of timed calls per process")
    judge = _add_command(
        parts, "judge", _do_judge, "draw comparisons from the stored runs, and decide each by the rules of all tools"
    )
    judge.add_argument("--draws", type=int, default=DRAWS, help="number of comparisons for each rule and each plant")
    judge.add_argument(
        "--seconds",
        type=_parse_floats,
        default=SECONDS,
        help="seconds of a comparison for one thread and for several threads, such as 15,30",
    )
    judge.add_argument(
        "--processes",
        type=_parse_integers,
        default=COMPARED,
        help="number of processes of a comparison by attnbench for one thread and for several threads, such as 10,20",
    )
    judge.add_argument(
        "--most",
        type=int,
        default=MOST,
        help="largest number of processes of a comparison: attnbench adds processes while its verdict is unknown",
    )
    judge.add_argument(
        "--effect",
        type=float,
        default=EFFECT,
        help="smallest relative difference of times that counts as slower or faster",
    )
    regret = _add_command(
        parts,
        "regret",
        _do_regret,
        "draw answers from the stored runs, and count how often the told bound is too small",
    )
    regret.add_argument("--draws", type=int, default=DRAWS, help="number of answers for each question and condition")
    runs = _add_command(parts, "runs", _do_runs, "run attnbench on the reference and its copies with extra work")
    runs.add_argument(
        "--runs", type=int, default=RUNS, help="number of runs for each combination of plant, thread count and load"
    )
    runs.add_argument("--processes", type=int, help="value of the option --processes of attnbench profile")
    runs.add_argument(
        "--suite", default=SUITE, help="value of the option --suite of attnbench profile, which sets the measuring time"
    )
    runs.add_argument(
        "--shares",
        type=_parse_integers,
        help=f"slowdowns in percent of the copies to run: {', '.join(map(str, SHARES))}; {BYTE_SHARE} is the copy "
        "that needs one more byte of memory",
    )
    gates = _add_command(parts, "gates", _do_gates, "run attnbench gate on a change without effect")
    gates.add_argument("--runs", type=int, default=GATES, help="number of gates for each condition")
    gate = _add_command(parts, "gate", _do_gate, "draw gates from the stored ones, and decide each by several rules")
    gate.add_argument("--draws", type=int, default=DRAWS, help="number of gates for each rule and each slowdown")
    gate.add_argument("--start-s", type=float, default=START_S, help="seconds to start a process of another tool")
    agreement = _add_command(
        parts, "agreement", _do_agreement, "compare the harness's median with that of torch's timer"
    )
    agreement.add_argument("--processes", type=int, default=AGREEMENT_PROCESSES, help="number of processes to measure")
    return parser


def _add_command(parts: Any, name: str, do: Any, description: str) -> argparse.ArgumentParser:
    part: argparse.ArgumentParser = parts.add_parser(name, help=description, description=description)
    part.set_defaults(do=do)
    part.add_argument("--data", type=Path, default=DATA, help="folder of the raw data")
    part.add_argument("--resume", action="store_true", help="continue an interrupted measurement in the stored files")
    part.add_argument("--threads", type=_parse_integers, default=(1, 2), help="numbers of threads, such as 1,2")
    part.add_argument(
        "--loads",
        type=lambda text: tuple(text.split(",")),
        default=LOADS,
        help="loads on the machine, such as quiet,busy; nothing is started for another word, such as other-work",
    )
    part.add_argument("--length", type=int, default=LENGTH, help="sequence length of the case")
    return part


def _parse_integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _parse_floats(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))
