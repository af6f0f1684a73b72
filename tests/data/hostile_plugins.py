"""Implementations whose numbers are the reference's, and which do harm where they are profiled, each length another.

A case of length 8 is where they all behave.
"""

import ctypes
import hashlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch

from attnbench.interface import Implementation

FOREVER_S = 600


class Hostile(Implementation):
    """The reference; at some lengths a deed takes the place of building or of what a call returns."""

    def __init__(self, calls=(), builds=()):
        self.calls = dict(calls)
        self.builds = dict(builds)

    def build(self, reference):
        """The reference itself."""
        return reference

    def prepare(self, module, case, inputs):
        """The call, with its deed."""
        length = case.problem.queries
        if length in self.builds:
            self.builds[length]()
        deed = self.calls.get(length)
        if deed is None:
            return module
        made = deed() if isinstance(deed, type) else deed

        def call(**arguments):
            return made(module(**arguments)[0])

        return call


# --- what is told, and costs nobody his process ---


def shout(output):
    """Print 16 MB, half of it past Python, half of it to standard error."""
    line = b'{"status": "observed"}\n'
    sys.stdout.write((line * 350_000).decode())
    sys.stdout.flush()
    os.write(2, line * 350_000)
    return output, None


def fail_to_build():
    """Raise where the call is prepared."""
    raise OSError("no such engine")


def fail(output):
    """Raise in the call."""
    raise ZeroDivisionError("no numbers today")


class _FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, output):
        """The same numbers."""
        return output.clone()

    @staticmethod
    def backward(ctx, gradient):
        """Raise."""
        raise ArithmeticError("no way back")


def fail_backward(output):
    """Raise once gradients are asked for."""
    return (_FailsBackward.apply(output), None) if output.requires_grad else (output, None)


def take_all(output):
    """Ask for more memory, and keep it, until there is none."""
    kept = []
    while True:
        kept.append(torch.ones(2**24))


def other_threads(output):
    """Change the number of threads."""
    torch.set_num_threads(torch.get_num_threads() + 1)
    return output, None


def other_dtype(output):
    """Change the default dtype."""
    torch.set_default_dtype(torch.float64)
    return output, None


def other_mode(output):
    """Change the gradient mode."""
    torch.set_grad_enabled(not torch.is_grad_enabled())
    return output, None


def draw(output):
    """Draw from the random generator of the process."""
    torch.rand(1)
    return output, None


TOLD = Hostile(
    calls={
        9: shout, 11: fail, 12: lambda output: output, 13: take_all, 14: other_threads, 15: other_dtype,
        16: other_mode, 17: draw, 18: fail_backward,
    },
    builds={10: fail_to_build},
)  # fmt: skip


# --- what ends its process, or never ends ---


def close(output):
    """Close whatever is open."""
    os.closerange(3, 4096)
    return output, None


DEADLY = Hostile(calls={9: lambda output: ctypes.string_at(0), 10: lambda output: os._exit(0), 11: close})


def loop(output):
    """Never end; it sleeps in between, so that others get on with theirs."""
    while True:
        time.sleep(0.001)


def stubborn(output):
    """Never end, whatever asks for it."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    loop(output)


STUCK = Hostile(calls={9: loop, 10: stubborn})


# --- what stays when the call is over ---


def breed(output):
    """Fork 2 × 2 × 2 processes that stay, some of them in sessions of their own; leave their numbers behind."""
    owner = os.getpid()
    for _ in range(3):
        os.fork()
    if os.getpid() != owner:
        if os.getpid() % 2:
            os.setsid()
        with Path("bred").open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(FOREVER_S)
        os._exit(0)
    return output, None


def burn(output):
    """Leave a thread behind that keeps a core busy, without holding Python's lock."""
    arguments = ("sha256", b"password", b"salt", 2**31 - 1)
    threading.Thread(target=hashlib.pbkdf2_hmac, args=arguments, daemon=True).start()
    return output, None


STAYING = Hostile(calls={9: breed, 18: burn})


# --- what shows only among others, after many calls ---


class WrongLater:
    """Wrong from the hundred and first call on."""

    def __init__(self):
        self.made = 0

    def __call__(self, output):
        """The answer, or another one."""
        self.made += 1
        return (output if self.made <= 100 else output * 1.5), None


class Remembers:
    """Answers what it answered in the fortieth call, whatever it is given later."""

    def __init__(self):
        self.made = 0
        self.kept = None

    def __call__(self, output):
        """The answer, or an old one."""
        self.made += 1
        if self.made <= 40:
            self.kept = output.clone()
        return self.kept.clone(), None


class DiesLater:
    """Ends the process in the fortieth call."""

    def __init__(self):
        self.made = 0

    def __call__(self, output):
        """The answer, or the end."""
        self.made += 1
        if self.made == 40:
            ctypes.string_at(0)
        return output, None


LATE = Hostile(calls={9: WrongLater, 10: Remembers, 11: DiesLater})
