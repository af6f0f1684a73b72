"""The covering array of the suites ``core`` and ``full``, and words for the values of its factors."""

from collections.abc import Mapping
from typing import Any

from attnbench.interface import Covering
from attnbench.operators.multihead.generate_cases import FACTORS, case_to_row, is_allowed, row_to_case

__all__ = ["COVERING"]

# Words for the values that an implementation often excludes, or to which it is often limited.
WORDS: Mapping[str, Mapping[Any, str]] = {
    "sharing": {
        "": "three different tensors",
        "self_attention": "self-attention",
        "key_is_value": "key and value one tensor",
        "query_is_key": "query and key one tensor",
    },
    "widths": {(None, None): "no kdim or vdim"},
    "attention": {"": "no attn_mask", "hint": "is_causal", "causal": "causal attn_mask"},
    "padding": {"": "no key_padding_mask"},
    "bias": {True: "with bias", False: "without bias"},
    "add_bias_kv": {False: "no add_bias_kv", True: "with add_bias_kv"},
    "add_zero_attn": {False: "no add_zero_attn", True: "with add_zero_attn"},
    "weights": {"": "no weights", "heads": "weights of each head", "average": "averaged weights"},
    "dropout": {0.0: "no dropout"},
    "layout": {
        **{(batch, True): f"batches of {batch}" for batch in range(1, 9)},
        **{(batch, False): "sequence-first" for batch in range(1, 9)},
        (None, True): "unbatched",
        (None, False): "unbatched",
    },
}
COVERING = Covering(
    factors=FACTORS, is_allowed=is_allowed, row_to_case=row_to_case, case_to_row=case_to_row, words=WORDS
)
