"""Tests of case ids: an id gives its parts, whatever operator it names."""

from dataclasses import replace

import pytest

from attnbench.cases import CaseId

TEXT = "other/B1.L128.S64.E32/flag/mask=none/regime=plain/seed=0/float32/cpu/train"


def test_an_id_gives_its_parts_and_the_parts_give_the_id() -> None:
    """Parsing an id gives operator, problem, dtype, device and mode; ``str`` gives the id again."""
    found = CaseId.parse(TEXT)
    assert found == CaseId(
        operator="other",
        problem="B1.L128.S64.E32/flag/mask=none/regime=plain/seed=0",
        dtype="float32",
        device="cpu",
        mode="train",
    )
    assert str(found) == TEXT


def test_one_part_is_replaced() -> None:
    """``replace`` changes the named part only, even where another part has the same text."""
    named_cpu = TEXT.replace("other", "cpu")
    assert str(replace(CaseId.parse(named_cpu), device="cuda")) == named_cpu.replace("cpu/train", "cuda/train")


@pytest.mark.parametrize(("text", "count"), [("odd", 1), (f"{TEXT}/more", 10), ("", 1)])
def test_another_text_is_refused(text: str, count: int) -> None:
    """The message names the nine parts of an id, and the number of parts that came."""
    with pytest.raises(ValueError, match=f"a case id has 9 parts .*, got {count}: '{text}'$"):
        CaseId.parse(text)


@pytest.mark.parametrize(
    ("sizes", "length"), [("B1.L128.S64.E32", 128), ("B1.L1.S4096", 4096), ("S7", 7), ("E32.LX4", 0), ("B1", 0)]
)
def test_the_length_is_the_larger_of_queries_and_keys(sizes: str, length: int) -> None:
    """The length is the larger of the sizes L and S, and 0 without them; other sizes do not count."""
    assert CaseId.parse(TEXT.replace("B1.L128.S64.E32", sizes)).length == length


def test_the_form_leaves_the_lengths_out() -> None:
    """The form has operator and problem without the sizes L and S, and neither dtype, device nor mode."""
    assert CaseId.parse(TEXT).form == "other/B1.E32/flag/mask=none/regime=plain/seed=0"
