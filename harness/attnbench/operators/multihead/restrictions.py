"""Common restrictions of implementations; the pool has a covering array of the cases that each restriction leaves.

A restriction maps factors to the values that are left. They were chosen until the pool covered at least 98 % of the
pairs that each built-in implementation takes.
"""

from collections.abc import Sequence
from typing import Any

__all__ = ["RESTRICTIONS"]

Restriction = dict[str, tuple[Any, ...]]

BATCH_FIRST = ((2, True), (4, True), (1, True))
ONE_LENGTH = ((8, 8), (1, 1), (33, 33), (72, 72))
WITHOUT_GRADIENTS = ("inference", "inference_mode", "sampling", "autocast_inference")
NO_WEIGHTS: Restriction = {"weights": ("",)}
# Kernels for heads whose width is a power of 2.
FORWARD_KERNEL: Restriction = NO_WEIGHTS | {"mode": WITHOUT_GRADIENTS, "heads": ((3, 8), (2, 8), (1, 8), (2, 16))}
SAME_WIDTHS: Restriction = {"widths": ((None, None),), "add_bias_kv": (False,), "add_zero_attn": (False,)}
PLAIN: Restriction = NO_WEIGHTS | SAME_WIDTHS | {"dropout": (0.0,)}
SELF: Restriction = PLAIN | {"sharing": ("self_attention",), "bias": (True,)}
# The last lines are the modules of an encoder and of a decoder, and a first module without masks. Modules of this kind
# take so few cases that triples are combined.
RESTRICTIONS: Sequence[tuple[int, Restriction]] = (
    (2, NO_WEIGHTS),
    (2, SAME_WIDTHS),
    (2, NO_WEIGHTS | SAME_WIDTHS),
    (2, NO_WEIGHTS | SAME_WIDTHS | {"sharing": ("self_attention",)}),
    (
        2,
        NO_WEIGHTS
        | {
            "sharing": ("self_attention", "query_is_key"),
            "lengths": ONE_LENGTH,
            "widths": ((None, None), (None, 14)),
        },
    ),
    (2, NO_WEIGHTS | {"padding": ("",)}),
    (2, SELF | {"layout": ((3, False), (1, False))}),
    (2, SELF | {"layout": ((None, False),)}),
    (2, FORWARD_KERNEL),
    (2, FORWARD_KERNEL | PLAIN | {"dtype": ("float16", "bfloat16")}),
    (
        3,
        SELF
        | {
            "attention": ("",),
            "layout": BATCH_FIRST,
            "mode": ("inference", "eval", "train", "inference_mode", "sampling", "autocast", "autocast_inference"),
        },
    ),
    (3, SELF | {"attention": ("causal", "hint"), "padding": ("",), "layout": BATCH_FIRST}),
    (
        2,
        PLAIN
        | {
            "sharing": ("",),
            "bias": (True,),
            "attention": ("",),
            "padding": ("",),
            "layout": BATCH_FIRST,
            "dtype": ("float32",),
        },
    ),
)
