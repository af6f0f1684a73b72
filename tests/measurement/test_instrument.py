"""Tests of ``Instrument``, which finds functions that were replaced."""

import builtins
import signal
import sys
import time
from types import ModuleType

import pytest
import torch

from attnbench.measurement import sampling
from attnbench.measurement.instrument import Instrument
from attnbench.records.value_facts import Phrase, phrase


def test_nothing_changes_by_itself() -> None:
    """Without a change, nothing is found, also after an import of torch's compiler, which replaces some of torch."""
    instrument = Instrument()
    torch.compile(lambda tensor: tensor + 1, backend="eager")(torch.ones(1))
    assert instrument.find_changes() == []
    assert not instrument.clock_is_replaced()


@pytest.mark.parametrize(
    ("owner", "name", "found"),
    [
        (time, "perf_counter_ns", phrase("replaced", name="time.perf_counter_ns")),
        (builtins, "pow", phrase("replaced", name="builtins.pow")),
        (torch.nn.functional, "linear", phrase("replaced", name="torch.nn.functional.linear")),
        (sampling, "MOST", phrase("replaced", name="attnbench.measurement.sampling.MOST")),
        (sampling, "sum", phrase("added", name="attnbench.measurement.sampling.sum")),
    ],
)
def test_a_replaced_or_added_function_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: ModuleType, name: str, found: Phrase
) -> None:
    """A replaced function is named, and so is a new name in a module of the harness, which may hide a function."""
    instrument = Instrument()
    monkeypatch.setattr(owner, name, lambda *given: given, raising=False)
    changes = instrument.find_changes()
    monkeypatch.undo()
    assert changes == [found]


def test_a_signal_handler_of_an_import_is_no_change() -> None:
    """A handler that a library set when it was imported is accepted; one that is set later is found."""
    instrument, before = Instrument(), signal.getsignal(signal.SIGUSR1)
    try:
        signal.signal(signal.SIGUSR1, lambda *_: None)
        assert any(
            change.values["name"] == "the numbers of the signals with a handler" for change in instrument.find_changes()
        )
        instrument.accept_signal_handlers()
        assert instrument.find_changes() == []
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert instrument.find_changes() != []


def test_a_later_import_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """A submodule that is imported later becomes a name of its package, which is no fault."""
    instrument = Instrument()
    monkeypatch.setattr(sys.modules["attnbench.measurement"], "later", ModuleType("later"), raising=False)
    assert instrument.find_changes() == []
