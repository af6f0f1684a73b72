"""Tests of the processor time of a process and its descendants, and of the limit of cores."""

import os
import subprocess
import sys
import time

import pytest

from attnbench.measurement.processor_time import ProcessorTime, limit_cores, read_cores

# Program that uses 1.1 s of processor time and then waits until its standard input is closed. A tenth more than the
# second that the tests look for, because Linux counts the time of ended processes in hundredths of a second.
BUSY = "import sys, time\nwhile time.process_time() < 1.1: pass\nprint('done', flush=True)\nsys.stdin.read()"
needs_affinity = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")


@pytest.mark.extended
def test_own_processor_time_is_counted() -> None:
    """The reading grows by the processor time that this process uses."""
    counters = ProcessorTime()
    before, own = counters.read_ns(), time.process_time_ns()
    while time.process_time_ns() - own < 20_000_000:
        pass
    assert counters.read_ns() - before >= 20_000_000


@pytest.mark.extended
@pytest.mark.skipif(sys.platform != "linux", reason="descendants are found by /proc")
def test_a_descendant_is_counted_while_it_runs_and_after_it_ended() -> None:
    """A child that ``watch`` found adds its processor time; when it has ended, the time is counted once."""
    counters = ProcessorTime()
    before = counters.read_ns()
    with subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert counters.read_ns() - before < 1_000_000_000
        counters.watch()
        running = counters.read_ns() - before
        child.communicate()
    ended = counters.read_ns() - before
    assert running > 1_000_000_000
    assert running <= ended < 2 * running


@pytest.mark.extended
@pytest.mark.skipif(sys.platform != "linux", reason="descendants are found by /proc")
@pytest.mark.parametrize(
    "command", [[sys.executable, "-c", BUSY], ["sh", "-c", '"$0" -c "$1"; :', sys.executable, BUSY]]
)
def test_the_end_of_a_descendant_adds_nothing_that_it_used_before(command: list[str]) -> None:
    """A child, or a child's child, that started after the last search is found before it ends."""
    counters = ProcessorTime()
    counters.watch()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        counters.watch_new()
        before = counters.read_ns()
        child.communicate()
        assert counters.read_ns() - before < 500_000_000


@pytest.mark.extended
@pytest.mark.skipif(sys.platform != "linux", reason="descendants are found by /proc")
def test_the_time_of_a_descendants_ended_child_stays_counted() -> None:
    """When a child's child ends, and when the child ends later, no time is lost or added."""
    counters = ProcessorTime()
    counters.watch()
    command = ["sh", "-c", '"$0" -c "$1" < /dev/null; echo over; read line', sys.executable, BUSY]
    before = counters.read_ns()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"done\n"
        counters.watch_new()
        assert counters.read_ns() - before > 1_000_000_000
        assert child.stdout.readline() == b"over\n"
        ended = counters.read_ns() - before
        assert ended > 1_000_000_000
        child.communicate()
    assert abs(counters.read_ns() - before - ended) < 500_000_000


@needs_affinity
def test_the_cores_of_a_process_are_limited() -> None:
    """The limit is that of every thread, and processes that start later inherit it."""
    program = (
        "from attnbench.measurement.processor_time import limit_cores, read_cores\n"
        "import os, subprocess, sys\n"
        "limit_cores(1)\n"
        "inherited = subprocess.run([sys.executable, '-c', 'import os; print(len(os.sched_getaffinity(0)))'],\n"
        "                           capture_output=True, text=True, check=True).stdout.strip()\n"
        "print(len(read_cores()), inherited)\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["1", "1"]


@needs_affinity
def test_a_limit_beyond_the_cores_changes_nothing() -> None:
    """A process that may have more threads than there are cores keeps all its cores."""
    before = read_cores()
    limit_cores(10_000)
    assert read_cores() == before
