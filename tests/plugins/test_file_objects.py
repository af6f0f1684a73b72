"""Tests of names of files: the one object that could be meant is taken, several are listed, and nothing is imported."""

from pathlib import Path

import pytest

from attnbench.plugins.file_objects import read_name
from attnbench.plugins.registry import PluginError

KERNEL = (
    "import nothing_like_this\n\ndef attend(q, k, v, *, scale=None):\n    return v\n\ndef _helper(a, b, c):\n    pass\n"
)
MODULE = "import torch\n\nclass Mine(torch.nn.MultiheadAttention):\n    pass\n\nclass Options:\n    size = 3\n"
OWN = "class Own(Implementation):\n    def build(self, reference):\n        return reference\n\nOWN = Own()\n"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (KERNEL, "attend"),
        (MODULE, "Mine"),
        ("class Loop:\n    def forward(self, query, key, value):\n        return value\n", "Loop"),
        (OWN, "OWN"),
        (KERNEL + "MADE = from_kernel(attend)\n", "MADE"),
        (KERNEL + MODULE + "__all__ = ['Mine']\n", "Mine"),
        ("def rotate(x, angle):\n    return x\n" + KERNEL, "attend"),
    ],
)
def test_the_only_object_that_could_be_meant_is_taken(tmp_path: Path, source: str, found: str) -> None:
    """A function of three tensors, a module class, or what the file makes of them; the file is not imported."""
    (tmp_path / "file.py").write_text(source)
    assert read_name(f"{tmp_path}/file.py") == f"{tmp_path}/file.py:{found}"


def test_a_file_of_a_source_tree_is_completed(tmp_path: Path) -> None:
    """The object of a file is also found where a source tree is named."""
    (tmp_path / "file.py").write_text(KERNEL)
    assert read_name(f"{tmp_path}/file.py @ {tmp_path}") == f"{tmp_path}/file.py:attend @ {tmp_path}"


def test_other_names_stay(tmp_path: Path) -> None:
    """Registered names and complete names are not changed, and are checked."""
    (tmp_path / "file.py").touch()
    for name in ("sdpa", "package.module:x", f"{tmp_path}/file.py:x", f"{tmp_path}/file.py:x @ {tmp_path}"):
        assert read_name(name) == name
    for name in ("sdpaa", f"{tmp_path}/none.py:x", "x @ nowhere"):
        with pytest.raises(PluginError):
            read_name(name)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (KERNEL + MODULE, "several objects that could be meant; name one: {file}:attend, {file}:Mine"),
        ("def rotate(x, angle):\n    return x\n", "no function of queries, keys and values"),
        ("def attend(q, k\n", "{file} is no Python source"),
        (None, "no such file: {file}"),
    ],
)
def test_a_file_that_leaves_a_choice_is_one_line(tmp_path: Path, source: str | None, message: str) -> None:
    """The message lists the objects, or says what the file lacks."""
    file = tmp_path / "file.py"
    if source is not None:
        file.write_text(source)
    with pytest.raises(PluginError) as raised:
        read_name(str(file))
    assert message.format(file=file) in str(raised.value)
    assert "\n" not in str(raised.value)
