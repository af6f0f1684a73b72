"""Implementations that compute the reference's output, and have one more effect, a fault, in each call.

Implementations that raise, exit, hang, crash, patch torch or return nonsense are in ``tests/runner/test_conform.py``.
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

from attnbench.interface import Implementation

ANSWER = b'{"status": "observed"}\n'
SHAPE = (2, 5, 24)


class Bad(Implementation):
    """The reference. Fault number n follows each call of a case with seed n; the fault may replace the result."""

    def __init__(self, faults):
        self.faults = faults

    def build(self, reference):
        """Return the reference itself."""
        return reference

    def prepare(self, module, case, inputs):
        """Return the call, with the fault of the case's seed."""
        faults = dict(enumerate(self.faults.values(), start=1))
        fault = faults.get(case.problem.seed, lambda output: None)

        def call(**arguments):
            output, weights = module(**arguments)
            done = fault(output)
            return done if isinstance(done, tuple) else (output, weights)

        return call


# --- torch's global state ---


def change_dtype(output):
    """Switch between two default dtypes."""
    torch.set_default_dtype(torch.float64 if torch.get_default_dtype() != torch.float64 else torch.float32)


def change_precision(output):
    """Switch between two precisions of float32 products."""
    torch.set_float32_matmul_precision("medium" if torch.get_float32_matmul_precision() != "medium" else "highest")


STATE = Bad(
    {
        "draw": lambda output: torch.rand(1),
        "seed": lambda output: torch.manual_seed(7),
        "gradients": lambda output: torch.set_grad_enabled(not torch.is_grad_enabled()),
        "threads": lambda output: torch.set_num_threads(torch.get_num_threads() + 1),
        "deterministic": lambda output: torch.use_deterministic_algorithms(
            not torch.are_deterministic_algorithms_enabled()
        ),
        "precision": change_precision,
        "dtype": change_dtype,
    }
)


# --- wrong results whose class reports a shape, dtype or length that they do not have ---


class FalseShape(Tensor):
    """A tensor that reports the right shape and dtype, whatever its real shape and dtype are."""

    shape = torch.Size(SHAPE)
    dtype = torch.float32
    size = numel = as_subclass = detach = lambda self, *_: self


class FalseFunctions(Tensor):
    """A tensor whose ``__torch_function__`` gives the results that a tensor with the right values would give."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return torch.Size(SHAPE) if "shape" in str(function) else torch.ones(SHAPE, dtype=torch.bool)


class WithoutStorage(Tensor):
    """A tensor of the right shape without elements."""

    def __new__(cls, output):
        """Return a tensor without storage."""
        return Tensor._make_wrapper_subclass(cls, output.shape, dtype=output.dtype)

    def __init__(self, output):
        pass

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return torch.zeros(1)


class FalseClass:
    """An object that is no tensor, and whose ``__class__`` is Tensor."""

    __class__ = Tensor
    shape = torch.Size(SHAPE)
    dtype = torch.float32

    def __getattr__(self, name):
        return lambda *_, **__: self


class FalseLength(tuple):
    """A tuple that reports a length of two, whatever its real length is."""

    __slots__ = ()

    def __len__(self):
        return 2


DISGUISED = Bad(
    {
        "shape": lambda output: (output[:, 1:].detach().as_subclass(FalseShape), None),
        "functions": lambda output: ((output.detach() * 2).as_subclass(FalseFunctions), None),
        "storage": lambda output: (WithoutStorage(output.detach()), None),
        "class": lambda output: (FalseClass(), None),
        "length": lambda output: FalseLength([output]),
    }
)


# --- side effects on the process and its memory ---


class Uncommon(BaseException):
    """An exception that ``except Exception`` does not catch."""


def print_megabytes(output):
    """Print 16 MB that look like a worker's answers: half by Python, half directly to a file descriptor."""
    sys.stdout.write((ANSWER * 350_000).decode())
    sys.stdout.flush()
    os.write(1, ANSWER * 350_000)


def fork_process(output):
    """Fork a process that stays after the call."""
    child = os.fork()
    if child == 0:
        time.sleep(3600)
        os._exit(0)
    Path("forked").write_text(str(child))


def throw(output):
    """Raise an exception that ``except Exception`` does not catch."""
    raise Uncommon("of")


KEPT = []


def leak(output):
    """Allocate 256 MiB, and never free this memory."""
    KEPT.append(torch.ones(2**26))


SIDE_EFFECTS = Bad(
    {"print": print_megabytes, "fork": fork_process, "throw": throw} | {f"leak {i}": leak for i in range(4)}
)


# --- tampering with the connection between worker and runner ---


def only_once(fault):
    """Return a function whose first call, counted over all processes, has the fault; later calls do nothing."""

    def first(output):
        if not Path(fault.__name__).exists():
            Path(fault.__name__).touch()
            return fault(output)
        return None

    return first


def close_descriptors(output):
    """Close all file descriptors from number 3 on."""
    os.closerange(3, 4096)


def forge_answer(output):
    """Write an answer in place of the worker, and end the process."""
    os.write(int(sys.argv[1]), ANSWER)
    os._exit(0)


def answer_first(output):
    """Write an answer before the worker does, and return a wrong output."""
    os.write(int(sys.argv[1]), ANSWER)
    return output * 2, None


TAMPERING = Bad({fault.__name__: only_once(fault) for fault in (close_descriptors, forge_answer, answer_first)})
