"""Tests of the examples: attention of well-known libraries passes the checks, or refuses cases with a reason."""

import importlib
import json
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import attnbench
from attnbench.oracle.sentence_encoder import describe_missing, load_encoder, make_padded_sentences
from commands import run_command

EXAMPLES = Path(__file__).parents[1] / "examples"
# The library that each implementation needs.
LIBRARIES = {
    "x_transformers_attention.py:X_TRANSFORMERS": "x_transformers",
    "bert_attention.py:BERT": "transformers",
    "bert_attention.py:BERT_CROSS": "transformers",
    "hugging_face_sdpa.py:HUGGING_FACE_SDPA": "transformers",
}
# Typical uses of these libraries that the suite ``quick`` lacks: one tensor as key and value, and no biases.
CASES = [
    "multihead/B2.L5.S7.E24.H3.K10.V10/add_bias_kv+add_zero_attn+key_is_value+need_weights/mask=float3d+padfloat/"
    "regime=plain/seed=0/float32/cpu/train",
    "multihead/B2.L5.S7.E24.H3/bias+key_is_value/mask=union2d+pad/regime=plain/seed=0/float32/cpu/inference",
    "multihead/B3.L5.S5.E24.H2/bias+batch_first+self_attention+is_causal/mask=causal/regime=plain/seed=0/float16/cpu/eval",
    "multihead/B3.L5.S5.E24.H2/bias+self_attention+need_weights+dropout=0.25/mask=bool2d+pad/"
    "regime=plain/seed=0/float32/cpu/train",
    "multihead/B3.L5.S5.E24.H2/bias+batch_first+self_attention/mask=pad/regime=plain/seed=0/bfloat16/cpu/autocast",
    "multihead/B0.L5.S5.E24.H2/bias+batch_first+self_attention/mask=none/regime=plain/seed=0/float32/cpu/inference",
]


def is_missing(library: str) -> bool:
    """Whether a library is not installed."""
    return find_spec(library) is None


def run_conform(folder: Path, *words: str) -> tuple[int, list[dict[str, str]], str]:
    """Run ``conform`` on the suite ``quick`` and return its exit code, findings and output."""
    options = ("--threads", "1", "--results", folder / "results", "--json", folder / "found.json")
    done = run_command("conform", *words, *options, cwd=EXAMPLES)
    assert (folder / "found.json").exists(), done.stderr
    return done.returncode, json.loads((folder / "found.json").read_text())["findings"], done.stdout + done.stderr


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """Findings of a run with the installed libraries."""
    installed = [name for name, library in LIBRARIES.items() if not is_missing(library)]
    cases = [word for case in ("*", *CASES) for word in ("--case", case)]
    code, findings, output = run_conform(tmp_path_factory.mktemp("examples"), *installed, *cases)
    assert code == 0, output
    return findings


@pytest.mark.extended
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=pytest.mark.skipif(is_missing(library), reason=f"pip install {library.replace('_', '-')}")
        )
        for name, library in LIBRARIES.items()
    ],
)
def test_libraries_pass_on_supported_cases(found: list[dict[str, str]], name: str) -> None:
    """Every check passes, or the case is refused with a reason; checks of outputs, gradients and masks do run."""
    own = [finding for finding in found if finding["implementation"] == name]
    assert {finding["status"] for finding in own} <= {"passed", "unsupported", "not_run"}
    assert all(finding["reason"] for finding in own if finding["status"] != "passed")
    passed = Counter(finding["check"] for finding in own if finding["status"] == "passed")
    for check in ("forward_parity", "input_gradients", "parameter_gradients", "padding_cannot_leak", "autocast_parity"):
        assert passed[check], check


@pytest.mark.skipif(is_missing("x_transformers"), reason="pip install x-transformers")
def test_an_inverted_mask_is_found(tmp_path: Path) -> None:
    """A wrapper that passes the reference's mask to a library with the opposite mask polarity fails."""
    right = (EXAMPLES / "x_transformers_attention.py").read_text()
    wrong = tmp_path / "inverted.py"
    wrong.write_text(right.replace("attn_mask=keep", "attn_mask=None if keep is None else ~keep"))
    assert wrong.read_text() != right
    code, findings, _ = run_conform(
        tmp_path, f"{wrong}:X_TRANSFORMERS", "--case", CASES[1], "--check", "forward_parity"
    )
    assert code == 1
    assert [finding["status"] for finding in findings] == ["failed"]


@pytest.mark.skipif(describe_missing() is not None, reason=str(describe_missing()))
def test_a_chosen_implementation_keeps_the_embeddings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoder with the implementation in every layer is within the budget, and does call the implementation."""
    monkeypatch.syspath_prepend(EXAMPLES)
    example = importlib.import_module("chosen_attention")
    changed = example.swap(load_encoder(), attnbench.load("varlen_packed"))
    batch = make_padded_sentences(2, 16)
    found = example.compare_embeddings(changed, batch)
    assert found.error <= found.allowed
    with torch.no_grad():
        changed.layers[0].self_attn.out_proj.weight.mul_(2.0)
    assert example.compare_embeddings(changed, batch).error > found.allowed
