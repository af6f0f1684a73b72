"""How often a threshold of pytest-benchmark fails unchanged code: ``python -m research.saved_runs``.

A saved run of the fixture ``attention_benchmark`` has ten processes, and its number is the median of their ratios to
the reference's time. Here, each ten consecutive processes of the stored profiles are such a run, and every run is
compared with every other one. With ``--measure``, a further profile is stored first; other work may run meanwhile.
"""

import argparse
import gzip
import itertools
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import attnbench
from attnbench.analysis.rough_ratio import divide_all_calls
from attnbench.pytest_plugin.benchmark import PROCESSES
from attnbench.records.run_file import merge_runs, read_run
from attnbench.records.types import Timing

__all__ = ["format_table", "read_saved_runs", "slow_20", "slow_50", "unchanged"]

DATA = Path(__file__).parent / "data" / "saved_runs"
REFERENCE, UNCHANGED, SLOWER = "torch_mha", "unchanged", ("slow_20", "slow_50")
# Number of tokens, and of processes of a profile.
LENGTH, MEASURED = 256, 100
THRESHOLDS = (0.05, 0.1, 0.15)

# Numbers of runs by the name of a function: ratios to the reference's time, and median times in nanoseconds.
Runs = Mapping[str, list[float]]


def unchanged(q: Any, k: Any, v: Any, *, mask: Any, scale: float) -> Any:
    """Attention in plain torch."""
    scores = q @ k.transpose(-2, -1) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return torch.softmax(scores, -1) @ v


def _slow(share: float) -> Callable[..., Any]:
    """Return a copy that waits for a share of the time of its own call; of the whole module, that is less."""

    def attend(q: Any, k: Any, v: Any, *, mask: Any, scale: float) -> Any:
        begin = time.perf_counter_ns()
        output = unchanged(q, k, v, mask=mask, scale=scale)
        until = time.perf_counter_ns() + share * (time.perf_counter_ns() - begin)
        while time.perf_counter_ns() < until:
            pass
        return output

    return attend


slow_20, slow_50 = map(_slow, (0.2, 0.5))


def read_saved_runs(paths: Sequence[Path]) -> tuple[Runs, Runs]:
    """Return the numbers of the runs in stored profiles: ratios, and median times in nanoseconds, by function."""
    ratios: dict[str, list[float]] = {}
    times: dict[str, list[float]] = {}
    for path in paths:
        timings = _read_timings(path)
        for name, timing in timings.items():
            if name != REFERENCE:
                ratios.setdefault(name, []).extend(_reduce(divide_all_calls(timing, timings[REFERENCE])))
                medians = [statistics.median(process) for process in timing.samples_ns if process]
                times.setdefault(name, []).extend(_reduce(medians))
    return ratios, times


def _read_timings(path: Path) -> dict[str, Timing]:
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder, "run.jsonl")
        with gzip.open(path) as packed, whole.open("wb") as file:
            shutil.copyfileobj(packed, file)
        results = merge_runs([read_run(whole)])
    return {one.implementation.rpartition(":")[2]: one.timing for one in results if one.timing}


def _reduce(processes: Sequence[float]) -> list[float]:
    """Return the median of each run; processes that make no whole run are left out."""
    whole = len(processes) // PROCESSES * PROCESSES
    return [statistics.median(processes[first : first + PROCESSES]) for first in range(0, whole, PROCESSES)]


def format_table(ratios: Runs, times: Runs) -> str:
    """Format, for each threshold, how many comparisons fail of unchanged code and of the slower copies."""
    slower = [name for name in SLOWER if name in ratios]
    sizes = [statistics.median(ratios[name]) / statistics.median(ratios[UNCHANGED]) - 1 for name in slower]
    heads = [*(f"{size:.0%} slower" for size in sizes), "unchanged, by medians of times"]
    lines = [f"| threshold | unchanged | {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) + 1)]
    base = ratios[UNCHANGED]
    for threshold in THRESHOLDS:
        pairs = [
            list(itertools.permutations(base, 2)),
            *(list(itertools.product(base, ratios[name])) for name in slower),
            list(itertools.permutations(times[UNCHANGED], 2)),
        ]
        fails = [f"{sum(new / was - 1 > threshold for was, new in own)} of {len(own)}" for own in pairs]
        lines.append(f"| {threshold:.0%} | {' | '.join(fails)} |")
    lines.append(f"\nThe largest difference between two unchanged runs is {max(base) / min(base) - 1:.1%}.")
    return "\n".join(lines)


def _measure(data: Path) -> None:
    names = [f"{__spec__.name}:{name}" for name in (UNCHANGED, *SLOWER)]
    with tempfile.TemporaryDirectory() as folder:
        made = attnbench.profile(
            names, lengths=LENGTH, passes="forward", processes=MEASURED, threads=1, results=folder
        )  # fmt: skip
        data.mkdir(parents=True, exist_ok=True)
        target = data / f"runs-{len(list(data.glob('*.gz'))) + 1}.jsonl.gz"
        target.write_bytes(gzip.compress(Path(str(made.path)).read_bytes()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table of the stored profiles."""
    parser = argparse.ArgumentParser(prog="python -m research.saved_runs", description=__doc__.partition(":")[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the stored profiles")
    parser.add_argument("--measure", action="store_true", help="measure a further profile: about ten minutes")
    options = parser.parse_args(arguments)
    if options.measure:
        _measure(options.data)
    paths = sorted(options.data.glob("*.jsonl.gz"))
    if not paths:
        print(f"no profiles in {options.data}: add --measure", file=sys.stderr)
        return 1
    print(format_table(*read_saved_runs(paths)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
