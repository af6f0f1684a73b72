"""The covering array of the suites ``core`` and ``full``, and words for the values of its factors."""

from collections.abc import Mapping
from typing import Any

from attnbench.interface import Covering
from attnbench.operators.attention_core.generate_cases import FACTORS, case_to_row, is_allowed, row_to_case

__all__ = ["COVERING"]

# Words for the values that an implementation often excludes, or to which it is often limited.
WORDS: Mapping[str, Mapping[Any, str]] = {
    "causal": {"": "no causal mask", "causal_tl": "top-left causal mask", "causal_br": "bottom-right causal mask"},
    "window": {None: "no window"},
    "added": {"": "no bias", "alibi": "ALiBi"},
    "ragged": {False: "no ragged batches", True: "ragged batches"},
    "softcap": {0.0: "no soft-cap"},
    "scale": {0.0: "default scale"},
}
COVERING = Covering(
    factors=FACTORS, is_allowed=is_allowed, row_to_case=row_to_case, case_to_row=case_to_row, words=WORDS
)
