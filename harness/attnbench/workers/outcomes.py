"""What a worker answers if an implementation raises: an outcome."""

import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from msgspec.structs import replace

from attnbench.candidate.candidate import Malformed, WithoutGradient
from attnbench.devices import list_devices
from attnbench.interface import Inputs, Refusal
from attnbench.measurement import sampling
from attnbench.processes.candidate_requests import Outcome
from attnbench.processes.rpc import replace_home
from attnbench.records.outcome_facts import Argument, CannotJudge, MalformedAnswer, NoGradient, ProcessChanged, Raised
from attnbench.records.value_facts import Phrase, phrase
from attnbench.refusals import OtherRefusal, TypedRefusal
from attnbench.workers.timed_calls import ProcessDisturbed

__all__ = ["format_text", "list_arguments", "run_for_outcome"]

Reply = TypeVar("Reply")
_OUT_OF_MEMORY = re.compile(
    "|".join(pattern for device in list_devices() for pattern in device.memory_errors),
    re.IGNORECASE,
)


def run_for_outcome(act: Callable[[], Reply]) -> Reply | Outcome:
    """Return the result of ``act``; if ``act`` raises, return an outcome."""
    try:
        return act()
    except sampling.CallFailed as failed:
        return replace(_make_outcome(failed.__cause__ or failed), culprit=failed.name)
    except BaseException as error:  # noqa: BLE001  # an implementation may raise anything, SystemExit too
        return _make_outcome(error)


def _make_outcome(error: BaseException) -> Outcome:
    """Return the outcome (status and fact) that reports an exception."""
    if isinstance(error, Refusal):
        return Outcome(status="unsupported", facts=(_read_refusal(error),))
    if isinstance(error, WithoutGradient):
        return Outcome(status="failed", facts=(NoGradient(),))
    if isinstance(error, Malformed):
        what = error.args[0] if error.args else ""
        what = what if isinstance(what, Phrase) else phrase(format_text(what))
        return Outcome(status="failed", facts=(MalformedAnswer(what=what),))
    if isinstance(error, ProcessDisturbed):
        return Outcome(status="failed", facts=(ProcessChanged(what=error.what),))
    raised = _make_raised(error)
    if isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(raised.message):
        return Outcome(status="out_of_memory", facts=(raised,))
    if isinstance(error, torch.AcceleratorError):
        _end_process(f"{raised.kind}: {raised.message}")
    return Outcome(status="error", facts=(raised,))


def _read_refusal(error: Refusal) -> TypedRefusal | CannotJudge:
    reason = error.args[0] if error.args else ""
    if isinstance(reason, Phrase):
        return CannotJudge(why=reason)
    return reason if isinstance(reason, TypedRefusal) else OtherRefusal(text=format_text(reason))


def _end_process(text: str) -> None:
    """End this process after an error in a kernel of a device, because every further call on the device would fail.

    The runner starts a new process, and reports the text, which is the last line of output.
    """
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
    os._exit(1)


def _make_raised(error: BaseException) -> Raised:
    """Return an exception as a fact, with the innermost code location, outside torch if possible."""
    frames = traceback.extract_tb(error.__traceback__)
    place = next(
        (frame for frame in reversed(frames) if "/torch/" not in frame.filename), frames[-1] if frames else None
    )
    # Stored results must not contain a home directory.
    raised = Raised(kind=type(error).__name__, message=replace_home(format_text(error))[:400])
    if place is None:
        return raised
    return replace(raised, file=Path(place.filename).name, line=place.lineno or 0, function=place.name)


def list_arguments(inputs: Inputs) -> tuple[Argument, ...]:
    """Return the name, shape and dtype of each tensor argument."""
    return tuple(
        Argument(name=name, shape=tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))
        for name, tensor in inputs.tensors.items()
    )


def format_text(thing: object) -> str:
    """Format a value from an implementation as one line of valid UTF-8; its ``__str__`` may raise."""
    try:
        text = str(thing)
    except Exception as error:  # noqa: BLE001  # the __str__ of an implementation's class may raise anything
        return f"str() of the value raised {type(error).__name__}"
    return " ".join(text.encode("utf-8", "replace").decode("utf-8").split())
