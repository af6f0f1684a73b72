"""Agreement of the harness's median with the median of ``torch.utils.benchmark.Timer``.

Both timers measure the same call, in alternating blocks of one process. A separate measurement times a call that does
nothing. The time that the harness measures for this call is the time that the harness adds to every timed call.
"""

import random
import statistics
import time
from collections.abc import Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from timeit import repeat
from typing import Any

import torch
from torch.utils.benchmark import Timer

from attnbench.analysis.stats import Estimate, estimate
from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case
from attnbench.measurement import sampling
from attnbench.measurement.scheduler import Scheduler
from attnbench.oracle.inputs import load_inputs
from attnbench.plugins.adapters import load_implementation
from attnbench.plugins.registry import load_operator, load_problem_types
from attnbench.processes.oracle_requests import DrawInputs
from attnbench.runner import Limits, Session, list_profile_cases
from research.detection.plants import BASE
from research.detection.pools import Condition, Setup, make_header
from research.lines import Lines, read

__all__ = ["format_agreement", "measure_agreement", "measure_process"]

# BLOCKS: number of blocks of each timer in a process. BLOCK_S: seconds of a block. Blocks are short, because the speed
# of a machine changes within seconds by more than the difference between the timers.
BLOCKS, BLOCK_S = 40, 0.1
# A pair of blocks counts as disturbed if its threads waited for a core for more than this fraction of the pair's time.
# On two cores, the work of the operating system alone makes two threads wait for 2 to 3 % of the time.
DISTURBED = 0.05
# These constants are for the timing of a call that does nothing. NOTHING_S: seconds for which the harness times the
# call. LOOPS: number of calls in a plain loop. REPEATS: number of repetitions of this loop; the fastest counts.
NOTHING_S, LOOPS, REPEATS = 0.2, 20_000, 5
# AGREE: two medians agree if their relative difference is at most this fraction. ADDED_NS: largest number of
# nanoseconds that the harness may add to a call.
AGREE, ADDED_NS = 0.02, 1000

Record = dict[str, Any]


def do_nothing(**named: Any) -> None:
    """Accept the arguments of a call, and do nothing."""
    del named


def measure_agreement(path: Path, threads: int, setup: Setup, *, processes: int, resume: bool) -> list[Record]:
    """Compare the harness with torch's timer in new processes, until the file has ``processes`` records."""
    context = get_context("spawn")
    condition = Condition(threads=threads, load="quiet")
    with Session(limits=Limits(threads=threads)) as session:
        case = list_profile_cases(session, [setup.length], ["forward"], of=("multihead",))[0]
        inputs = session.ask_oracle(DrawInputs(case=case))
        head = make_header(condition, setup, case, {}) | {"kind": "agreement"}
        with Lines.open(path, head, resume=resume) as lines:
            for seed in range(len(lines.records), processes):
                with context.Pool(1) as one:
                    lines.add(one.apply(measure_process, (case, inputs, threads, seed)))
                print(f"{path.name}: {len(lines.records)} of {processes} processes", flush=True)
            return lines.records


def measure_process(
    case: str, inputs: str, threads: int, seed: int, blocks: int = BLOCKS, block_s: float = BLOCK_S
) -> Record:
    """Time one call by the harness and by torch's timer in alternating blocks, then a call that does nothing.

    Return the record of the process: the median of each block, which pairs of blocks were disturbed, and the times of
    the call that does nothing. Times are in nanoseconds.
    """
    torch.set_num_threads(threads)
    parsed = Case.parse(case, load_problem_types())
    operator = load_operator(parsed.operator)
    candidate = Candidate(load_implementation(BASE), operator, parsed, load_inputs(inputs, parsed.device))
    step = partial(candidate.call, **candidate.inputs.arguments())
    timer = Timer("step()", globals={"step": step}, num_threads=threads)
    ours: list[float] = []
    theirs: list[float] = []

    def add_our_block() -> None:
        samples = sampling.sample_interleaved({"call": step}, budget_s=block_s, seed=seed)["call"]
        ours.append(statistics.median(samples.samples_ns[0]))

    def add_their_block() -> None:
        theirs.append(timer.blocked_autorange(min_run_time=block_s).median * 1e9)

    order = random.Random(seed)  # noqa: S311  # the order of blocks, no secret
    scheduler = Scheduler()
    disturbed: list[bool] = []
    with candidate.call_mode():
        for _ in range(blocks):
            before, begin_ns = scheduler.read(), time.perf_counter_ns()
            for add_block in order.sample((add_our_block, add_their_block), 2):
                add_block()
            took_ns, after = time.perf_counter_ns() - begin_ns, scheduler.read()
            waited_ns = after.waited_ns_since(before)
            disturbed.append(waited_ns is not None and waited_ns > DISTURBED * took_ns)
    added_ns, direct_ns = _time_nothing(candidate.inputs.arguments(), seed)
    return {
        "kind": "process", "seed": seed, "ours_ns": ours, "theirs_ns": theirs, "added_ns": added_ns,
        "direct_ns": direct_ns, "disturbed": disturbed,
    }  # fmt: skip


def _time_nothing(arguments: dict[str, Any], seed: int) -> tuple[float, float]:
    """Time a call that does nothing.

    Return the harness's median and the time per call in a plain loop, both in nanoseconds.
    """
    call = partial(do_nothing, **arguments)
    samples = sampling.sample_interleaved({"nothing": call}, budget_s=NOTHING_S, seed=seed)["nothing"]
    return statistics.median(samples.samples_ns[0]), min(repeat(call, number=LOOPS, repeat=REPEATS)) / LOOPS * 1e9


def format_agreement(folder: Path) -> str:
    """Format the results in the agreement files of a folder, one line per number of threads."""
    lines = []
    for name in sorted({path.name.removesuffix(".gz") for path in folder.glob("agreement-*.jsonl*")}):
        found = read(folder / name)
        if found is None or not found[1]:
            continue
        head, records = found
        ratios = [ratio for ratio in map(_compute_ratio, records) if ratio is not None]
        added = [record["added_ns"] for record in records]
        direct_ns = statistics.median(record["direct_ns"] for record in records)
        lines.append(
            f"- {Condition(threads=head['threads'], load='quiet').label}, {len(records)} processes: the harness's "
            f"median divided by Timer's is {_format_interval(estimate(ratios), 4) if ratios else 'not known'} "
            f"in {len(ratios)} undisturbed processes, {_count_agreeing(ratios)} of them within "
            f"{AGREE:.0%} of 1. For a call that does nothing, the harness measures "
            f"{_format_interval(estimate(added), 0)} ns (a plain loop: {direct_ns:.0f} ns). The largest value of a "
            f"process is {max(added):.0f} ns; {ADDED_NS} ns are allowed."
        )
    return "\n".join(lines)


def _compute_ratio(record: Record) -> float | None:
    """Divide the harness's time by Timer's time for each undisturbed pair of blocks; return the median of the ratios.

    The result is None if every pair was disturbed.
    """
    blocks = zip(record["ours_ns"], record["theirs_ns"], record["disturbed"], strict=True)
    ratios = [ours / theirs for ours, theirs, disturbed in blocks if not disturbed]
    return statistics.median(ratios) if ratios else None


def _count_agreeing(ratios: Sequence[float]) -> int:
    return sum(abs(ratio - 1) <= AGREE for ratio in ratios)


def _format_interval(found: Estimate, digits: int) -> str:
    return f"{found.value:.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]"
