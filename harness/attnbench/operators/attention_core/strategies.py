"""The Hypothesis strategy that draws valid cases of attention on split heads."""

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from attnbench.cases import DTYPES, Case, Mode
from attnbench.operators.attention_core.problem import ALIGNED, LOGIT_STD, AttentionCoreProblem

__all__ = ["draw_case"]

MODES: tuple[Mode, ...] = ("eval", "inference", "train", "inference_mode")
# Sequence lengths that are equal or next to multiples of common tile sizes.
EDGES = (1, 15, 16, 17, 31, 32, 33, 63, 64, 65)
# Sequence lengths to draw from; a length that occurs several times is drawn more often. 0 comes last, because
# Hypothesis shrinks towards the first length.
LENGTHS = (*sorted((*range(1, 71), *EDGES * 5, *tuple(range(1, 10)) * 5)), *(0,) * 5)
# Possible values of every choice that determines a case; the most important choice comes first. The values of a choice
# go from plain and small to special and large, because Hypothesis shrinks towards the first value. Every choice is
# drawn for every case, even if the case does not use it.
FORMS: Mapping[str, Sequence[Any]] = {
    "mode": MODES,
    "dtype": DTYPES,
    "regime": ("plain", *LOGIT_STD),
    "causal": ("", "", *ALIGNED),
    "window": (*(None,) * 20, *range(21)),
    "added": ("", "", "bias2d", "bias4d", "alibi"),
    "ragged": (False, True),
    "softcap": (0.0, 0.0, 3.0, 30.0),
    "scale": (0.0, 0.0, 0.2, 1.0),
    "share": (1, 1, 2, 3, 4),
    "value_width": (*(None,) * 20, *range(1, 21)),
    "sequences": (1, 2, 3, 4, 0),
    "kv_heads": (1, 2, 3),
    "width": (*range(1, 21), 32, 64),
    "keys": LENGTHS,
    "queries": LENGTHS,
    "seed": range(1000),
}
# Number that is added to every drawn index. Hypothesis also draws constants that it finds in the source of imported
# modules, if they lie in the range that it draws from. No such constant is as large as FAR, so the cases that a seed
# draws do not depend on the imported modules.
FAR = 3**40


def draw_case(draw: st.DrawFn) -> Case:
    """Draw a case with a mode in ``MODES``; Hypothesis shrinks towards one query and one key of width 1 in float32."""
    form = {name: some[draw(st.integers(FAR, FAR + len(some) - 1)) - FAR] for name, some in FORMS.items()}
    window = form["window"]
    parts = [form["causal"], "window" * (window is not None), form["added"], "ragged" * form["ragged"]]
    problem = AttentionCoreProblem(
        sequences=form["sequences"],
        num_heads=form["kv_heads"] * form["share"],
        kv_heads=form["kv_heads"] if form["share"] > 1 else None,
        queries=form["queries"],
        keys=form["keys"],
        head_dim=form["width"],
        head_dim_v=form["value_width"],
        window=window,
        softcap=form["softcap"],
        scale=form["scale"],
        mask="+".join(part for part in parts if part) or "none",
        regime=form["regime"],
        seed=form["seed"],
    )
    return Case(operator="attention_core", problem=problem, dtype=form["dtype"], mode=form["mode"])
