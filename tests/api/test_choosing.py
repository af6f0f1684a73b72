"""Tests of ``attnbench.choose``, ``attnbench.load`` and ``attnbench.results``."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import torch

import attnbench
from attnbench.analysis.dispatch import Dispatch, DispatchCell, NoChoiceError, Offer, encode_dispatch, read_dispatch
from attnbench.analysis.stats import Interval
from attnbench.analysis.summarize import summarize
from attnbench.plugins.registry import PluginError
from attnbench.records.run_file import ResultsError, read_run
from attnbench.report.dispatch import make_dispatch

ROOT = Path(__file__).parents[2]
EXAMPLE, MAP = sorted((ROOT / "results" / "example").glob("*.jsonl"))


def make_offer(name: str, **others: Any) -> Offer:
    """Make an offer whose time over that of another one is at most that in ``BOUNDS``; the reference takes 1000 ns."""
    time_ns = TIMES_NS[name]
    value = time_ns / 1000
    ratio = None if name == "torch_mha" else Interval(value=value, low=value * 0.99, high=value * 1.01)
    over: dict[str, float | None] = {other: 1.01 * time_ns / its for other, its in TIMES_NS.items() if other != name}
    return Offer(name=name, time_ns=time_ns, ratio=ratio, over=over, run="run-1", refusals_known=True, **others)


TIMES_NS = {"quick": 500.0, "own": 800.0, "torch_mha": 1000.0}
REFERENCE = make_offer("torch_mha")
CELL = DispatchCell(
    machine="here", device="cpu", dtype="float32", threads=2, case="case-1", passes="forward", queries=128, keys=128,
    batch=8, heads=12, kv_heads=12, head_dim=64, reference="torch_mha", processes=10,
    offers=(make_offer("quick", refused=("weights",), line=7), make_offer("own", suite="core", checked=25), REFERENCE),
)  # fmt: skip


def write(folder: Path, *cells: DispatchCell) -> Path:
    """Write a dispatch file with these cells."""
    (folder / "dispatch.json").write_bytes(encode_dispatch(Dispatch(cells=list(cells))))
    return folder


def test_the_choice_comes_with_its_bound_and_evidence(tmp_path: Path) -> None:
    """The choice has the ratio to the reference, the bound over all others, and the line of its timing."""
    choice = attnbench.choose(write(tmp_path, CELL), queries=128, machine="here")
    assert (choice.name, choice.run, choice.line, choice.case) == ("quick", "run-1", 7, "case-1")
    assert (choice.regret, choice.behind, choice.decided, choice.processes) == (0.0, "own", True, 10)
    assert choice.ratio is not None
    assert choice.ratio.value == pytest.approx(0.5)
    expected = "quick: 50 % faster than torch_mha (50 to 50 %), not behind any other [run-1 line 7: case-1, 2 threads]"
    assert str(choice) == expected


def test_what_is_needed_is_not_refused(tmp_path: Path) -> None:
    """An implementation that refuses a needed feature, or of which this is not known, is no choice."""
    source = write(tmp_path, CELL)
    choice = attnbench.choose(source, queries=128, machine="here", needs=("weights",))
    assert (choice.name, choice.suite, choice.checked) == ("own", "core", 25)
    assert attnbench.choose(source, queries=128, machine="here", needs="weights").name == "own"
    unknown = replace(CELL.offers[1], refusals_known=False)
    write(tmp_path, replace(CELL, offers=(CELL.offers[0], unknown, REFERENCE)))
    choice = attnbench.choose(source, queries=128, machine="here", needs=("weights",))
    assert (choice.name, choice.unbounded) == ("torch_mha", "alone")


def test_the_choice_has_the_smallest_worst_case(tmp_path: Path) -> None:
    """Not the smallest time decides, but the smallest of the largest bounds over all others."""
    first = replace(CELL.offers[0], over={"own": 1.06, "torch_mha": 1.2})
    second = replace(CELL.offers[1], over={"quick": 1.02, "torch_mha": 1.03})
    source = write(tmp_path, replace(CELL, offers=(first, second, REFERENCE)))
    choice = attnbench.choose(source, queries=128, machine="here")
    assert (choice.name, choice.behind, choice.decided) == ("own", "torch_mha", False)
    assert choice.regret == pytest.approx(0.03)


def test_a_bound_that_is_too_large_raises_or_gives_the_fallback(tmp_path: Path) -> None:
    """With ``regret``, a choice that may be further behind is none; ``fallback`` names what is used then."""
    second = replace(CELL.offers[1], over={"torch_mha": 1.03})
    source = write(tmp_path, replace(CELL, offers=(second, replace(REFERENCE, over={"own": 1.3}))))
    assert attnbench.choose(source, queries=128, machine="here", regret=0.05).name == "own"
    with pytest.raises(NoChoiceError, match=r"regret must be at most 1 %, but own is up to 3 % slower than torch_mha"):
        attnbench.choose(source, queries=128, machine="here", regret=0.01)
    choice = attnbench.choose(source, queries=128, machine="here", regret=0.01, fallback="torch_mha")
    assert (choice.name, choice.regret, choice.unbounded) == ("torch_mha", None, "fallback")
    assert attnbench.choose(source, queries=128, machine="here", regret=0.01, fallback="mine").run == ""


def test_without_bounds_the_smallest_time_is_the_choice(tmp_path: Path) -> None:
    """Where processes were disturbed, or the A/A control failed, the choice says that it has no bound, and why."""
    offers = tuple(replace(one, over=dict.fromkeys(one.over)) for one in CELL.offers)
    for control_failed, why in ((False, "disturbed"), (True, "control")):
        source = write(tmp_path, replace(CELL, offers=offers, control_failed=control_failed))
        choice = attnbench.choose(source, queries=128, machine="here")
        assert (choice.name, choice.regret, choice.unbounded) == ("quick", None, why)
        with pytest.raises(NoChoiceError, match="has no bound"):
            attnbench.choose(source, queries=128, machine="here", regret=0.5)


def test_a_choice_among_unchecked_implementations_says_so(tmp_path: Path) -> None:
    """Where none is known to conform, the choice is among those that fail no check."""
    choice = attnbench.choose(write(tmp_path, replace(CELL, conforming=False)), queries=128, machine="here")
    assert (choice.name, choice.conforming) == ("quick", False)


def test_a_call_on_which_nothing_may_be_chosen_has_no_choice(tmp_path: Path) -> None:
    """If every timed implementation fails checks, the file has the call without offers."""
    with pytest.raises(NoChoiceError, match="nothing that may be chosen was timed on case-1"):
        attnbench.choose(write(tmp_path, replace(CELL, offers=())), queries=128, machine="here")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"queries": 200}, "nothing was timed at queries=200; the nearest that was: batch=8, queries=256"),
        ({"queries": 100, "batch": 7}, "the nearest that was: batch=8, queries=128, keys=128 (case-1)"),
        ({"queries": 128, "dtype": "bfloat16"}, "nothing was timed with dtype='bfloat16'; measured: 'float32'"),
        ({"queries": 128, "machine": "there"}, "nothing was timed with machine='there'; measured: 'here'"),
        ({"queries": 128, "machine": None}, "nothing was timed with machine="),
        ({"queries": 128, "heads": 16}, "nothing was timed with heads=16; measured: 12"),
    ],
)
def test_a_call_that_was_not_timed_is_not_answered(tmp_path: Path, asked: dict[str, Any], message: str) -> None:
    """The error names what was measured and the nearest call; nothing is interpolated."""
    source = write(tmp_path, CELL, replace(CELL, queries=256, keys=256, case="case-2"))
    with pytest.raises(NoChoiceError) as raised:
        attnbench.choose(source, **({"machine": "here"} | asked))
    assert message in str(raised.value)


OTHERS = {
    "keys": 512, "batch": 16, "heads": 24, "kv_heads": 3, "head_dim": 32, "dtype": "bfloat16",
    "passes": "forward+backward", "mask": "causal", "device": "cuda", "threads": 1,
}  # fmt: skip


@pytest.mark.parametrize(("argument", "other"), OTHERS.items())
def test_what_is_left_out_is_taken_from_the_run_if_it_is_unique_there(
    tmp_path: Path, argument: str, other: object
) -> None:
    """A run of one dtype, for example, is asked without a dtype; of a run of two, the error names both."""
    apart = replace(CELL, case="case-2", **{argument: other})
    assert attnbench.choose(write(tmp_path, apart), queries=128, machine="here").case == "case-2"
    source = write(tmp_path, CELL, apart)
    first, last = sorted([getattr(CELL, argument), other])
    with pytest.raises(NoChoiceError) as raised:
        attnbench.choose(source, queries=128, machine="here")
    assert str(raised.value) == f"2 timed calls fit: name {argument} ({first!r}, {last!r})"
    assert attnbench.choose(source, queries=128, machine="here", **{argument: other}).case == "case-2"


def test_every_argument_in_which_calls_differ_is_named(tmp_path: Path) -> None:
    """The error names each argument with its values, at most eight; the case only if nothing else differs."""
    cells = [replace(CELL, case=f"case-{batch}", batch=batch, threads=1 + batch % 2) for batch in range(1, 11)]
    with pytest.raises(NoChoiceError) as raised:
        attnbench.choose(write(tmp_path, *cells), queries=128, machine="here")
    assert str(raised.value) == "10 timed calls fit: name threads (1, 2) and batch (1, 2, 3, 4, 5, 6, 7, 8 and 2 more)"
    with pytest.raises(NoChoiceError, match=r"2 timed calls fit: name case \('case-1', 'case-2'\)"):
        attnbench.choose(write(tmp_path, CELL, replace(CELL, case="case-2")), queries=128, machine="here")


def test_an_argument_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    """An unknown pass, or a regret that is no share, raises a ValueError that says what is needed."""
    source = write(tmp_path, CELL)
    with pytest.raises(ValueError, match=r"passes must be one of forward, forward\+backward, got 'back'"):
        attnbench.choose(source, queries=128, machine="here", passes="back")  # type: ignore[arg-type]
    for regret in (-0.1, "1 %"):
        with pytest.raises(ValueError, match=r"regret must be a share of at least 0, such as 0\.01 for 1 %, got"):
            attnbench.choose(source, queries=128, machine="here", regret=regret)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is no dispatch file"),
        (b'{"kind":"other"}', "is no dispatch file; attnbench report writes one"),
        (b'{"kind":"attnbench-dispatch","schema":99}', "was written by a newer attnbench (schema 99)"),
        (b'{"kind":"attnbench-dispatch","schema":1}', "was written by an older attnbench: write it anew"),
        (b'{"kind":"attnbench-dispatch","schema":2,"cells":[{}]}', "is damaged"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    """A file of another kind, of a newer schema, or a damaged file raises one line."""
    path = tmp_path / "dispatch.json"
    path.write_bytes(content)
    with pytest.raises(ResultsError) as raised:
        read_dispatch(path)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_run_and_the_file_of_its_report_give_the_same_choice(tmp_path: Path) -> None:
    """Of the example run, every cell is read back, and its evidence is the line with the timing."""
    run = read_run(EXAMPLE)
    made = make_dispatch([run], summarize([run]))
    (tmp_path / "dispatch.json").write_bytes(encode_dispatch(made))
    assert msgspec.to_builtins(read_dispatch(tmp_path / "dispatch.json")) == msgspec.to_builtins(made)
    machine = run.run.machine.name
    asked = {"queries": 128, "machine": machine, "case": made.cells[0].case.replace("L32.S32", "L128.S128")}
    choice = attnbench.choose(EXAMPLE, **asked)
    assert choice == attnbench.choose(tmp_path, **asked)
    stored = msgspec.json.decode(EXAMPLE.read_bytes().splitlines()[choice.line - 1])
    assert (stored["implementation"], stored["case"]) == (choice.name, choice.case)
    assert stored["timing"]
    assert all(offer.line for cell in made.cells for offer in cell.offers)


def test_choices_are_the_answers_of_the_report(tmp_path: Path) -> None:
    """For every row of decisions.csv of the example, the choice is the answer, with the same bound."""
    from attnbench.report import write as write_report

    write_report([read_run(EXAMPLE)], tmp_path)
    rows = list(csv.DictReader((tmp_path / "decisions.csv").read_text("utf-8").splitlines()))
    cells = {cell.case: cell for cell in read_dispatch(tmp_path / "dispatch.json").cells}
    assert len(rows) == len(cells) > 3
    for row, cell in zip(rows, cells.values(), strict=True):
        assert (row["queries"], row["keys"], row["pass"]) == (str(cell.queries), str(cell.keys), cell.passes)
        choice = attnbench.choose(
            tmp_path, queries=cell.queries, keys=cell.keys, machine=cell.machine, passes=cell.passes, case=cell.case
        )
        assert (choice.name, choice.behind) == (row["implementation"], row["behind"])
        assert choice.regret == (pytest.approx(float(row["regret"])) if row["regret"] else None)


def test_the_stored_map_answers_every_cell() -> None:
    """Each cell of the map in the example names the reference, or an implementation that is not slower."""
    machine = read_run(MAP).run.machine.name
    for batch in (1, 8):
        for length in (77, 197, 512):
            choice = attnbench.choose(MAP, queries=length, batch=batch, machine=machine)
            assert choice.name in {"torch_mha", "sdpa", "fused_projection"}
            assert choice.name == "torch_mha" or (choice.ratio is not None and choice.ratio.value <= 1)


@pytest.mark.parametrize(
    "asked", [{"queries": (1, 512)}, {"queries": 128, "batch": 8.0}, {"queries": 128, "keys": "8"}]
)
def test_a_size_is_a_whole_number(tmp_path: Path, asked: dict[str, Any]) -> None:
    """Any other value is an error that names the argument."""
    with pytest.raises(ValueError, match="must be a whole number, got"):
        attnbench.choose(write(tmp_path, CELL), machine="here", **asked)


def test_a_need_that_is_no_feature_is_refused(tmp_path: Path) -> None:
    """A typing error would otherwise ask for nothing."""
    with pytest.raises(ValueError, match="needs must be features, such as 'float masks', 'weights', got 'weight'"):
        attnbench.choose(write(tmp_path, CELL), queries=128, machine="here", needs=("weight",))


def test_a_dtype_may_be_that_of_torch(tmp_path: Path) -> None:
    """It means the name that the ids of cases have."""
    source = write(tmp_path, CELL)
    choice = attnbench.choose(source, queries=128, machine="here", dtype=torch.float32)  # type: ignore[arg-type]
    assert choice.name == "quick"


@pytest.mark.parametrize(("asked", "stored"), [("causal", "causal_br"), ("padding", "pad"), ("pad", "pad")])
def test_a_mask_has_the_name_of_the_option_or_of_the_case(tmp_path: Path, asked: str, stored: str) -> None:
    """The ids of cases say how a causal mask is aligned, and call masks by other names than --mask."""
    source = write(tmp_path, replace(CELL, mask=stored), replace(CELL, mask="none", case="case-2"))
    assert attnbench.choose(source, queries=128, machine="here", mask=asked).case == "case-1"


def test_an_implementation_of_the_kernel_scope_is_built_without_a_reference() -> None:
    """The module computes attention on queries, keys and values with shared key heads."""
    module = attnbench.load("core_sdpa").build(None)
    query, key = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 5, 8)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, key, enable_gqa=True)
    assert torch.equal(module(query, key, key), expected)


def test_a_choice_is_loaded_and_built() -> None:
    """The loaded implementation builds a module with the parameters and results of the reference."""
    reference = torch.nn.MultiheadAttention(32, 4, batch_first=True).eval()
    module = attnbench.load("sdpa").build(reference).eval()
    query = torch.randn(2, 5, 32)
    with torch.no_grad():
        expected, _ = reference(query, query, query, need_weights=False)
        output, _ = module(query, query, query, need_weights=False)
    torch.testing.assert_close(output, expected)
    with pytest.raises(PluginError):
        attnbench.load("not_installed")


def test_runs_are_read_as_a_table(tmp_path: Path) -> None:
    """The table of a run has the columns and rows of the report's CSV file."""
    from attnbench.report import write as write_report

    write_report([read_run(EXAMPLE)], tmp_path)
    for table in ("timings", "memory", "findings"):
        frame = attnbench.results.read(EXAMPLE, table=table)
        rows = list(csv.reader((tmp_path / f"{table}.csv").read_text("utf-8").splitlines()))
        assert list(frame.columns) == rows[0]
        assert len(frame) == len(rows) - 1
    with pytest.raises(ValueError, match="table must be one of summary, timings, memory"):
        attnbench.results.read(EXAMPLE, table="other")


def test_public_names_are_listed() -> None:
    """``dir(attnbench)`` has every public name, and each can be read."""
    assert {"choose", "compare", "conform", "load", "profile", "results"} <= set(dir(attnbench))
    assert all(getattr(attnbench, name) is not None for name in dir(attnbench))


def test_the_columns_of_every_table_are_documented() -> None:
    """docs/formats.md names every column of the tables that ``results.read`` and ``compare`` return."""
    page = (ROOT / "docs" / "formats.md").read_text("utf-8")
    tables = [attnbench.results.read(EXAMPLE, table=table) for table in get_args(attnbench.results.Table)]
    tables.append(attnbench.compare(EXAMPLE, EXAMPLE).to_frame())
    columns = {str(column) for frame in tables for column in frame.columns}
    assert [column for column in sorted(columns) if f"`{column}`" not in page] == []
