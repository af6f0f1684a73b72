"""What new input values before each timed call do to the times: ``python -m research.fresh_values --help``.

The study times the reference and three implementations in alternating blocks of one process: in half of the blocks,
every call gets new values; in the others, all calls have the same values. The shift of an implementation is the ratio
of its median times in the two kinds of blocks. The times of implementations relative to the reference stay right if
all shifts are equal. The study also compares the harness's time of the reference, alone in its process, with that of
``torch.utils.benchmark.Timer``, which times the writing of new values together with the call, and the writing alone.
"""

import argparse
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch.utils.benchmark import Timer

from attnbench.analysis.stats import estimate
from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case
from attnbench.devices import get_device
from attnbench.interface import Inputs
from attnbench.measurement import sampling
from attnbench.measurement.surroundings import Unwatched
from attnbench.oracle.inputs import load_inputs
from attnbench.plugins.adapters import load_implementation
from attnbench.plugins.registry import load_operator, load_problem_types
from attnbench.processes.oracle_requests import DrawInputs
from attnbench.records.environment import describe_machine
from attnbench.runner import Limits, Session, list_profile_cases
from attnbench.workers.fresh_values import FreshValues
from research.lines import Lines, StudyError, read

__all__ = ["format_table", "measure_process"]

DATA = Path(__file__).parent / "data" / "fresh_values"
REFERENCE = "torch_mha"
NAMES = (REFERENCE, "sdpa", "reshaped", "batched_matmul")
# Sequence lengths at which a call of the reference on one thread takes about 0.2, 1 and 10 ms.
LENGTHS = (16, 128, 768)
# Defaults. PROCESSES: number of new processes for each length. THREADS: number of threads of each call.
PROCESSES, THREADS = 12, 1
# PAIRS: number of blocks of each kind in a process. BLOCK_S: seconds of a block; a block has at least nine calls of
# each implementation.
PAIRS, BLOCK_S = 8, 0.2
# Seconds for which torch's timer measures the reference.
TIMER_S = 0.5

Record = dict[str, Any]


class Writing(Unwatched):
    """Writes new values before each call."""

    def __init__(self, values: FreshValues, inputs: Mapping[str, Inputs]) -> None:
        self._values = values
        self._inputs = inputs

    def prepare(self, name: str, cycle: int) -> None:
        """Write new values into the inputs of a call."""
        del cycle
        self._values.write(self._values.draw(), self._inputs[name])


def measure_process(
    case: str, inputs: str, threads: int, seed: int, *, pairs: int = PAIRS, block_s: float = BLOCK_S
) -> Record:
    """Time all implementations in blocks with new and with the same values; return the median of each block."""
    torch.set_num_threads(threads)
    parsed = Case.parse(case, load_problem_types())
    operator = load_operator(parsed.operator)
    sides = {
        name: Candidate(load_implementation(name), operator, parsed, load_inputs(inputs, parsed.device))
        for name in NAMES
    }
    values = FreshValues(load_inputs(inputs, parsed.device), None, get_device(parsed.device))
    writing = Writing(values, {name: side.inputs for name, side in sides.items()})
    calls = {name: partial(side.call, **side.inputs.arguments()) for name, side in sides.items()}
    blocks: dict[str, dict[str, list[float]]] = {kind: {name: [] for name in NAMES} for kind in ("new", "same")}
    order = random.Random(seed)  # noqa: S311  # the order of blocks, no secret
    with sides[REFERENCE].call_mode():
        for block in range(pairs):
            for kind in order.sample(("new", "same"), 2):
                taken = sampling.sample_interleaved(
                    calls,
                    budget_s=block_s,
                    seed=seed + block,
                    surroundings=writing if kind == "new" else None,
                )
                for name in NAMES:
                    blocks[kind][name].append(statistics.median(taken[name].samples_ns[0]))
        only = {REFERENCE: calls[REFERENCE]}
        ours = sampling.sample_interleaved(only, budget_s=TIMER_S, seed=seed, surroundings=writing)[REFERENCE]
        both, alone = (
            Timer(text, globals={"write": partial(writing.prepare, REFERENCE, 0), "call": calls[REFERENCE]})
            .blocked_autorange(min_run_time=TIMER_S)
            .median
            for text in ("write(); call()", "write()")
        )
    return {
        "case": case, "threads": threads, "blocks": blocks, "ours_ns": statistics.median(ours.samples_ns[0]),
        "timer_ns": (both - alone) * 1e9,
    }  # fmt: skip


def format_table(records: Sequence[Record]) -> str:
    """Return the table of shifts, in Markdown: a row for each case and implementation."""
    lines = [
        "| case | implementation | ms, new values | new / same values | the shift / the reference's | / Timer |",
        "|---|---|---|---|---|---|",
    ]
    for case in dict.fromkeys(record["case"] for record in records):
        own = [record for record in records if record["case"] == case]
        base = [_find_shift(record, REFERENCE) for record in own]
        for name in NAMES:
            shifts = [_find_shift(record, name) for record in own]
            relative = [shift / reference for shift, reference in zip(shifts, base, strict=True)]
            times = [statistics.median(record["blocks"]["new"][name]) for record in own]
            timer = [record["ours_ns"] / record["timer_ns"] for record in own]
            lines.append(
                f"| {case.split('/')[1]} | `{name}` | {statistics.median(times) / 1e6:.3g} | {_format(shifts)} | "
                f"{_format(relative)} | {_format(timer) if name == REFERENCE else ''} |"
            )
    return "\n".join(lines)


def _find_shift(record: Record, name: str) -> float:
    """Median over pairs of blocks of the time with new values, divided by the time with the same values."""
    pairs = zip(record["blocks"]["new"][name], record["blocks"]["same"][name], strict=True)
    return float(statistics.median(new / same for new, same in pairs))


def _format(ratios: Sequence[float]) -> str:
    found = estimate(ratios)
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


def main() -> None:
    """Measure in new processes, store each, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="sequence lengths, in tokens")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="number of processes for each length")
    parser.add_argument("--threads", type=int, default=THREADS, help="number of threads of each call")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the raw data; it gets a file per machine")
    parser.add_argument("--resume", action="store_true", help="continue a file that exists")
    chosen = parser.parse_args()
    machine = describe_machine()
    head = {"kind": "fresh values", "machine": machine.name, "torch": str(torch.__version__), "names": list(NAMES)}
    path = chosen.data / f"{machine.name}-{chosen.threads}.jsonl"
    context = get_context("spawn")
    with Session(limits=Limits(threads=chosen.threads)) as session:
        cases = [list_profile_cases(session, [length], ["forward"], of=("multihead",))[0] for length in chosen.lengths]
        wanted = [case for _ in range(chosen.processes) for case in cases]
        with Lines.open(path, head, resume=chosen.resume) as lines:
            for seed in range(len(lines.records), len(wanted)):
                inputs = session.ask_oracle(DrawInputs(case=wanted[seed]))
                with context.Pool(1) as one:
                    lines.add(one.apply(measure_process, (wanted[seed], inputs, chosen.threads, seed)))
                sys.stderr.write(f"{path.name}: {len(lines.records)} of {len(wanted)} processes\n")
    found = read(path)
    sys.stdout.write(format_table(found[1] if found else []) + "\n")


if __name__ == "__main__":
    try:
        main()
    except StudyError as error:
        sys.exit(str(error))
