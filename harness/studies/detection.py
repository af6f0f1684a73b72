"""How well a slowdown is found, and how rarely one is seen where there is none: ``python -m studies.detection --help``.

``pool`` measures, for hours: so many fresh processes per condition, in which the reference, its twin and planted copies
take turns; before that, how much work makes a plant of the wanted size, and how long the plants truly take. ``judge``
draws comparisons from the pools and lets our rule and those of other tools judge them. ``runs`` are real runs of
``attnbench compare``. ``agreement`` holds our median against that of torch's own timer. Everything is stored as it is
measured; the same command with ``--resume`` goes on where it was left.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from studies.agreement import agree, agreement_text
from studies.judging import Asked, Judged, effects, judged
from studies.lines import StudyError
from studies.load import LOADS
from studies.plants import BYTE_SHARE, SHARES
from studies.pools import Condition, Setup, calibrated, gather, stored
from studies.runs import counted, run
from studies.showing import figure, runs_table, table

# Stored where runs are, which git ignores; what is to be kept is packed and copied.
DATA = Path(__file__).parents[2] / "results" / "detection"
# A length at which a call takes some milliseconds: long enough for a percent to be more than a clock's and a call's
# own cost, short enough for many calls.
LENGTH = 512
# Seconds that all sides share in a process of a pool, which must serve the tools that want many calls of one process.
BUDGET_S = 1.5
PROCESSES, TRUE_PROCESSES, RUNS, AGREEMENT_PROCESSES, DRAWS = 250, 40, 30, 20, 2000
# Wall time of a comparison in seconds and its processes, at one thread and at more, as the goals of the harness say;
# and how many processes a run may come to.
SECONDS, COMPARED, MOST = (15.0, 30.0), (10, 20), 30
# Plants of the real runs in percent, at one thread and at more.
RUN_SHARES = ((0, 2), (0, 3))


def main(arguments: Sequence[str] | None = None) -> int:
    """Do one part of the study."""
    asked = _parser().parse_args(arguments)
    try:
        asked.do(asked)
    except StudyError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("what was measured is stored; the same command with --resume goes on", file=sys.stderr)
        return 130
    return 0


def _conditions(asked: Any) -> list[Condition]:
    return [Condition(threads=threads, load=load) for threads in asked.threads for load in asked.loads]


def _pool(asked: Any) -> None:
    setup = Setup(length=asked.length, budget_s=asked.budget)
    for threads in asked.threads:
        rows = calibrated(asked.data, threads, setup, resume=asked.resume, say=_say)
        gather(
            asked.data / f"true-{threads}.jsonl",
            Condition(threads=threads, load="quiet"),
            setup,
            rows=rows,
            processes=asked.true_processes,
            resume=asked.resume,
            say=_say,
        )
        for condition in (one for one in _conditions(asked) if one.threads == threads):
            path = asked.data / f"pool-{condition}.jsonl"
            gather(path, condition, setup, rows=rows, processes=asked.processes, resume=asked.resume, say=_say)


def _judge(asked: Any) -> None:
    wanted = Asked(
        seconds=_by_threads(asked.threads, asked.seconds),
        processes=_by_threads(asked.threads, asked.processes),
        most=asked.most,
        draws=asked.draws,
    )
    found: list[Judged] = []
    with effects(asked.effect_of_one, asked.effect_of_many):
        for condition in _conditions(asked):
            pool = stored(asked.data / f"pool-{condition}.jsonl")
            if pool is None or not pool.processes:
                _say(f"no pool of {condition} in {asked.data}")
                continue
            found.append(judged(condition.told, pool, stored(asked.data / f"true-{condition.threads}.jsonl"), wanted))
            _say(f"judged {condition}")
    if not found:
        raise StudyError(f"no pools in {asked.data}; measure them with: python -m studies.detection pool")
    runs = counted(asked.data)
    parts = [table(found), runs_table(runs) if runs else "", agreement_text(asked.data)]
    asked.data.mkdir(parents=True, exist_ok=True)
    (asked.data / "detection.md").write_text("\n\n".join(part for part in parts if part) + "\n")
    (asked.data / "detection.json").write_text(json.dumps([asdict(one) for one in found], indent=1))
    for ending in ("svg", "png"):
        figure(found, asked.data / f"detection.{ending}")
    print((asked.data / "detection.md").read_text())


def _runs(asked: Any) -> None:
    setup = Setup(length=asked.length, budget_s=0.0)
    for condition in _conditions(asked):
        path = asked.data / f"rows-{condition.threads}.json"
        if not path.exists():
            raise StudyError(f"{path} is missing: how much is to be planted is measured by the command pool")
        options = ["--processes", str(asked.processes)] if asked.processes else []
        shares = asked.shares or RUN_SHARES[condition.threads > 1]
        if not asked.shares and (condition.threads, condition.load) == (1, LOADS[0]):
            shares = (*shares, BYTE_SHARE)  # exact, whatever else the machine does
        run(
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
    print(runs_table(counted(asked.data)))


def _agreement(asked: Any) -> None:
    setup = Setup(length=asked.length, budget_s=0.0)
    for threads in asked.threads:
        path = asked.data / f"agreement-{threads}.jsonl"
        agree(path, threads, setup, processes=asked.processes, resume=asked.resume)
    print(agreement_text(asked.data))


def _by_threads(threads: Sequence[int], values: Sequence[Any]) -> dict[int, Any]:
    return {count: values[0] if count == 1 else values[-1] for count in threads}


def _say(text: str) -> None:
    print(text, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m studies.detection", description=__doc__.partition("\n")[0])
    parts = parser.add_subparsers(required=True)
    pool = _part(parts, "pool", _pool, "measure the pools, and before them the plants")
    pool.add_argument("--processes", type=int, default=PROCESSES, help="fresh processes of each condition")
    pool.add_argument("--true-processes", type=int, default=TRUE_PROCESSES, help="processes for a plant's true size")
    pool.add_argument("--budget", type=float, default=BUDGET_S, help="seconds of each process")
    judge = _part(parts, "judge", _judge, "draw comparisons from the pools and judge them")
    judge.add_argument("--draws", type=int, default=DRAWS, help="comparisons of each rule and plant")
    judge.add_argument("--seconds", type=_floats, default=SECONDS, help="of a comparison, at one thread and at more")
    judge.add_argument("--processes", type=_integers, default=COMPARED, help="of ours, at one thread and at more")
    judge.add_argument("--most", type=int, default=MOST, help="processes of ours where it is undecided")
    judge.add_argument("--effect-of-one", type=float, help="another difference that counts, at one thread")
    judge.add_argument("--effect-of-many", type=float, help="the same at more threads")
    runs = _part(parts, "runs", _runs, "real runs of attnbench compare")
    runs.add_argument("--runs", type=int, default=RUNS, help="of each condition and plant")
    runs.add_argument("--processes", type=int, help="as compare's own option")
    runs.add_argument(
        "--shares", type=_integers, help=f"plants in percent, of {', '.join(map(str, SHARES))}; {BYTE_SHARE}: a byte"
    )
    agreement = _part(parts, "agreement", _agreement, "our median and that of torch's timer")
    agreement.add_argument("--processes", type=int, default=AGREEMENT_PROCESSES)
    return parser


def _part(parts: Any, name: str, do: Any, told: str) -> argparse.ArgumentParser:
    part: argparse.ArgumentParser = parts.add_parser(name, help=told, description=told)
    part.set_defaults(do=do)
    part.add_argument("--data", type=Path, default=DATA, help="folder of the raw data")
    part.add_argument("--resume", action="store_true", help="go on with what is there")
    part.add_argument("--threads", type=_integers, default=(1, 2))
    part.add_argument("--loads", type=lambda text: tuple(text.split(",")), default=LOADS, help="quiet, busy or both")
    part.add_argument("--length", type=int, default=LENGTH, help="sequence length of the case")
    return part


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _floats(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
