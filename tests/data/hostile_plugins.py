"""Implementations that compute the reference's output, and have a different fault at each sequence length.

At length 8 no implementation has a fault.
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

FOREVER_S = 3600


class Hostile(Implementation):
    """The reference with a fault at some lengths: in ``prepare`` (``builds``) or in each call (``calls``)."""

    def __init__(self, calls=(), builds=()):
        self.calls = dict(calls)
        self.builds = dict(builds)

    def build(self, reference):
        """Return the reference itself."""
        return reference

    def prepare(self, module, case, inputs):
        """Return the call, with the fault of the case's length."""
        length = case.problem.queries
        if length in self.builds:
            self.builds[length]()
        fault = self.calls.get(length)
        if fault is None:
            return module
        made = fault() if isinstance(fault, type) else fault

        def call(**arguments):
            return made(module(**arguments)[0])

        return call


# --- faults that do not end the process ---


def print_megabytes(output):
    """Print 16 MB: half through Python's standard output, half directly to the descriptor of standard error."""
    line = b'{"status": "observed"}\n'
    sys.stdout.write((line * 350_000).decode())
    sys.stdout.flush()
    os.write(2, line * 350_000)
    return output, None


def fail_to_build():
    """Raise while the call is prepared."""
    raise OSError("no such engine")


def fail(output):
    """Raise in the call."""
    raise ZeroDivisionError("no numbers today")


class _FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, output):
        """Return a copy of the output."""
        return output.clone()

    @staticmethod
    def backward(ctx, gradient):
        """Raise an exception."""
        raise ArithmeticError("no way back")


def fail_backward(output):
    """Raise in the backward pass."""
    return (_FailsBackward.apply(output), None) if output.requires_grad else (output, None)


def exhaust_memory(output):
    """Allocate memory without end."""
    kept = []
    while True:
        kept.append(torch.ones(2**24))


def change_threads(output):
    """Change torch's number of threads."""
    torch.set_num_threads(torch.get_num_threads() + 1)
    return output, None


def change_dtype(output):
    """Change torch's default dtype."""
    torch.set_default_dtype(torch.float64)
    return output, None


def change_grad_mode(output):
    """Change whether torch records gradients."""
    torch.set_grad_enabled(not torch.is_grad_enabled())
    return output, None


def draw(output):
    """Draw a number from torch's random number generator."""
    torch.rand(1)
    return output, None


NON_FATAL = Hostile(
    calls={
        9: print_megabytes, 11: fail, 12: lambda output: output, 13: exhaust_memory, 14: change_threads,
        15: change_dtype, 16: change_grad_mode, 17: draw, 18: fail_backward,
    },
    builds={10: fail_to_build},
)  # fmt: skip


# --- faults that end the process, or never return ---


def close_descriptors(output):
    """Close all file descriptors from number 3 on."""
    os.closerange(3, 4096)
    return output, None


def loop(output):
    """Never return; sleep in the loop, so that other threads and processes can run."""
    while True:
        time.sleep(0.001)


def loop_ignoring_signals(output):
    """Never return, and ignore the signals that ask a process to end."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    loop(output)


FATAL = Hostile(
    calls={
        9: lambda output: ctypes.string_at(0), 10: lambda output: os._exit(0), 11: close_descriptors, 12: loop,
        13: loop_ignoring_signals,
    },
)  # fmt: skip


# --- faults that remain after the call has returned ---


def fork_processes(output):
    """Fork seven new processes; each writes its id and does not end, and some become leaders of their own sessions."""
    owner = os.getpid()
    for _ in range(3):
        os.fork()
    if os.getpid() != owner:
        if os.getpid() % 2:
            os.setsid()
        with Path("forked").open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(FOREVER_S)
        os._exit(0)
    return output, None


def leave_busy_thread(output):
    """Start a thread that keeps a core busy after the call, without holding the global interpreter lock."""
    arguments = ("sha256", b"password", b"salt", 2**31 - 1)
    threading.Thread(target=hashlib.pbkdf2_hmac, args=arguments, daemon=True).start()
    return output, None


# Forked processes remain until the timing process ends, and slow every later timed call, which looks for new ones. So
# the last length but one has this fault.
LINGERING = Hostile(calls={17: fork_processes, 18: leave_busy_thread})


# --- faults that appear only after many calls, in the process where all implementations are timed ---


class WrongLater:
    """A call that returns a wrong output from its 101st use on."""

    def __init__(self):
        self.made = 0

    def __call__(self, output):
        """Return the right output, or 1.5 times this output."""
        self.made += 1
        return (output if self.made <= 100 else output * 1.5), None


class CachesOutput:
    """A call that returns the output of its 40th use in all later uses, whatever the inputs are."""

    def __init__(self):
        self.made = 0
        self.kept = None

    def __call__(self, output):
        """Return the output of this call, or the stored output of call 40."""
        self.made += 1
        if self.made <= 40:
            self.kept = output.clone()
        return self.kept.clone(), None


class CrashesLater:
    """A call that crashes the process at its 40th use."""

    def __init__(self):
        self.made = 0

    def __call__(self, output):
        """Return the output, or crash the process."""
        self.made += 1
        if self.made == 40:
            ctypes.string_at(0)
        return output, None


LATE = Hostile(calls={9: WrongLater, 10: CachesOutput, 11: CrashesLater})
