"""A test of a package of its own that uses ``attnbench.testing``, run by pytest in another process."""

import re
import subprocess
import sys
from pathlib import Path

TESTS = '''
"""Tests of my_package, which knows attnbench from attnbench.testing only."""

import pytest
import torch
from attnbench.testing import assert_attention_close, compare_attention

from my_package import attend, attend_wrongly


def draw(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, 9, 16, generator=generator).to(dtype) for _ in range(3)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_right(dtype):
    tokens = draw(dtype)
    assert_attention_close(attend(*tokens, is_causal=True), *tokens, is_causal=True)


def test_wrong():
    tokens = draw()
    assert_attention_close(attend_wrongly(*tokens, is_causal=True), *tokens, is_causal=True)


def test_both():
    tokens = draw()
    outputs = {"a": attend(*tokens, is_causal=True), "b": attend_wrongly(*tokens, is_causal=True)}
    assert compare_attention(outputs, *tokens, is_causal=True).wrong == ("b",)
'''
PACKAGE = """
from torch.nn.functional import scaled_dot_product_attention as attend


def attend_wrongly(q, k, v, *, is_causal):
    return attend(q, k, v)
"""
# A warning in a test fails it, as in many suites.
SETTINGS = '[tool.pytest.ini_options]\npythonpath = ["src"]\nfilterwarnings = ["error"]\n'


def test_a_suite_of_another_package_asserts_with_attnbench(tmp_path: Path) -> None:
    """Right outputs pass in float32 and float16; a wrong one fails with the sentence that names its cause."""
    for name, text in {"pyproject.toml": SETTINGS, "src/my_package.py": PACKAGE, "tests/test_mine.py": TESTS}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    words = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("1 failed, 3 passed")
    (told,) = [line for line in done.stdout.splitlines() if line.startswith("E   AssertionError: ")]
    assert re.match(
        r"E   AssertionError: \d+ of 864 elements .* of output are off, only queries 0 to 7; the worst by", told
    )
    for part in ("at batch 0, head 0, query 0", "; allowed ", "Diagnosis: looks like the causal mask ignored."):
        assert part in told
