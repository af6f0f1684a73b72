"""Errors of correct implementations as a share of the allowance: ``python -m research.variants --help``.

Every check runs on every correct variant of ``attnbench.mutants.multihead``, on the cases of a suite that need no
compiler and on randomly drawn cases, in every dtype. No comparison may fail. A histogram for each dtype counts the
comparisons that have an allowance, by the ratio of the measured to the allowed error.
"""

import argparse
import json
import math
import os
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import torch

from attnbench.candidate import global_state
from attnbench.candidate.candidate import Candidate, Malformed
from attnbench.cases import Case
from attnbench.checks.catalogue import load_check_function, read_operator_checks
from attnbench.checks.evaluation.measurement import compare, find_expected
from attnbench.checks.observations import deserialize, serialize
from attnbench.checks.requirement import applies
from attnbench.interface import Refusal
from attnbench.mutants.multihead.variants import VARIANTS
from attnbench.oracle.expected import CaseOracle
from attnbench.oracle.tensor_file import copy_value
from attnbench.plugins.registry import load_operator
from attnbench.runner.fuzz import draw_cases
from attnbench.words.findings import describe_facts

# Upper ends of the histogram's bins, as ratios of the measured to the allowed error. The allowed error is 4 times the
# rounding error of the case, so an error as large as this rounding error has the ratio 0.25.
BINS = (0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0, math.inf)
OPERATOR = "multihead"


@dataclass(slots=True)
class Tally:
    """Number of comparisons, and the failures; for each dtype, a histogram of the error ratios and the largest ratio.

    An error ratio is the measured error divided by the allowed error.
    """

    comparisons: int = 0
    bins: defaultdict[str, Counter[float]] = field(default_factory=lambda: defaultdict(Counter))
    worst: dict[str, tuple[float, str]] = field(default_factory=dict)
    faults: list[tuple[str, str, str, str]] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        """Add the counts and failures of another tally."""
        self.comparisons += other.comparisons
        self.faults += other.faults
        for dtype, counts in other.bins.items():
            self.bins[dtype] += counts
        for dtype, found in other.worst.items():
            self.worst[dtype] = max(self.worst.get(dtype, (0.0, "")), found)


def check_variants(case: Case) -> Tally:
    """Run every check that applies to a case on every correct variant."""
    torch.set_num_threads(1)
    tally, operator = Tally(), load_operator(OPERATOR)
    names = [name for name in read_operator_checks(operator) if applies(load_check_function(name), case, operator)]
    make_oracle = cache(
        lambda precision, choices: CaseOracle(case, operator, precision, lambda: operator.inputs(case), choices=choices)
    )
    settings = global_state.read_settings()
    for variant in VARIANTS:
        refuses_empty = variant.policies.empty_batches == "refused" and not case.problem.sequences
        if variant.unsupported(case) is not None or refuses_empty:
            continue
        case_oracle = make_oracle(variant.policies.precision(case.dtype), variant.policies.choices)
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
                expected = find_expected(observation, case_oracle)
                for comparison in compare(observation, expected, case_oracle, variant.policies):
                    tally.comparisons += 1
                    if comparison.facts:
                        tally.faults.append((variant.name, name, case.id, describe_facts(comparison.facts)))
                    # Leave out the comparison of a declared NaN, whose share is NaN.
                    if comparison.measured is not None and comparison.allowed and not math.isnan(comparison.share):
                        share = comparison.share
                        tally.bins[case.dtype][next(end for end in BINS if share <= end)] += 1
                        place = f"{variant.name} {name} {case.id}"
                        tally.worst[case.dtype] = max(tally.worst.get(case.dtype, (0.0, "")), (share, place))
    return tally


def format_table(tally: Tally) -> str:
    """Format the histogram as a Markdown table."""
    dtypes = sorted(tally.bins)
    lines = [f"| measured / allowed | {' | '.join(dtypes)} |", "|---|" + "---:|" * len(dtypes)]
    for low, high in zip((None, *BINS), BINS, strict=False):
        name = "0" if low is None else f"above {low:g}" if high == math.inf else f"up to {high:g}"
        lines.append(f"| {name} | {' | '.join(f'{tally.bins[dtype][high]:,}' for dtype in dtypes)} |")
    lines.append(f"| largest | {' | '.join(f'{tally.worst[dtype][0]:.2f}' for dtype in dtypes)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the checks on all cases, and print the histogram and the failures."""
    parser = argparse.ArgumentParser(prog="python -m research.variants", description=__doc__.partition(":")[0])
    parser.add_argument("--suite", default="core", help="suite of cases, such as core")
    parser.add_argument("--drawn", type=int, default=200, help="number of randomly drawn cases")
    parser.add_argument("--seed", type=int, default=0, help="seed of the drawn cases")
    parser.add_argument("--json", type=Path, help="JSON file to which the counts and failures are written")
    options = parser.parse_args()
    operator = load_operator(OPERATOR)
    listed = [
        case for case in operator.suite(options.suite) if case.compiler is None and operator.missing(case) is None
    ]
    drawn = draw_cases(operator, seed=options.seed, count=options.drawn)
    tally = Tally()
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=get_context("spawn")) as pool:
        for number, one in enumerate(pool.map(check_variants, [*listed, *drawn]), start=1):
            tally.add(one)
            for fault in one.faults:
                print(*fault, sep="  ", flush=True)
            if number % 50 == 0:
                print(f"{number} of {len(listed) + len(drawn)} cases, {tally.comparisons:,} comparisons, "
                      f"{len(tally.faults)} failed", flush=True)  # fmt: skip
    print(format_table(tally))
    print(f"{len(VARIANTS)} variants, {len(listed)} listed and {len(drawn)} drawn cases: "
          f"{tally.comparisons:,} comparisons, {len(tally.faults)} failed")  # fmt: skip
    for dtype, (share, place) in sorted(tally.worst.items()):
        print(f"largest in {dtype}: {share:.3f} {place}")
    if options.json:
        bins = {dtype: {str(end): counts[end] for end in BINS} for dtype, counts in tally.bins.items()}
        options.json.write_text(json.dumps(
            {"comparisons": tally.comparisons, "bins": bins, "worst": tally.worst, "faults": tally.faults}, indent=1
        ))  # fmt: skip


if __name__ == "__main__":
    main()
