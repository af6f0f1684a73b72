"""Tests of the options that choose sizes and masks of timed calls."""

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from attnbench.api.axes import MODELS, Axes
from attnbench.cases import CaseId, Shape
from attnbench.cli import attnbench
from attnbench.cli.options import AXES
from attnbench.plugins.registry import load_operator
from attnbench.records.run_file import find_runs, read_run

NOTHING: dict[str, Any] = {**dict.fromkeys(AXES), "masks": None, "lengths": None}


def invoke(*words: str) -> Any:
    """Run an attnbench command in this process, and return its result; a usage error is raised as an exception."""
    return CliRunner().invoke(attnbench, words, standalone_mode=False, catch_exceptions=False)


def choose(**given: Any) -> Axes:
    """Return the axes of these options."""
    return Axes.from_options(NOTHING | given, lengths=(128,))


def test_axes_are_multiplied() -> None:
    """Every combination of the values of all options is a shape."""
    axes = choose(batch=(1, 8), heads=(12,), head_dim=(64, 128), masks=("none", "causal"), lengths=(77, (1, 512)))
    shapes = axes.make_shapes()
    assert len(set(shapes)) == 2 * 2 * 2 * 2
    assert Shape(batch=8, heads=12, head_dim=128, mask="causal", queries=1, keys=512) in shapes
    assert {(shape.queries, shape.keys) for shape in shapes} == {(77, 77), (1, 512)}


def test_a_width_is_divided_among_the_heads() -> None:
    """--width is the width of all heads together; each number of heads must divide it."""
    (shape,) = choose(width=(768,), heads=(12,)).make_shapes()
    assert (shape.heads, shape.head_dim) == (12, 64)
    with pytest.raises(click.UsageError, match="768 cannot be divided among 5 heads; name another --heads"):
        choose(width=(768,), heads=(5,)).make_shapes()
    with pytest.raises(click.UsageError, match="--width and --head-dim exclude one another"):
        choose(width=(768,), head_dim=(64,))


@pytest.mark.parametrize("name", MODELS)
def test_a_model_gives_the_sizes_that_no_option_gives(name: str) -> None:
    """--like sets heads, their width, mask and lengths; an option overrides each of them."""
    model = MODELS[name]
    axes = choose(like=name)
    assert (axes.heads, axes.head_dim, axes.masks, axes.lengths) == (
        (model.heads,), (model.head_dim,), (model.mask,), model.lengths,
    )  # fmt: skip
    assert choose(like=name, heads=(2,), lengths=(5,)).make_shapes()[0].heads == 2
    operator = load_operator("multihead" if model.kv_heads is None else "attention_core")
    for shape in axes.make_shapes():
        assert [case.mode for case in operator.shape_cases(shape)] == ["inference", "train"]


def test_without_an_option_the_profile_is_as_before() -> None:
    """Lengths alone choose nothing else, unless there are other numbers of keys than of queries."""
    assert not choose(lengths=(128, 256)).chosen
    assert choose(lengths=((1, 256),)).chosen
    assert choose(batch=(2,)).chosen


@pytest.mark.parametrize(
    ("operator", "shape", "problem"),
    [
        ("multihead", Shape(queries=7, keys=7, batch=8, heads=12), "B8.L7.S7.E768.H12/bias+batch_first+self_attention"),
        ("multihead", Shape(queries=1, keys=7, heads=2, head_dim=8), "B1.L1.S7.E16.H2/bias+batch_first+key_is_value"),
        ("attention_core", Shape(queries=7, keys=7, heads=8, kv_heads=2), "B1.H8.K2.L7.S7.D64/-"),
    ],
)
def test_an_operator_makes_cases_of_a_shape(operator: str, shape: Shape, problem: str) -> None:
    """The cases have the sizes of the shape; with as many queries as keys, multihead has self-attention."""
    forward, backward = load_operator(operator).shape_cases(shape)
    assert forward.id == f"{operator}/{problem}/mask=none/regime=plain/seed=0/float32/cpu/inference"
    assert backward.mode == "train"


@pytest.mark.parametrize(
    ("operator", "mask", "own"),
    [
        ("multihead", "causal", "causal"),
        ("multihead", "padding", "pad"),
        ("multihead", "float", "float2d"),
        ("multihead", "bool3d", "bool3d"),
        ("attention_core", "causal", "causal_br"),
        ("attention_core", "padding", "ragged"),
    ],
)
def test_masks_have_names_that_operators_share(operator: str, mask: str, own: str) -> None:
    """A mask is named by a word that operators share, or as in the ids of cases."""
    case, _ = load_operator(operator).shape_cases(Shape(queries=5, keys=5, mask=mask))
    assert case.problem.mask == own
    assert case.problem.is_causal == (operator == "multihead" and mask == "causal")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--heads", "5", "--width", "64"), "--width: 64 cannot be divided among 5 heads"),
        (("--kv-heads", "2"), "multihead: torch.nn.MultiheadAttention has as many key heads as heads, got 2"),
        (("--mask", "other"), "multihead: unknown mask 'other'"),
        (("--mask", "none,,causal"), "needs words, separated by commas"),
        (("--lengths", "1:2:3"), "or 1:512 for one query and 512 keys"),
        (("--batch", "0"), "needs whole numbers of at least 1"),
        (
            ("--batch", "2", "--case",
             "multihead/B1.L8.S8.E256.H4/bias+self_attention/mask=none/regime=plain/seed=0/float32/cpu/inference"),
            "--case: a complete case id has its own sizes",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_timed_is_refused_before_anything_is_measured(
    tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    """A size or a mask that does not exist is refused in one line, and no run file is written."""
    with pytest.raises(click.UsageError) as raised:
        invoke("profile", "sdpa", *words, "--results", str(tmp_path / "results"))
    assert message in raised.value.format_message()
    assert "\n" not in raised.value.format_message()
    assert not list(tmp_path.rglob("*.jsonl"))


def test_the_chosen_shapes_are_timed(tmp_path: Path) -> None:
    """A profile times every chosen shape, and nothing else."""
    words = ("--batch", "2", "--heads", "3", "--head-dim", "8", "--lengths", "5,1:7", "--mask", "none,padding")
    done = invoke(
        "profile",
        "sdpa",
        *words,
        "--passes",
        "forward",
        "--processes",
        "1",
        "--threads",
        "1",
        "--results",
        str(tmp_path),
    )
    assert done.exit_code == 0, done.output
    (path,) = find_runs(tmp_path, [])
    timed = {CaseId.parse(result.case).problem for result in read_run(path).results if result.timing}
    ends = {f"mask={mask}/regime=plain/seed=0" for mask in ("none", "pad")}
    assert timed == {
        f"B2.{sizes}.E24.H3/bias+batch_first+{alias}/{end}"
        for sizes, alias in (("L5.S5", "self_attention"), ("L1.S7", "key_is_value"))
        for end in ends
    }
