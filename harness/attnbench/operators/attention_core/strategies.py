"""Cases of attention on split heads as Hypothesis draws them: of any form, and never one that is no problem."""

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from attnbench.cases import DTYPES, Case, Mode
from attnbench.operators.attention_core.problem import ALIGNED, LOGIT_STD, AttentionCoreProblem

__all__ = ["drawn"]

MODES: tuple[Mode, ...] = ("eval", "inference", "train", "inference_mode")
# Ends of tiles, and next to them.
EDGES = (1, 15, 16, 17, 31, 32, 33, 63, 64, 65)
# What comes more often is there more often; nothing at all comes last.
LENGTHS = (*sorted((*range(1, 71), *EDGES * 5, *tuple(range(1, 10)) * 5)), *(0,) * 5)
# What a case is made of, the most telling first, each from plain and small to special and large: Hypothesis shrinks a
# draw towards the first place. All are drawn for every case, whether or not it has a use for them.
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
# Added to every place: Hypothesis mixes in constants that it reads from the source of whatever is imported, and finds
# none out here.
FAR = 3**40


def drawn(draw: st.DrawFn) -> Case:
    """A case in any mode but the compiled ones; the smallest is one query and one key of width 1 in float32."""
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
