"""Tests of the text of each fact about values."""

from typing import get_args

import msgspec
import pytest
from syrupy.assertion import SnapshotAssertion

from attnbench.records.value_facts import Compared, ConditionViolated, Fault, LooksLike, Phrase, ValueFact
from attnbench.words.values import describe_value_fact
from made_facts import FACTS

HOSTILE = Phrase(key="dropped_share", values={"count": "{total}", "rate": "<b>"})


def test_every_fact_has_a_text(snapshot: SnapshotAssertion) -> None:
    """Each kind of fact is told in a sentence."""
    assert {type(fact) for fact in FACTS} == set(get_args(ValueFact))
    assert [describe_value_fact(fact) for fact in FACTS] == snapshot


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: type(fact).__name__)
def test_facts_are_the_same_after_storing(fact: ValueFact) -> None:
    """A fact that is written to a run file is read back equal, with an equal hash."""
    read: ValueFact = msgspec.json.decode(msgspec.json.encode(fact), type=ValueFact)
    assert (read, hash(read)) == (fact, hash(fact))


@pytest.mark.parametrize("key", ["own words of a {plug-in}", "dropped_share"])
def test_a_phrase_that_fits_no_template_is_shown_by_its_key(key: str) -> None:
    """The text of a plug-in is shown as it is, braces included; so is a phrase with other values than the template."""
    own = Phrase(key=key, values=HOSTILE.values)
    assert describe_value_fact(ConditionViolated(violation=own)) == f"{key}."
    assert key in describe_value_fact(LooksLike(faults=(Fault(model=own),)))


def test_a_number_that_is_no_number_is_refused_when_it_is_read() -> None:
    """A number of a fact is a number, nan or an infinity; any other text is no fact."""
    stored = msgspec.json.encode({"type": "RowSumOff", "compared": Compared(quantity="w"), "off": "x", "allowed": 1})
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(stored, type=ValueFact)
