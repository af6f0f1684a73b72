"""What a worker answers if an implementation raises: an outcome with a status and a reason."""

import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from msgspec.structs import replace

from attnbench.candidate.candidate import Malformed
from attnbench.interface import Inputs, Refusal
from attnbench.measurement import sampling
from attnbench.processes.candidate_requests import Outcome
from attnbench.processes.rpc import replace_home
from attnbench.workers.timed_calls import ProcessDisturbed

__all__ = ["describe_arguments", "format_text", "run_for_outcome"]

Reply = TypeVar("Reply")
_OUT_OF_MEMORY = re.compile(
    r"can't allocate memory|CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|Cannot allocate memory|bad_alloc",
    re.IGNORECASE,
)


def run_for_outcome(act: Callable[[], Reply]) -> Reply | Outcome:
    """Return the result of ``act``; if ``act`` raises, return an outcome with the reason."""
    try:
        return act()
    except sampling.CallFailed as failed:
        return replace(_describe_fault(failed.__cause__ or failed), culprit=failed.name)
    except BaseException as error:  # noqa: BLE001  # an implementation may raise anything, SystemExit too
        return _describe_fault(error)


def _describe_fault(error: BaseException) -> Outcome:
    """Return the outcome (status and reason) that reports an exception."""
    if isinstance(error, Refusal):
        return Outcome(status="unsupported", reason=format_text(error) or "refused")
    if isinstance(error, Malformed | ProcessDisturbed):
        return Outcome(status="failed", reason=f"{error}.")
    reason = _format_error(error)
    if isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(reason):
        return Outcome(status="out_of_memory", reason=reason)
    if isinstance(error, torch.AcceleratorError):
        _end_process(reason)
    return Outcome(status="error", reason=reason)


def _end_process(reason: str) -> None:
    """End this process after an error in a CUDA kernel, because every further call on the device would fail.

    The runner starts a new process, and reports the reason, which is the last line of output.
    """
    sys.stderr.write(f"{reason}\n")
    sys.stderr.flush()
    os._exit(1)


def _format_error(error: BaseException) -> str:
    """Format an exception in one line, with the innermost code location, outside torch if possible."""
    frames = traceback.extract_tb(error.__traceback__)
    place = next(
        (frame for frame in reversed(frames) if "/torch/" not in frame.filename), frames[-1] if frames else None
    )
    where = f" (at {Path(place.filename).name}:{place.lineno} in {place.name})" if place else ""
    # Stored results must not contain a home directory.
    text = replace_home(format_text(error))
    return f"{type(error).__name__}: {text[:400]}{where}"


def describe_arguments(inputs: Inputs) -> str:
    """Return a sentence with the shape of each tensor argument.

    The dtype of an argument is included if it differs from the dtype of the first argument.
    """
    shapes, first = [], None
    for name, tensor in inputs.tensors.items():
        first = first or tensor.dtype
        dtype = "" if tensor.dtype == first else f" {str(tensor.dtype).removeprefix('torch.')}"
        shapes.append(f"{name} {tuple(tensor.shape)}{dtype}")
    return f"Arguments of the case: {', '.join(shapes)}."


def format_text(thing: object) -> str:
    """Format a value from an implementation as one line of valid UTF-8; its ``__str__`` may raise."""
    try:
        text = str(thing)
    except Exception as error:  # noqa: BLE001  # the __str__ of an implementation's class may raise anything
        return f"str() of the value raised {type(error).__name__}"
    return " ".join(text.encode("utf-8", "replace").decode("utf-8").split())
