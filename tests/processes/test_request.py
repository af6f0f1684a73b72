"""Tests of requests: each names the type of its reply, and each is answered by the worker that it is meant for."""

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from attnbench.processes.candidate_requests import (
    CandidateRequest,
    Declaration,
    Describe,
    LoadImplementation,
    LongPass,
    Outcome,
    StartCandidate,
    TryPass,
)
from attnbench.processes.oracle_requests import ComputeExpected, ListSuite, OracleRequest
from attnbench.processes.request import Handler, find_reply_type, to_plain
from attnbench.refusals import OtherRefusal
from attnbench.workers.candidate_worker import CandidateWorker
from attnbench.workers.loaded_implementations import LoadedImplementations
from attnbench.workers.oracle_worker import OracleWorker

FIRST = {StartCandidate, LoadImplementation}


@pytest.mark.parametrize(
    ("request_type", "expected"),
    [
        (StartCandidate, int),
        (ListSuite, list[str]),
        (ComputeExpected, type(None)),
        (Describe, Declaration | Outcome),
        (TryPass, LongPass | Outcome),
    ],
)
def test_a_request_names_the_type_of_its_reply(request_type: type, expected: Any) -> None:
    """The reply type is found directly, and through a base class that adds ``Outcome`` to it."""
    assert find_reply_type(request_type) == expected


def list_requests(base: type) -> set[type]:
    """Return the requests that a package of attnbench derives from a base class."""
    return {one for one in base.__subclasses__() if one.__module__.startswith("attnbench.")}


def list_kinds(handlers: list[Handler]) -> set[type]:
    """Return the requests that have a handler."""
    assert len({handler.kind.__name__ for handler in handlers}) == len(handlers)
    return {handler.kind for handler in handlers}


def test_the_oracle_worker_answers_every_request_to_it(tmp_path: Path) -> None:
    """No request to the oracle worker lacks a handler."""
    assert list_kinds(OracleWorker(tmp_path).handlers()) == list_requests(OracleRequest)


def test_candidate_workers_answer_every_request_to_them() -> None:
    """No request lacks a handler."""
    usual = FIRST | list_requests(CandidateRequest)
    assert list_kinds(CandidateWorker(LoadedImplementations()).handlers()) == usual


class _Name(str):
    __slots__ = ()


def test_numbers_that_are_not_finite_and_derived_texts_can_be_sent() -> None:
    """A request may contain NaN, an infinite number, and an instance of a class derived from ``str``."""
    found = msgspec.convert(
        to_plain(Declaration(unsupported=OtherRefusal(text=_Name("no")), untimed=None, predicted_s=math.nan)),
        Declaration,
    )
    assert isinstance(found.unsupported, OtherRefusal)
    assert type(found.unsupported.text) is str
    assert found.predicted_s is not None
    assert math.isnan(found.predicted_s)


def test_an_object_that_cannot_be_sent_is_an_error() -> None:
    """The error names the class of the object."""
    with pytest.raises(TypeError, match="cannot contain an object of the class object"):
        to_plain({"place": object()})
