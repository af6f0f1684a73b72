"""Times of a whole model on the paths of several attention functions, with verdicts against one of them."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from attnbench.analysis.rough_ratio import estimate_rough_ratio
from attnbench.analysis.speed_verdict import CONTROL, decide_speed
from attnbench.analysis.stats import median_of_processes
from attnbench.records.types import Timing
from attnbench.runner.timed_case import add_process
from attnmodels.facts import TimedModel
from attnmodels.requests import ModelSamples

__all__ = ["time_models"]


def time_models(attentions: Sequence[str], processes: int, sample: Callable[[int], ModelSamples]) -> list[TimedModel]:
    """Return the time of each path, and its ratio to the first; ``sample(number)`` takes samples in a new process.

    A path whose output was wrong in a timed call gets no time.
    """
    timings: dict[str, Timing] = {}
    shares = dict.fromkeys(attentions, 0.0)
    for number in range(processes):
        found = sample(number)
        for name, samples in found.samples.items():
            timings[name] = add_process(timings.get(name), number, samples)
        shares = {name: max(share, float(found.shares.get(name, 0.0))) for name, share in shares.items()}
    base = replace(timings[attentions[0]], twin=timings[CONTROL])
    return [
        TimedModel(attention=name, share=shares[name]) if not shares[name] <= 1
        else TimedModel(
            attention=name, share=shares[name], median_ns=median_of_processes(timings[name].samples_ns).value,
            verdict=decide_speed(timings[name], base) if number else None,
            rough_ratio=rough.value if number and (rough := estimate_rough_ratio(timings[name], base)) else None,
        )
        for number, name in enumerate(attentions)
    ]  # fmt: skip
