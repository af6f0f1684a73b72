"""Tests of ``attnbench.choose``, ``attnbench.load`` and ``attnbench.results``."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import torch

import attnbench
from attnbench.analysis.coverage import FEWEST_CHECKED
from attnbench.analysis.crossover import DECISIVE, Contender, Interval
from attnbench.analysis.dispatch import Cell, Dispatch, NoChoiceError, Offer, encode_dispatch, read_dispatch
from attnbench.plugins.registry import PluginError
from attnbench.records.run_file import ResultsError, read_run
from attnbench.report.content import collect_content
from attnbench.report.dispatch import make_dispatch

ROOT = Path(__file__).parents[2]
EXAMPLE, MAP = sorted((ROOT / "results" / "example").glob("*.jsonl"))


def make_offer(name: str, time_ns: float, state: str, **others: Any) -> Offer:
    """Make an offer whose interval is 2 % wide; the reference takes 1000 ns."""
    value = time_ns / 1000
    ratio = None if not state else Interval(value=value, low=value * 0.99, high=value * 1.01, processes=9)
    contender = Contender(implementation=name, time_ns=time_ns, ratio=ratio, state=state, run="run-1")
    return Offer(contender=contender, refusals_known=True, **others)


REFERENCE = make_offer("torch_mha", 1000, "")
CELL = Cell(
    machine="here", device="cpu", dtype="float32", threads=2, case="case-1", passes="forward", queries=128, keys=128,
    batch=8, heads=12, kv_heads=12, head_dim=64, reference="torch_mha",
    offers=(make_offer("quick", 500, "faster", refused=("weights",), line=7), make_offer("own", 800, "faster"),
            REFERENCE),
)  # fmt: skip


def write(folder: Path, *cells: Cell) -> Path:
    """Write a dispatch file with these cells."""
    (folder / "dispatch.json").write_bytes(encode_dispatch(Dispatch(cells=list(cells))))
    return folder


def test_the_winner_comes_with_gain_and_evidence(tmp_path: Path) -> None:
    """The choice is the fastest implementation, with the gain over the reference and the line of its timing."""
    choice = attnbench.choose(write(tmp_path, CELL), queries=128, machine="here")
    assert (choice.name, choice.kind, choice.run, choice.line, choice.case) == ("quick", "winner", "run-1", 7, "case-1")
    assert choice.gain is not None
    assert choice.gain.value == pytest.approx(2.0)
    assert str(choice) == "quick, 2.00× as fast as the reference (1.98 to 2.02) [run-1 line 7: case-1, 2 threads]"


def test_what_is_needed_is_not_refused(tmp_path: Path) -> None:
    """An implementation that refuses a needed feature, or of which this is not known, is no choice."""
    source = write(tmp_path, CELL)
    assert attnbench.choose(source, queries=128, machine="here", needs=("weights",)).name == "own"
    assert attnbench.choose(source, queries=128, machine="here", needs="weights").name == "own"
    unknown = replace(CELL.offers[1], refusals_known=False)
    write(tmp_path, replace(CELL, offers=(CELL.offers[0], unknown, REFERENCE)))
    assert attnbench.choose(source, queries=128, machine="here", needs=("weights",)).name == "torch_mha"


def test_a_tie_gives_the_reference_unless_the_fastest_is_asked_for(tmp_path: Path) -> None:
    """Of a tie, the reference is named with all that are tied; ``on_tie="fastest"`` names the fastest."""
    tied = (make_offer("one", 500, "faster"), make_offer("other", 502, "faster"), REFERENCE)
    source = write(tmp_path, replace(CELL, offers=tied))
    choice = attnbench.choose(source, queries=128, machine="here")
    assert (choice.name, choice.kind, choice.tied, choice.gain) == ("torch_mha", "tie", ("one", "other"), None)
    assert attnbench.choose(source, queries=128, machine="here", on_tie="fastest").name == "one"


def test_an_undecided_comparison_gives_the_reference(tmp_path: Path) -> None:
    """An implementation that may be faster is no choice, also if the fastest is asked for."""
    source = write(tmp_path, replace(CELL, offers=(make_offer("one", 950, "unknown"), REFERENCE)))
    for on_tie in ("reference", "fastest"):
        choice = attnbench.choose(source, queries=128, machine="here", on_tie=on_tie)
        assert (choice.name, choice.kind, choice.tied) == ("torch_mha", "unknown", ("one",))


def test_an_unchecked_implementation_is_no_choice_beside_checked_ones(tmp_path: Path) -> None:
    """Where some implementations were checked on enough cases, the others are left out."""
    offers = (CELL.offers[0], replace(CELL.offers[1], checked=25), replace(REFERENCE, checked=25))
    source = write(tmp_path, replace(CELL, offers=offers))
    choice = attnbench.choose(source, queries=128, machine="here")
    assert (choice.name, choice.checked) == ("own", 25)


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
    """An unknown pass or value of ``on_tie`` raises a ValueError that names the values."""
    source = write(tmp_path, CELL)
    with pytest.raises(ValueError, match=r"passes must be one of forward, forward\+backward, got 'back'"):
        attnbench.choose(source, queries=128, machine="here", passes="back")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="on_tie must be one of reference, fastest, got 'any'"):
        attnbench.choose(source, queries=128, machine="here", on_tie="any")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is no dispatch file"),
        (b'{"kind":"other"}', "is no dispatch file; attnbench report writes one"),
        (b'{"kind":"attnbench-dispatch","schema":99}', "was written by a newer attnbench (schema 99)"),
        (b'{"kind":"attnbench-dispatch","schema":1,"cells":[{}]}', "is damaged"),
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
    content = collect_content([read_run(EXAMPLE)])
    made = make_dispatch(content.runs, content.decisions.entries)
    (tmp_path / "dispatch.json").write_bytes(encode_dispatch(made))
    assert msgspec.to_builtins(read_dispatch(tmp_path / "dispatch.json")) == msgspec.to_builtins(made)
    machine = content.runs[0].run.machine.name
    asked = {"queries": 128, "machine": machine, "case": made.cells[0].case.replace("L32.S32", "L128.S128")}
    choice = attnbench.choose(EXAMPLE, **asked)
    assert choice == attnbench.choose(tmp_path, **asked)
    stored = msgspec.json.decode(EXAMPLE.read_bytes().splitlines()[choice.line - 1])
    assert (stored["implementation"], stored["case"]) == (choice.name, choice.case)
    assert stored["timing"]
    assert all(offer.line for cell in made.cells for offer in cell.offers)


def test_choices_are_the_answers_of_the_report(tmp_path: Path) -> None:
    """For every row of decisions.csv of the example, the fastest choice is the answer among those that conform."""
    from attnbench.report import write as write_report

    write_report([read_run(EXAMPLE)], tmp_path)
    rows = list(csv.DictReader((tmp_path / "decisions.csv").read_text("utf-8").splitlines()))
    cells = {cell.case: cell for cell in read_dispatch(tmp_path / "dispatch.json").cells}
    assert len(rows) == len(cells) > 3
    for row, cell in zip(rows, cells.values(), strict=True):
        assert (row["queries"], row["keys"], row["pass"]) == (str(cell.queries), str(cell.keys), cell.passes)
        choice = attnbench.choose(
            tmp_path, queries=cell.queries, keys=cell.keys, machine=cell.machine, passes=cell.passes, case=cell.case,
            on_tie="fastest",
        )  # fmt: skip
        kind, names = row["conforming_answer"] or row["answer"], row["conforming"] or row["implementations"]
        if not row["conforming_answer"] and any(int(count) < FEWEST_CHECKED for count in row["checked"].split("; ")):
            # The report names an implementation without a verdict, and finds no answer among the others.
            assert choice.kind not in DECISIVE
            kind = choice.kind
        assert choice.kind == kind
        assert choice.name == (names.split("; ")[0] if kind in ("winner", "tie") else "torch_mha")


def test_the_stored_map_answers_every_cell() -> None:
    """Each cell of the map in the example gives an implementation that is faster than the reference."""
    for batch in (1, 8):
        for length in (77, 197, 512):
            choice = attnbench.choose(MAP, queries=length, batch=batch, machine="amd-epyc", on_tie="fastest")
            assert choice.name in {"sdpa", "fused_projection"}
            assert choice.gain is not None
            assert choice.gain.low > 1


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
    with pytest.raises(ValueError, match="table must be one of timings, memory"):
        attnbench.results.read(EXAMPLE, table="other")


def test_public_names_are_listed() -> None:
    """``dir(attnbench)`` has every public name, and each can be read."""
    assert {"choose", "compare", "conform", "load", "profile", "results"} <= set(dir(attnbench))
    assert all(getattr(attnbench, name) is not None for name in dir(attnbench))


def test_the_columns_of_every_table_are_documented() -> None:
    """docs/python.md names every column of the tables that ``results.read`` and ``compare`` return."""
    page = (ROOT / "docs" / "python.md").read_text("utf-8")
    tables = [attnbench.results.read(EXAMPLE, table=table) for table in get_args(attnbench.results.Table)]
    tables.append(attnbench.compare(EXAMPLE, EXAMPLE).to_frame())
    columns = {str(column) for frame in tables for column in frame.columns}
    assert [column for column in sorted(columns) if f"`{column}`" not in page] == []
