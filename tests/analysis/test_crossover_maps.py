"""Tests of crossover maps over two axes: which cells form a map, which axes it has, and what belongs to no map."""

from itertools import product

import pytest

from attnbench.analysis.crossover_maps import CrossoverMap, find_maps
from attnbench.analysis.stats import estimate
from attnbench.analysis.summary import Column, Conformance, Place, SpeedCell, SummaryRow, SummaryTable
from attnbench.cases import CaseId
from attnbench.records.types import find_pass


def make_case(length: int, sizes: str = "B1.E256.H4", *, mask: str = "none", mode: str = "inference") -> str:
    """Return the id of a case; ``sizes`` are all but the length."""
    return f"multihead/{sizes}.L{length}.S{length}/-/mask={mask}/regime=plain/seed=0/float32/cpu/{mode}"


def make_table(case: str, *, machine: str = "some-cpu", threads: int = 2, untimed: str = "") -> SummaryTable:
    """Return a table with one call, which has a time unless ``untimed`` says why not."""
    parsed = CaseId.parse(case)
    queries, keys = parsed.lengths
    column = Column(pass_=find_pass(case), mode=parsed.mode, queries=queries, keys=keys, case=case)
    cell = SpeedCell(untimed=untimed) if untimed else SpeedCell(time_ns=estimate([1.0]))
    return SummaryTable(
        place=Place(machine=machine, device="cpu", dtype="float32", threads=threads),
        form=parsed.form,
        columns=(column,),
        rows=(SummaryRow(subject="mine", conformance=Conformance(verdict="yes"), cells={column: cell}),),
    )


def find(*cases: str) -> list[CrossoverMap]:
    """Return the maps of tables for these cases."""
    return list(find_maps(map(make_table, cases)))


def list_axes(found: CrossoverMap) -> tuple[str, str]:
    """Return the letters of the axes, that of the rows first."""
    return found.row_axis.letter, found.column_axis.letter


GRID = tuple(make_case(length, f"B{batch}.E768.H12") for batch, length in product((1, 4, 16), (64, 128, 256)))


def test_length_and_batch_are_columns_and_rows() -> None:
    """Three lengths at three batches are one map; each of its nine cells is the call of its case."""
    (found,) = find(*reversed(GRID))
    assert list_axes(found) == ("B", "")
    assert (found.rows, found.columns) == (((1,), (4,), (16,)), ((64, 64), (128, 128), (256, 256)))
    assert (found.form, found.length) == ("multihead/E768.H12/-/mask=none/regime=plain/seed=0", ())
    assert [found.cells[row, column].column.case for row in found.rows for column in found.columns] == list(GRID)


@pytest.mark.parametrize(
    "cases",
    [
        [make_case(length) for length in (16, 32, 64)],
        [make_case(64, f"B{batch}.E256.H4") for batch in (1, 2, 4)],
        [make_case(64)],
        # Two sizes vary, but no row has two cells.
        [make_case(64, "B1.E256.H4"), make_case(128, "B2.E256.H4"), make_case(256, "B4.E256.H4")],
        [],
    ],
)
def test_one_axis_is_no_map(cases: list[str]) -> None:
    """A map needs two rows and two columns, each with two cells."""
    assert find(*cases) == []


def test_heads_vary_with_the_width_of_a_head_or_with_the_width_equal() -> None:
    """With ``--head-dim`` the width grows with the heads; with ``--width`` it is equal. Both are maps of heads."""
    same_heads = [make_case(length, f"B1.E{heads * 64}.H{heads}") for heads in (4, 12) for length in (64, 128)]
    (found,) = find(*same_heads)
    assert (list_axes(found), found.row_axis.equal_heads) == (("H", ""), True)
    assert found.form.startswith("multihead/B1.D64/")
    same_width = [make_case(length, f"B1.E768.H{heads}") for heads in (4, 12) for length in (64, 128)]
    (found,) = find(*same_width)
    assert (list_axes(found), found.row_axis.equal_heads) == (("H", ""), False)
    assert found.form.startswith("multihead/B1.E768/")


def test_heads_and_the_width_of_a_head_are_axes_at_one_length() -> None:
    """Four combinations of heads and width of a head have three widths, and are one map."""
    cases = [make_case(64, f"B1.E{heads * wide}.H{heads}") for heads in (4, 8) for wide in (32, 64)]
    (found,) = find(*cases)
    assert list_axes(found) == ("D", "H")
    assert (found.length, found.rows) == ((64, 64), ((32,), (64,)))


def test_batch_and_heads_at_one_length_are_a_map_of_this_length() -> None:
    """Without a second length, the other two sizes are the axes, and the map has the length."""
    cases = [make_case(64, f"B{batch}.E256.H{heads}") for batch in (1, 8) for heads in (4, 8)]
    (found,) = find(*cases)
    assert (list_axes(found), found.length) == (("H", "B"), (64, 64))


def test_a_third_size_has_a_map_for_each_of_its_values() -> None:
    """Lengths, batches and heads: one map of lengths and batches for each number of heads, and no further ones."""
    cases = [
        make_case(length, f"B{batch}.E256.H{heads}") for heads in (2, 4, 8) for batch in (1, 8) for length in (64, 128)
    ]
    found = find(*cases)
    assert [list_axes(one) for one in found] == [("B", "")] * 3
    assert [one.form.split("/")[1] for one in found] == ["E256.H2", "E256.H4", "E256.H8"]


def test_what_an_earlier_pair_of_axes_does_not_show_has_a_map_of_its_own() -> None:
    """Batches at 12 heads, and heads at batch 1: the second map has cells that the first one lacks."""
    heads = [make_case(length, f"B1.E768.H{heads}") for heads in (4, 8) for length in (64, 128, 256)]
    assert [list_axes(one) for one in find(*GRID, *heads)] == [("B", ""), ("H", "")]


def test_passes_masks_machines_and_threads_have_maps_of_their_own() -> None:
    """Cells of one map differ in the axes alone."""
    others = [case.replace("mask=none", "mask=causal") for case in GRID]
    others += [case.replace("/inference", "/train") for case in GRID]
    tables = [make_table(case) for case in (*GRID, *others)]
    tables += [make_table(case, machine="other") for case in GRID]
    tables += [make_table(case, threads=8) for case in GRID]
    found = list(find_maps(tables))
    assert {(one.place.machine, one.place.threads, one.mode, one.form.split("/")[2 + 1]) for one in found} == {
        ("some-cpu", 2, "inference", "mask=none"), ("some-cpu", 2, "inference", "mask=causal"),
        ("some-cpu", 2, "train", "mask=none"), ("other", 2, "inference", "mask=none"),
        ("some-cpu", 8, "inference", "mask=none"),
    }  # fmt: skip
    assert [len(one.cells) for one in found] == [9] * 5


def test_a_cell_in_the_middle_may_be_missing_or_without_a_time() -> None:
    """A cell that was not planned is missing; one that was planned but not timed is there, without a time."""
    middle = GRID[4]
    others = [case for case in GRID if case != middle]
    (found,) = find(*others)
    assert len(found.cells) == 8
    assert ((4,), (128, 128)) not in found.cells
    (found,) = find_maps([*map(make_table, others), make_table(middle, untimed="slow")])
    assert [pair for pair, cell in found.cells.items() if not cell.cells] == [((4,), (128, 128))]


def test_a_value_with_one_cell_is_left_out_of_a_map() -> None:
    """Lengths that only one batch has, as those of a profile without ``--batch``, are no columns."""
    (found,) = find(*GRID, *(make_case(length, "B1.E768.H12") for length in (512, 1024)))
    assert found.columns == ((64, 64), (128, 128), (256, 256))


def test_calls_without_any_time_are_no_map() -> None:
    """Where nothing was timed, nothing is decided."""
    assert list(find_maps(make_table(case, untimed="refused") for case in GRID)) == []


@pytest.mark.parametrize("sizes", ["", "B2.B3", "odd", "B01", "B" + "9" * 5000, "B1.Bx", "H0.E8.B1", "H3.E8.B1", "ẞ1"])
def test_odd_sizes_are_no_axis_and_no_error(sizes: str) -> None:
    """An id that another program wrote has any text as its sizes."""
    cases = [make_case(length, sizes) for length in (64, 128)]
    assert find(*cases) == []
    assert len(find(*cases, *GRID)) == 1


def test_queries_and_keys_of_decoding_are_one_axis() -> None:
    """One query at several numbers of keys is a length; the numbers of keys order it."""
    cases = [
        make_case(1, f"B{batch}.E256.H4").replace("S1/", f"S{keys}/") for batch in (1, 8) for keys in (1024, 512, 64)
    ]
    (found,) = find(*cases)
    assert found.columns == ((1, 64), (1, 512), (1, 1024))


def test_a_long_staircase_ends_soon() -> None:
    """Cells of which each line has two but the last: they are left out one after the other, and nothing is left."""
    stairs = [make_case(64 + at + up, f"B{at + 1}.E256.H4") for at in range(300) for up in (0, 1)]
    assert find(*stairs) == []
