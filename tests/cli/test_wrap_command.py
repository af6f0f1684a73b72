"""Tests of ``attnbench wrap``, and of the line that ``conform`` prints before a suite."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import brought_attention as brought
from attnbench.cases import Case
from attnbench.operators.multihead.problem import MultiheadProblem
from attnbench.plugins.adapters import adopt
from attnbench.processes.convention_requests import FunctionProposal, ModuleProposal, NoConvention
from attnbench.words.conventions import describe_proposal
from attnbench.words.wrappers import write_wrapper
from attnbench.workers.trial import find_convention
from commands import run_command
from conftest import Conformance

# Cases of which each wrapper computes at least one.
CASES = [
    Case(operator="multihead", problem=problem, mode="train")
    for problem in (
        MultiheadProblem(
            batch=2, queries=5, keys=5, embed_dim=24, num_heads=3, bias=True, self_attention=True,
            batch_first=batch_first, mask=mask, is_causal=mask == "causal",
        )
        for mask in ("none", "causal", "pad")
        for batch_first in (True, False)
    )
]  # fmt: skip
HUGGING_FACE = "transformers.models.bert.modeling_bert:BertSelfAttention"


@pytest.mark.parametrize(
    "name", ["flash_style", "loop_style", "keeping_style", "Block", "Learned", "ImageStyle", HUGGING_FACE]
)
def test_what_is_printed_conforms_without_an_edit(name: str, conformance: Conformance) -> None:
    """A function in flash-attention's layout, a GPT's block, and classes of learners, Hugging Face and timm."""
    place, _, own = (name if ":" in name else f"brought_attention:{name}").rpartition(":")
    module = pytest.importorskip(place)
    thing = getattr(module, own)
    found = find_convention(thing, adopt(thing, name))
    assert isinstance(found, FunctionProposal | ModuleProposal)
    source = write_wrapper(f"{place}:{own}", found)
    assert len([line for line in source.splitlines() if line]) < 15
    made: dict[str, object] = {}
    exec(source, made)  # the source was just written
    implementation = list(made.values())[-1]
    supported = [case for case in CASES if implementation.unsupported(case) is None]  # type: ignore[attr-defined]
    assert supported
    for case in supported:
        for check in ("forward_parity", "input_gradients", "parameter_gradients"):
            assert conformance.finding(implementation, case, check).status == "passed"  # type: ignore[arg-type]


def test_a_printed_file_is_checked(tmp_path: Path) -> None:
    """``wrap`` prints a file, and the run of the object itself names the command before the suite."""
    shutil.copy(brought.__file__, tmp_path)
    done = run_command("wrap", "brought_attention.py:loop_style", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout == (
        "from attnbench.kernel import Convention, from_kernel\n"
        "from brought_attention import loop_style\n"
        "\n"
        "LOOP_STYLE = from_kernel(\n"
        "    loop_style,\n"
        '    convention=Convention(layout="folded"),\n'
        ")\n"
    )
    printed = done.stdout
    for code in (0, 2):
        done = run_command("wrap", "brought_attention.py:loop_style", "--output", "wrapped.py", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr == "attnbench: --output: wrapped.py exists: name another file\n"
    assert (tmp_path / "wrapped.py").read_text(encoding="utf-8") == printed
    case = str(CASES[0].id)
    done = run_command("conform", "wrapped.py", "--case", case, cwd=tmp_path)
    assert "gives the right result" not in done.stderr
    assert "fails" not in done.stderr
    assert done.returncode == 0
    done = run_command("conform", "brought_attention.py:loop_style", "--case", case, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(
        "brought_attention.py:loop_style gives the right result if its tensors are (batch·heads, sequence, width): "
        "attnbench wrap brought_attention.py:loop_style prints the file that declares it\n"
    )


def test_what_is_not_understood_is_told_with_a_draft(tmp_path: Path) -> None:
    """What was seen goes to standard error, a draft to standard output; the exit code is 1."""
    (tmp_path / "odd.py").write_text(
        "from torch import nn\n\n\nclass Odd(nn.Module):\n    def __init__(self, spam, eggs):\n"
        "        super().__init__()\n"
        "\n    def forward(self, x):\n        return x\n",
        encoding="utf-8",
    )
    done = run_command("wrap", "odd.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "could not be constructed" in done.stderr
    assert "its constructor's arguments: spam, eggs" in done.stderr
    compile(done.stdout, "draft", "exec")
    assert "# To edit: it could not be constructed" in done.stdout


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sdpa", "NAME must be path/to/file.py:attribute or package.module:attribute, got 'sdpa'"),
        ("none.py:own", "no such file: none.py"),
        ("torch.nn.functional:scaled_dot_product_attention", "has no signature to read its arguments from"),
    ],
)
def test_a_name_that_cannot_be_wrapped_is_one_line(name: str, message: str, tmp_path: Path) -> None:
    """A registered name, a file that does not exist, and a function without a signature."""
    done = run_command("wrap", name, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_wrong_module_gets_a_draft_by_its_likeliest_convention() -> None:
    """The draft has the layers by name, the tokens and the causality, so that the suite can say what is wrong."""

    class Unscaled(brought.Block):
        def forward(self, x: Any) -> Any:
            return super().forward(x) * 1.5

    found = find_convention(Unscaled, adopt(Unscaled, "wrong"))
    assert describe_proposal("wrong.py:Unscaled", found) == (
        "wrong.py:Unscaled needs a declaration: no usual call of it gives the result of attention; attnbench wrap "
        "wrong.py:Unscaled prints a draft"
    )
    assert isinstance(found, NoConvention)
    source = write_wrapper("wrong.py:Unscaled", found)
    assert "# To edit: no usual call of it gives the result of attention." in source
    assert '{"qkv": "c_attn", "out": "c_proj"}, tokens=("query",), causal_only=True' in source


def test_what_is_called_as_it_is_is_left_to_the_suite() -> None:
    """A wrong function of queries, keys and values needs no declaration."""

    def doubled(q: Any, k: Any, v: Any) -> Any:
        return 2 * brought.hiding_style(q, k, v)

    assert describe_proposal("wrong", find_convention(doubled, adopt(doubled, "wrong"))) is None


def test_what_is_never_passed_is_named() -> None:
    """A parameter with a default that no keyword stands for."""

    def windowed(xq: Any, xk: Any, xv: Any, is_decoder: Any = False, window: Any = None) -> Any:
        return brought.flash_style(xq, xk, xv, causal=is_decoder)

    found = find_convention(windowed, adopt(windowed, "windowed"))
    assert isinstance(found, FunctionProposal)
    assert found.convention.names == {"is_causal": "is_decoder"}
    assert "# Never passed, and so not checked: window.\n" in write_wrapper("kernels.py:windowed", found)
