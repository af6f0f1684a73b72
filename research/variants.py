"""How near correct implementations come to their allowance: ``python -m research.variants --help``.

Every correct variant of ``attnbench.mutants`` meets every check on the cases of a level and on drawn ones, at any
dtype. None may fail. Each comparison is counted once; those with an allowance go into a histogram of measured over
allowed, by dtype.
"""

import argparse
import json
import math
import os
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

import torch

from attnbench.candidate import global_state
from attnbench.candidate.candidate import Candidate, Malformed
from attnbench.cases import Case
from attnbench.checks.catalogue import load_check_function, read_checks
from attnbench.checks.evaluation.measurement import compare
from attnbench.checks.observations import deserialize, serialize
from attnbench.checks.requirement import applies
from attnbench.interface import Refusal
from attnbench.mutants.multihead.variants import VARIANTS
from attnbench.oracle.expected import CaseOracle
from attnbench.oracle.tensor_file import copy_value
from attnbench.plugins.registry import load_operator
from attnbench.runner.fuzz import draw_cases

# Upper ends of the histogram's bins; the budget's factor is 4, so that 0.25 is one cost of rounding.
BINS = (0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0, math.inf)
OPERATOR = "multihead"


@dataclass(slots=True)
class Tally:
    """What came out so far."""

    comparisons: int = 0
    bins: defaultdict[str, Counter[float]] = field(default_factory=lambda: defaultdict(Counter))
    worst: dict[str, tuple[float, str]] = field(default_factory=dict)
    faults: list[tuple[str, str, str, str]] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        """Count what another process counted."""
        self.comparisons += other.comparisons
        self.faults += other.faults
        for dtype, counts in other.bins.items():
            self.bins[dtype] += counts
        for dtype, found in other.worst.items():
            self.worst[dtype] = max(self.worst.get(dtype, (0.0, "")), found)


def met(case: Case) -> Tally:
    """Every variant on every check of one case."""
    torch.set_num_threads(1)
    tally, operator = Tally(), load_operator(OPERATOR)
    names = [
        n for n, c in read_checks().items() if c.chapter in operator.chapters and applies(load_check_function(n), case, operator)
    ]
    known = CaseOracle(case, operator, case.dtype, lambda: operator.inputs(case))
    settings = global_state.read_settings()
    for variant in VARIANTS:
        if variant.unsupported(case) is not None:
            continue
        candidate = Candidate(variant, operator, case, operator.inputs(case))
        for name in names:
            global_state.restore_settings(settings)
            try:
                observations = deserialize(copy_value(serialize(list(load_check_function(name)(candidate)))))
            except Refusal:
                continue
            except Malformed as malformed:
                tally.comparisons += 1
                tally.faults.append((variant.name, name, case.id, str(malformed)))
                continue
            for observation in observations:
                keep = getattr(observation, "keep", None)
                truth = known.expected if keep is None else known.compute_with_dropout(keep)
                for verdict in compare(observation, truth, known, variant.policies):
                    tally.comparisons += 1
                    if verdict.fault:
                        tally.faults.append((variant.name, name, case.id, verdict.fault))
                    if verdict.measured is not None and verdict.allowed:
                        share = verdict.share
                        tally.bins[case.dtype][next(end for end in BINS if share <= end)] += 1
                        told = f"{variant.name} {name} {case.id}"
                        tally.worst[case.dtype] = max(tally.worst.get(case.dtype, (0.0, "")), (share, told))
    return tally


def table(tally: Tally) -> str:
    """Histogram as Markdown."""
    dtypes = sorted(tally.bins)
    lines = [f"| measured / allowed | {' | '.join(dtypes)} |", "|---|" + "---:|" * len(dtypes)]
    for low, high in zip((None, *BINS), BINS, strict=False):
        name = "0" if low is None else f"above {low:g}" if high == math.inf else f"up to {high:g}"
        lines.append(f"| {name} | {' | '.join(f'{tally.bins[dtype][high]:,}' for dtype in dtypes)} |")
    lines.append(f"| largest | {' | '.join(f'{tally.worst[dtype][0]:.2f}' for dtype in dtypes)} |")
    return "\n".join(lines)


def main() -> None:
    """Meet all cases, and print the histogram and whatever failed."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--suite", default="core")
    options.add_argument("--drawn", type=int, default=200, help="drawn cases beside those of the suite")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--json", type=Path)
    asked = options.parse_args()
    operator = load_operator(OPERATOR)
    listed = [case for case in operator.suite(asked.suite) if case.compiler is None and operator.missing(case) is None]
    drawn = draw_cases(operator, seed=asked.seed, count=asked.drawn)
    tally = Tally()
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=get_context("spawn")) as pool:
        for number, one in enumerate(pool.map(met, [*listed, *drawn]), start=1):
            tally.add(one)
            for fault in one.faults:
                print(*fault, sep="  ", flush=True)
            if number % 50 == 0:
                print(f"{number} of {len(listed) + len(drawn)} cases, {tally.comparisons:,} comparisons, "
                      f"{len(tally.faults)} failed", flush=True)  # fmt: skip
    print(table(tally))
    print(f"{len(VARIANTS)} variants, {len(listed)} listed and {len(drawn)} drawn cases: "
          f"{tally.comparisons:,} comparisons, {len(tally.faults)} failed")  # fmt: skip
    for dtype, (share, told) in sorted(tally.worst.items()):
        print(f"largest in {dtype}: {share:.3f} {told}")
    if asked.json:
        bins = {dtype: {str(end): counts[end] for end in BINS} for dtype, counts in tally.bins.items()}
        asked.json.write_text(json.dumps(
            {"comparisons": tally.comparisons, "bins": bins, "worst": tally.worst, "faults": tally.faults}, indent=1
        ))  # fmt: skip


if __name__ == "__main__":
    main()
