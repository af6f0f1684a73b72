"""The Hypothesis strategy that draws valid cases of multi-head attention."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from attnbench.cases import CALL_MODES, DTYPES, NARROW_DTYPES, Case, Mode
from attnbench.operators.multihead.problem import (
    ATTENTION_MASKS,
    EXACT_MASKS,
    IDENTITY_REGIMES,
    LOGIT_STD,
    PADDING_MASKS,
    MultiheadProblem,
)

__all__ = ["draw_case"]

# Call modes to draw from. Compiled modes are excluded, because compiling a graph takes seconds.
MODES: tuple[Mode, ...] = (
    "eval",
    *(mode for mode, call_mode in CALL_MODES.items() if mode != "eval" and call_mode.compiler is None),
)
# Sequence lengths that are equal or next to multiples of common tile sizes.
EDGES = (1, 15, 16, 17, 31, 32, 33, 63, 64, 65)
# Sequence lengths to draw from; a length that occurs several times is drawn more often. 0 comes last, because
# Hypothesis shrinks towards the first length.
LENGTHS = (*sorted((*range(1, 71), *EDGES * 5, *tuple(range(1, 10)) * 5)), *(0,) * 5)
# Possible values of every choice that determines a case; the most important choice comes first. The values of a choice
# go from plain and small to special and large, because Hypothesis shrinks towards the first value. Every choice is
# drawn for every case, even if the case does not use it: Hypothesis would regard a special case with fewer draws as
# simpler than a plain case.
FORMS: Mapping[str, Sequence[Any]] = {
    "mode": MODES,
    "dtype": DTYPES,
    "regime": ("plain", *LOGIT_STD, *LOGIT_STD, *IDENTITY_REGIMES),
    "attention": ("", "", "", *ATTENTION_MASKS),
    "padding": ("", "", "", *PADDING_MASKS),
    "is_causal": (False, True),
    "sharing": ("", "", "", "self_attention", "key_is_value", "query_is_key"),
    "dropout": (*(0.0,) * 9, 0.1, 0.5, 0.9),
    "add_bias_kv": (False, True),
    "add_zero_attn": (False, True),
    "bias": (False, True),
    "need_weights": (False, True),
    "average_attn_weights": (False, True),
    "batch_first": (False, True),
    "kdim": (*(None,) * 40, *range(1, 41)),
    "vdim": (*(None,) * 40, *range(1, 41)),
    "batch": (1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 5, 5, None, None, None, 0),
    "num_heads": (1, 2, 3, 4, 5),
    "head_dim": (*range(1, 21), 32, 64),
    "keys": LENGTHS,
    "queries": LENGTHS,
    "square": (False, False, True),
    "seed": range(1000),
}
# Number that is added to every drawn index. Hypothesis also draws constants that it finds in the source of imported
# modules, if they lie in the range that it draws from. No such constant is as large as FAR, so the cases that a seed
# draws do not depend on the imported modules.
FAR = 3**40


def draw_case(draw: st.DrawFn) -> Case:
    """Draw a case in any eager mode; Hypothesis shrinks it towards one query and one key of width 1 in float32."""
    form = {name: some[draw(st.integers(FAR, FAR + len(some) - 1)) - FAR] for name, some in FORMS.items()}
    mode, dtype, regime = form["mode"], form["dtype"], form["regime"]
    if CALL_MODES[mode].autocast:
        dtype = NARROW_DTYPES[DTYPES.index(dtype) % len(NARROW_DTYPES)]
    exact = regime in EXACT_MASKS
    mask = _choose_exact_mask(form) if exact else "+".join(filter(None, (form["attention"], form["padding"]))) or "none"
    sharing = "" if exact else form["sharing"]
    head_dim = 4 ** max(1, int(math.log(form["head_dim"], 4))) if regime == "overflow" else form["head_dim"]
    problem = MultiheadProblem(
        batch=form["batch"],
        embed_dim=form["num_heads"] * head_dim,
        num_heads=form["num_heads"],
        batch_first=form["batch_first"],
        need_weights=form["need_weights"],
        average_attn_weights=form["average_attn_weights"],
        is_causal=form["is_causal"] and mask.startswith("causal"),
        dropout=0.0 if exact else form["dropout"],
        mask=mask,
        regime=regime,
        seed=form["seed"],
        **{sharing: True} if sharing else {},
        **_choose_lengths(form, sharing, mask, head_dim),
        **{} if regime in IDENTITY_REGIMES else _choose_projections(form, sharing),
    )
    return Case(operator="multihead", problem=problem, dtype=dtype, mode=mode)


def _choose_exact_mask(form: Mapping[str, Any]) -> str:
    """Choose a mask with which the output of the regime is exact."""
    masks = EXACT_MASKS[form["regime"]]
    return masks[FORMS["attention"].index(form["attention"]) % len(masks)]


def _choose_lengths(form: Mapping[str, Any], sharing: str, mask: str, head_dim: int) -> dict[str, Any]:
    """Choose the numbers of keys and queries, which are equal if query and key are one tensor.

    They are also equal if the drawn choice ``square`` is true.

    In the regime ``uniform`` without a mask, the number of keys is rounded down to a power of two. In the regime
    ``overflow`` there are at most as many keys as a head is wide.
    """
    keys = form["keys"]
    if form["regime"] == "uniform" and mask == "none":
        keys = 2 ** (max(keys, 1).bit_length() - 1)
    if form["regime"] == "overflow":
        keys = min(max(keys, 1), head_dim)
    square = form["square"] or sharing in ("self_attention", "query_is_key")
    return {"keys": keys, "queries": keys if square else form["queries"]}


def _choose_projections(form: Mapping[str, Any], sharing: str) -> dict[str, Any]:
    """Choose bias, add_bias_kv, add_zero_attn, kdim and vdim.

    An argument that is the same tensor as another argument gets the width of that tensor.
    """
    kdim = None if sharing in ("self_attention", "query_is_key") else form["kdim"]
    vdim = kdim if sharing in ("self_attention", "key_is_value") else form["vdim"]
    flags = {name: form[name] for name in ("bias", "add_bias_kv", "add_zero_attn")}
    return flags | {"kdim": kdim, "vdim": vdim}
