"""Tests of ``attnbench verify``: files of other programs, right and wrong, and files that cannot be judged."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from attnbench.testing.array_file import read_call_file
from attnbench.testing.assertions import judge_call
from commands import run_command

Q, K, V = (torch.randn(2, 3, 6, 8, generator=torch.Generator().manual_seed(seed)).requires_grad_() for seed in range(3))
OUTPUT = scaled_dot_product_attention(Q, K, V, is_causal=True)
COTANGENT = torch.randn(2, 3, 6, 8, generator=torch.Generator().manual_seed(3))
GRADIENTS = torch.autograd.grad(OUTPUT, (Q, K, V), COTANGENT)
ARRAYS = {"q": Q.detach(), "k": K.detach(), "v": V.detach(), "output": OUTPUT.detach()}
MORE = {"cotangent": COTANGENT} | {f"grad.{name}": one for name, one in zip("qkv", GRADIENTS, strict=True)}


def write(path: Path, arrays: dict[str, Any], **header: Any) -> Path:
    """Write arrays and a header as npz or safetensors, by the suffix of the path."""
    text = json.dumps({"is_causal": True} | header)
    if path.suffix == ".npz":
        np.savez(path, header=np.array(text), **{name: np.asarray(one) for name, one in arrays.items()})
    else:
        save_file = pytest.importorskip("safetensors.torch").save_file
        save_file({name: one.contiguous() for name, one in arrays.items()}, path, metadata={"attention": text})
    return path


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("more", [{}, MORE])
def test_an_output_in_a_file_is_judged(tmp_path: Path, suffix: str, more: dict[str, Any]) -> None:
    """Outputs and gradients are judged as by the assertion; the exit code is that of the verdict."""
    right = write(tmp_path / f"right{suffix}", ARRAYS | more)
    assert judge_call(**read_call_file(right)) == ()
    wrong = write(tmp_path / f"wrong{suffix}", ARRAYS | more, is_causal=False)
    assert judge_call(**read_call_file(wrong))


def test_the_command_says_right_or_wrong(tmp_path: Path) -> None:
    """Exit code 0 for a right output, 1 and the diagnosis for a wrong one, 2 and one line for an unusable file."""
    done = run_command("verify", str(write(tmp_path / "right.npz", ARRAYS)), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'right.npz'}: right\n")
    done = run_command("verify", str(write(tmp_path / "wrong.npz", ARRAYS, scale=0.5)), cwd=tmp_path)
    assert done.returncode == 1
    assert "wrong. " in done.stdout
    assert "looks like the scale 1/√head_dim in place of the given scale" in done.stdout
    done = run_command("verify", "none.npz", cwd=tmp_path)
    assert done.returncode == 2
    assert "none.npz cannot be read: No such file or directory" in done.stderr


def test_dtypes_that_numpy_lacks_are_stored_as_bits(tmp_path: Path) -> None:
    """Arrays of 16 bits get the header's dtype."""
    narrow = [one.detach().bfloat16() for one in (Q, K, V)]
    output = scaled_dot_product_attention(*narrow, is_causal=True)
    bits = {name: one.view(torch.uint16).numpy() for name, one in zip(ARRAYS, [*narrow, output], strict=True)}
    assert judge_call(**read_call_file(write(tmp_path / "bits.npz", bits, dtype="bfloat16"))) == ()
    with pytest.raises(ValueError, match=r"q is stored as bits \(uint16\), so the header needs a dtype of this size"):
        read_call_file(write(tmp_path / "unknown.npz", bits))
    with pytest.raises(ValueError, match=r"got float8_e5m2"):
        read_call_file(write(tmp_path / "narrow.npz", bits, dtype="float8_e5m2"))


@pytest.mark.parametrize(
    ("arrays", "header", "message"),
    [
        ({name: ARRAYS[name] for name in "qkv"}, {}, "it lacks output"),
        (ARRAYS | {"w": Q.detach()}, {}, "has an unknown array 'w'"),
        (ARRAYS, {"causal": True}, "has 'causal'; available: dtype, layout"),
        (ARRAYS | {"q": np.array(["a"])}, {}, "q has the unknown dtype <U1"),
    ],
)
def test_unusable_content_is_one_line(tmp_path: Path, arrays: Any, header: dict[str, Any], message: str) -> None:
    """The message names the array or the entry of the header."""
    with pytest.raises(ValueError, match=r".") as raised:
        read_call_file(write(tmp_path / "file.npz", arrays, **header))
    assert message in str(raised.value)


def test_unusable_files_are_one_line(tmp_path: Path) -> None:
    """A file of another kind, one that was cut, and one without a header are told apart."""
    whole = write(tmp_path / "whole.npz", ARRAYS).read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "cut.safetensors").write_bytes(b"\x10")
    np.savez(tmp_path / "headless.npz", **{name: np.asarray(one) for name, one in ARRAYS.items()})
    np.savez(tmp_path / "list.npz", header=np.array("[1]"))
    np.savez(tmp_path / "text.npz", header=np.array("causal"))
    for name, message in {
        "cut.npz": "is not a whole npz file",
        "cut.safetensors": "is not a whole safetensors file",
        "headless.npz": "needs a header, a JSON object",
        "list.npz": "must be a JSON object, got [1]",
        "text.npz": "must be a JSON object: ",
        "array.pt": "must be a file .npz or .safetensors",
    }.items():
        with pytest.raises(ValueError, match=r".") as raised:
            read_call_file(tmp_path / name)
        assert message in str(raised.value)
