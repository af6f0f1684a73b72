"""Implementations whose numbers are the reference's, and which do harm beside them.

Those that raise, exit, hang, crash, patch torch or return nonsense are in ``test_runner.py``.
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
    """The reference with a deed after each call, another for each seed from 1; a deed may replace what is returned."""

    def __init__(self, deeds):
        self.deeds = deeds

    def build(self, reference):
        """The reference itself."""
        return reference

    def prepare(self, module, case, inputs):
        """The call and the deed."""
        deeds = dict(enumerate(self.deeds.values(), start=1))
        deed = deeds.get(case.problem.seed, lambda output: None)

        def call(**arguments):
            output, weights = module(**arguments)
            done = deed(output)
            return done if isinstance(done, tuple) else (output, weights)

        return call


# --- torch's global state ---


def other_dtype(output):
    """The other of two default dtypes."""
    torch.set_default_dtype(torch.float64 if torch.get_default_dtype() != torch.float64 else torch.float32)


def other_precision(output):
    """The other of two precisions."""
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
        "precision": other_precision,
        "dtype": other_dtype,
    }
)


# --- results that lie about themselves; what they hold is wrong ---


class Claims(Tensor):
    """Says that it has the right shape and dtype."""

    shape = torch.Size(SHAPE)
    dtype = torch.float32
    size = numel = as_subclass = detach = lambda self, *_: self


class Overrides(Tensor):
    """Answers every function of torch as if all were right."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return torch.Size(SHAPE) if "shape" in str(function) else torch.ones(SHAPE, dtype=torch.bool)


class Wraps(Tensor):
    """Has the right shape and no elements."""

    def __new__(cls, output):
        """A tensor without storage."""
        return Tensor._make_wrapper_subclass(cls, output.shape, dtype=output.dtype)

    def __init__(self, output):
        pass

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return torch.zeros(1)


class Poses:
    """Is no tensor and says that it is one."""

    __class__ = Tensor
    shape = torch.Size(SHAPE)
    dtype = torch.float32

    def __getattr__(self, name):
        return lambda *_, **__: self


class Pair(tuple):
    """Holds one thing and says that they are two."""

    __slots__ = ()

    def __len__(self):
        return 2


LIES = Bad(
    {
        "claims": lambda output: (output[:, 1:].detach().as_subclass(Claims), None),
        "overrides": lambda output: ((output.detach() * 2).as_subclass(Overrides), None),
        "wraps": lambda output: (Wraps(output.detach()), None),
        "poses": lambda output: (Poses(), None),
        "pair": lambda output: Pair([output]),
    }
)


# --- the process, its connection, and what is everybody's ---


class Unheard(BaseException):
    """Derived from nothing that is usually caught."""


def shout(output):
    """Print 16 MB that look like answers, half of it past Python."""
    sys.stdout.write((ANSWER * 350_000).decode())
    sys.stdout.flush()
    os.write(1, ANSWER * 350_000)


def breed(output):
    """Fork a process that stays."""
    child = os.fork()
    if child == 0:
        time.sleep(600)
        os._exit(0)
    Path("bred").write_text(str(child))


def throw(output):
    """Raise what ``except Exception`` lets through."""
    raise Unheard("of")


KEPT = []


def leak(output):
    """Keep 256 MiB."""
    KEPT.append(torch.ones(2**26))


NOISE = Bad({"shout": shout, "breed": breed, "throw": throw} | {f"leak {i}": leak for i in range(4)})


def once(deed):
    """The deed, in the first call alone, whatever becomes of the process that made it."""

    def first(output):
        if not Path(deed.__name__).exists():
            Path(deed.__name__).touch()
            return deed(output)
        return None

    return first


def close(output):
    """Close whatever is open."""
    os.closerange(3, 4096)


def forge(output):
    """Answer in the worker's place, and end it."""
    os.write(int(sys.argv[1]), ANSWER)
    os._exit(0)


def answer_first(output):
    """Answer before the worker does, and be wrong."""
    os.write(int(sys.argv[1]), ANSWER)
    return output * 2, None


DEADLY = Bad({deed.__name__: once(deed) for deed in (close, forge, answer_first)})
