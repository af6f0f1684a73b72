"""Tests of the table of mutants: its rows, and the diagnosis of a mutant."""

from attnbench.mutants.multihead import MUTANTS
from research.kinds import Row, diagnose_mutant, format_table


def test_a_mutant_gets_the_diagnosis_of_its_check() -> None:
    """A mutant with a fault model gets a diagnosis. A mutant without a fault model gets none."""
    mutants = {mutant.name: mutant for mutant in MUTANTS.mutants}
    inverted, shortened = mutants["mask_inverted"], mutants["query_tail_unwritten"]
    assert diagnose_mutant(inverted, inverted.caught_by) == "the attn_mask inverted"
    assert diagnose_mutant(shortened, shortened.caught_by) == ""


def test_the_table_counts_mutants_by_suite() -> None:
    """The page says how many mutants each suite catches, and a vertical bar in a text does not end its cell."""
    rows = [
        Row(name="a", why="one | two", level="core", check="forward_parity", diagnosis="x"),
        Row(name="b", why="three", level="core", check="forward_parity", diagnosis=""),
        Row(name="c", why="four", level="", check="far_offsets", diagnosis=""),
    ]
    lines = format_table(rows).splitlines()
    assert lines[2].startswith("3 mutants: 2 caught on core, 1 caught on no suite up to full; 1 diagnosed.")
    assert lines[-3:] == [
        "| a | one \\| two | core | `forward_parity` | x |",
        "| b | three | core | `forward_parity` |  |",
        "| c | four |  | `far_offsets` |  |",
    ]
