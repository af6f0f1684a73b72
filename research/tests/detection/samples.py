"""Pools of artificial samples, for tests that measure nothing."""

import random

from research.detection import plants
from research.detection.pools import Pool

CASE = "multihead/B1.L4.S4.E8.H2/bias+batch_first+self_attention/mask=none/regime=plain/seed=0/float32/cpu/inference"
CALL_NS = 1_000_000


def draw_values(mean: float, *, count: int, seed: int, spread: float = 0.01) -> list[float]:
    """Draw values around a mean; ``spread`` is the relative standard deviation."""
    draw = random.Random(seed)
    return [mean * draw.gauss(1.0, spread) for _ in range(count)]


def make_side(ratio: float, *, seed: int, calls: int, disturbed: bool) -> dict[str, list[int]]:
    """Make the samples of the reference or of one of its copies in one process, as a worker returns them."""
    times = [round(time) for time in draw_values(CALL_NS * ratio, count=calls, seed=seed, spread=0.005)]
    waited = [time // 4 if disturbed else 0 for time in times]
    return {"times_ns": times, "waited_ns": waited, "switches": [0] * calls, "cycles": list(range(calls))}


def make_pool(
    *, processes: int = 24, threads: int = 1, disturbed: bool = False, twin: float = 1.0, extra: float = 0.01
) -> Pool:
    """Make a pool: artificial samples of the reference, its A/A control, and the copies with extra work (plants).

    ``extra`` is the relative slowdown per intended percent: at 0.01, the plant of 2 % is 2 % slower than the reference.
    ``twin`` is the time of the A/A control divided by the time of the reference.
    """
    records = []
    for number in range(processes):
        ratios = {plants.BASE: 1.0, "twin": twin} | {str(share): 1 + share * extra for share in plants.SHARES}
        sides = {
            name: make_side(ratio, seed=100 * number + place, calls=40, disturbed=disturbed)
            for place, (name, ratio) in enumerate(ratios.items())
        }
        records.append(
            {"kind": "process", "seed": number, "took_s": 0.5, "others": 0.1, "competitor": 0.0, "sides": sides}
        )
    return Pool(header={"kind": "pool", "threads": threads, "load": "quiet"}, processes=records)
