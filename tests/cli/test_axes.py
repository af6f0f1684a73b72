"""Tests of the options that choose sizes and masks of timed calls."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from attnbench.api import before_timing
from attnbench.api.before_timing import describe_timing
from attnbench.cases import Case, CaseId, Shape
from attnbench.cli import attnbench
from attnbench.jobs.axes import MODELS
from attnbench.jobs.errors import JobError
from attnbench.jobs.job import ProfileJob
from attnbench.operators.multihead import Multihead
from attnbench.plugins.registry import load_operator
from attnbench.processes.oracle_requests import ListShapes
from attnbench.processes.request import Fault
from attnbench.records.run_file import find_runs, read_run
from attnbench.runner import Effort, Limits, Session, list_gating_checks, list_profile_cases
from attnbench.workers.oracle_worker import OracleWorker

WHOLE = "multihead/B1.L8.S8.E256.H4/bias+self_attention/mask=none/regime=plain/seed=0/float32/cpu/inference"


def invoke(*words: str) -> Any:
    """Run an attnbench command in this process, and return its result; a usage error is raised as an exception."""
    return CliRunner().invoke(attnbench, words, standalone_mode=False, catch_exceptions=False)


def choose(**given: Any) -> ProfileJob:
    """Return the job with these sizes."""
    return ProfileJob(**{"lengths": (128,), **given})


def test_axes_are_multiplied() -> None:
    """Every combination of the values of all options is a shape."""
    job = choose(batch=(1, 8), heads=(12,), head_dim=(64, 128), mask=("none", "causal"), lengths=(77, (1, 512)))
    shapes = job.make_shapes()
    assert len(set(shapes)) == 2 * 2 * 2 * 2
    assert Shape(batch=8, heads=12, head_dim=128, mask="causal", queries=1, keys=512) in shapes
    assert {(shape.queries, shape.keys) for shape in shapes} == {(77, 77), (1, 512)}


def test_a_width_is_divided_among_the_heads() -> None:
    """--width is the width of all heads together; each number of heads must divide it."""
    (shape,) = choose(width=(768,), heads=(12,)).make_shapes()
    assert (shape.heads, shape.head_dim) == (12, 64)
    with pytest.raises(JobError, match="768 cannot be divided among 5 heads; name another heads"):
        choose(width=(768,), heads=(5,))
    with pytest.raises(JobError, match="width and head_dim exclude one another"):
        choose(width=(768,), head_dim=(64,))


@pytest.mark.parametrize("name", MODELS)
def test_a_model_gives_the_sizes_that_no_option_gives(name: str) -> None:
    """--like sets heads, their width, mask and lengths; an option overrides mask and lengths, and may repeat a size."""
    model = MODELS[name]
    shapes = choose(like=name, lengths=()).make_shapes()
    sizes = {(one.heads, one.kv_heads, one.head_dim, one.mask) for one in shapes}
    assert sizes == {(model.heads, model.kv_heads, model.head_dim, model.mask)}
    assert tuple(one.queries for one in shapes) == model.lengths
    overridden = choose(like=name, width=(model.heads * model.head_dim,), mask=("none",), lengths=(5,))
    (shape,) = overridden.make_shapes()
    assert (shape.heads, shape.head_dim, shape.mask, shape.queries) == (model.heads, model.head_dim, "none", 5)
    for axis in ("heads", "head_dim", "kv_heads", "width"):
        with pytest.raises(JobError, match=f"{name} has .*, got 3; leave out .*, or like"):
            choose(like=name, **{axis: (3,)})
    operator = load_operator("multihead" if model.kv_heads is None else "attention_core")
    for shape in shapes:
        assert [case.mode for case in operator.shape_cases(shape)] == ["inference", "train"]


def test_without_an_option_the_profile_is_as_before() -> None:
    """Lengths alone choose nothing else, unless there are other numbers of keys than of queries."""
    assert not choose(lengths=(128, 256)).chooses_shapes
    assert choose(lengths=((1, 256),)).chooses_shapes
    assert choose(batch=(2,)).chooses_shapes


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
        ("multihead", "floatcausal", "floatcausal"),
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
    assert case.problem.is_causal == (operator == "multihead" and mask in ("causal", "floatcausal"))


@pytest.mark.parametrize(
    ("operator", "mask", "own"),
    [
        ("multihead", "none", "pad"),
        ("multihead", "padding", "pad"),
        ("multihead", "causal", "causal+pad"),
        ("attention_core", "none", "ragged"),
        ("attention_core", "causal", "causal_br+ragged"),
    ],
)
def test_a_share_of_padding_is_part_of_the_case(operator: str, mask: str, own: str) -> None:
    """A share of padding adds padding to the mask, and its case differs from the case without a share."""
    cases = [
        load_operator(operator).shape_cases(Shape(queries=5, keys=5, batch=4, mask=mask, padding=share))[0]
        for share in (0.0, 0.3, 0.5)
    ]
    assert [case.problem.padding for case in cases] == [0.0, 0.3, 0.5]
    assert len({case.id for case in cases}) == 3
    assert cases[1].problem.mask == own
    assert type(cases[1].problem).parse(cases[1].problem.id()) == cases[1].problem


def test_an_operator_without_padding_refuses_a_share(tmp_path: Path) -> None:
    """An operator that makes cases without the share of the shape is refused, and not timed without padding."""

    class Deaf(Multihead):
        def shape_cases(self, shape: Shape) -> Sequence[Case]:
            return super().shape_cases(replace(shape, padding=0.0))

    worker = OracleWorker(tmp_path, lambda _: Deaf())
    shapes = [Shape(queries=5, keys=5, batch=4, padding=share) for share in (0.0, 0.3)]
    assert isinstance(worker.list_shapes(ListShapes(operator="multihead", shapes=shapes[:1], modes=["train"])), list)
    refused = worker.list_shapes(ListShapes(operator="multihead", shapes=shapes, modes=["train"]))
    assert refused == Fault(reason="the operator has no batches with a share of padding, got 0.3")


def test_only_the_chosen_passes_need_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shape whose gradients do not fit is listed without them."""
    worker = OracleWorker(tmp_path)
    # 4 × 100 × 100 pairs take 2.56 MB without gradients, and 3.84 MB with gradients.
    monkeypatch.setattr("attnbench.workers.oracle_worker.read_available_memory_bytes", lambda: 3_000_000)
    shapes = [Shape(queries=100, keys=100)]
    assert len(worker.list_shapes(ListShapes(operator="multihead", shapes=shapes, modes=["inference"]))) == 1  # type: ignore[arg-type]
    refused = worker.list_shapes(ListShapes(operator="multihead", shapes=shapes, modes=["train"]))
    assert isinstance(refused, Fault)
    assert "needs about 0.00358 GiB of memory, but only 0.00279 GiB are free" in refused.reason


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--kv-heads", "2"), "MultiheadAttention has as many key heads as heads, got 2; the operator "),
        (("--mask", "other"), "multihead: unknown mask 'other'"),
        (("--lengths", "8", "--case", WHOLE), "--case: a complete case id has its own sizes: leave out --lengths"),
        (("--padding", "0.3", "--batch", "1,8"), "--padding: a batch of one sequence has no padding"),
        (("--padding", "0.3", "--batch", "8", "--mask", "padholes"), "mask must be an attn_mask, a key_padding_mask"),
        (("--heads", "12", "--kv-heads", "5"), "--kv-heads: 12 heads cannot be divided among 5 key heads"),
        (("--lengths", "5", "--shard", "9/9"), "nothing to run"),
        (("--threads", "0"), "needs whole numbers of at least 1"),
        (("--threads", "1,100000"), "--threads: needs numbers of at most "),
        (("--threads", "1,2", "--json", "x.json"), "--json: each number of threads is a run of its own"),
        (("--batch", "2", "--lengths", "1000000"), "computing the expected values needs about 4.77e+05 GiB of memory"),
        (("--lengths", "1000000"), "computing the expected values needs about 2.38e+05 GiB of memory"),
        (("--width", "4000000", "--lengths", "2"), "in float64, of which expected values are computed, take at least"),
        (("--width", "1024", "--lengths", "2", "--memory-limit", "16MiB"), "over the limit of 0.0156 GiB"),
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


@pytest.mark.extended
@pytest.mark.parametrize(
    ("busy", "told"), [(0.2, ""), (1.4, "; other work keeps 1.4 of 2 cores busy: expect more time and fewer verdicts")]
)
def test_a_busy_machine_is_told_before_anything_is_timed(
    busy: float, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line about the time says how many cores other work keeps busy, unless there is hardly any."""
    monkeypatch.setattr(before_timing, "observe_busy_cores", lambda seconds: busy)
    monkeypatch.setattr(before_timing, "count_cores", lambda: 2)
    with Session(limits=Limits(threads=1)) as session:
        plans = session.plan(list_profile_cases(session, [8], ["forward"]), list_gating_checks())
        line = describe_timing(session, [], plans, Effort(processes=7, budget_s=0.3), choose(lengths=(8,)))
    assert "on a quiet machine" in line
    assert ("other work" in line) == bool(told)
    assert told in line


@pytest.mark.extended
def test_the_chosen_shapes_are_timed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A profile times every chosen shape, and nothing else; it says before how many cases there are."""
    words = (
        "--batch", "2", "--heads", "3", "--head-dim", "8", "--lengths", "5,1:7", "--mask", "none,causal", "--padding",
        "0.3", "--passes", "forward", "--processes", "1", "--threads", "1", "--results", str(tmp_path),
    )  # fmt: skip
    done = invoke("profile", "sdpa", *words)
    assert done.exit_code == 0, done.output
    told = next(line for line in (done.stderr + capfd.readouterr().err).splitlines() if line.startswith("to time: "))
    assert told.startswith("to time: 4 cases, 2 implementations, 1 process, 1 thread: about ")
    assert told.endswith("; padding comes out as 0.3 for 0.3 of 2 × 5, 0.2857 for 0.3 of 2 × 7")
    (path,) = find_runs(tmp_path, [])
    timed = {CaseId.parse(result.case).problem for result in read_run(path).results if result.timing}
    assert timed == {
        f"B2.{sizes}.E24.H3/bias+batch_first+{alias}{causal}+padding=0.3/mask={mask}/regime=plain/seed=0"
        for sizes, alias in (("L5.S5", "self_attention"), ("L1.S7", "key_is_value"))
        for mask, causal in (("pad", ""), ("causal+pad", "+is_causal"))
    }
