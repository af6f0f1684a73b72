"""Tests of the study of deviations inside models: two of its functions, and its table."""

import math

import pytest

from research.models import table
from research.models.table import DEVIATIONS

pytest.importorskip("transformers", minversion="5.23", reason="the study is of models of transformers")


def test_packed_sequences_see_each_other_in_opt_and_not_in_llama() -> None:
    """The masks of OPT ignore the position ids that divide two sequences; those of Llama do not."""
    chosen = [one for one in DEVIATIONS if one.measure.__name__ == "packed" and one.model in ("OPT", "Llama")]
    found = {one.model: measured for one, measured in table.measure(chosen)}
    assert found["OPT"][0] > 0.1
    assert found["Llama"][0] < 1e-4
    assert max(control for _, control in found.values()) < 1e-4


def test_sdpa_shows_later_tokens_to_text_without_token_types() -> None:
    """A change of the last token reaches the others in SDPA, unless token types say that text is causal."""
    chosen = [one for one in DEVIATIONS if one.model == "PaliGemma"]
    without, given = (measured for _, measured in table.measure(chosen))
    assert without[0] > 0.1
    assert (without[1], *given) == (0, 0, 0)


def test_the_table_writes_nan_and_two_digits() -> None:
    """A row has both differences with two digits, or NaN, and what upstream says."""
    one = DEVIATIONS[0]
    row = table.format_table([(one, (math.nan, 0.0123))])
    assert row.endswith(f"| {one.situation} | {one.model} | NaN | 0.012 | the model | {one.upstream} |\n")
