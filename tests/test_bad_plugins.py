"""Bad plug-ins in one run: each is told by its own findings, none disturbs another, and the run ends in time.

What raises, exits, hangs, crashes, patches torch or returns nonsense is in ``test_runner.py``.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PLUGINS = Path(__file__).parent / "data" / "bad_plugins.py"
PROGRAM = "from attnbench.cli import main; main()"
CASE = "multihead/B2.L5.S7.E24.H3/bias+batch_first/mask=none/regime=plain/seed={}/float32/cpu/inference"
# A bad plug-in behaves on seed 0 and does its deeds in turn, one for each further seed.
SEEDS = range(8)
BAD = ("STATE", "LIES", "NOISE", "DEADLY")
HONEST = ("sdpa_math", "sdpa")
CHECKS = ("forward_parity", "global_state_untouched")
# Status and reason by implementation, check and seed.
Told = dict[tuple[str, str, int], tuple[str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the run, with the bad plug-ins in it."""
    made = tmp_path_factory.mktemp("bad")
    (made / "bad.py").write_text(PLUGINS.read_text())
    return made


@pytest.fixture(scope="module")
def told(folder: Path) -> Told:
    """What one run says of all bad plug-ins, and of an honest implementation before and after them."""
    names = [HONEST[0], *(f"bad.py:{name}" for name in BAD), HONEST[1]]
    options = {
        "--case": [CASE.format(seed) for seed in SEEDS],
        "--check": CHECKS,
        "--memory-limit": ["1GB"],
        "--threads": ["1"],
        "--json": ["told.json"],
    }
    words = [word for option, values in options.items() for value in values for word in (option, value)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "conform", *names, *words],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    seeds = {CASE.format(seed): seed for seed in SEEDS}
    return {
        (found["implementation"].removeprefix("bad.py:"), found["check"], seeds[found["case"]]): (
            found["status"],
            found["reason"],
        )
        for found in json.loads((folder / "told.json").read_text())["findings"]
    }


@pytest.mark.parametrize("name", HONEST)
def test_honest_implementations_are_undisturbed(told: Told, name: str) -> None:
    """What runs before and after the bad ones passes everywhere."""
    assert [told[name, check, seed] for check in CHECKS for seed in SEEDS] == [("passed", "")] * 16


@pytest.mark.parametrize("name", BAD)
def test_a_deed_counts_where_it_is_done(told: Told, name: str) -> None:
    """Where it behaves, a bad plug-in passes."""
    assert [told[name, check, 0] for check in CHECKS] == [("passed", "")] * 2


@pytest.mark.parametrize(
    ("seed", "word"),
    [
        (1, "the random generator"),
        (2, "the random generator"),  # seeded anew, always alike
        (3, "the gradient mode"),
        (4, "the number of threads"),
        (5, "the use of deterministic algorithms"),
        (6, "the precision of float32 products"),
        (7, "the default dtype"),
    ],
)
def test_changes_of_torch_s_global_state_are_told(told: Told, seed: int, word: str) -> None:
    """Each change is told by its name; the numbers are right all the same, on the cases after it too."""
    status, reason = told["STATE", "global_state_untouched", seed]
    assert status == "failed"
    assert word in reason
    assert told["STATE", "forward_parity", seed] == ("passed", "")


@pytest.mark.parametrize(
    ("seed", "status", "word"),
    [
        (1, "failed", "output has shape (2, 4, 24), must be (2, 5, 24)"),
        (2, "failed", "240 of 240 elements"),
        (3, "failed", "output has shape (1,), must be (2, 5, 24)"),
        (4, "error", ""),  # a class that says that it is Tensor
        (5, "error", ""),  # a tuple of one that says that it has two
        (6, "passed", ""),
    ],
)
def test_results_that_lie_about_themselves_are_seen_through(told: Told, seed: int, status: str, word: str) -> None:
    """A result is what it holds, whatever its class says of it."""
    found, reason = told["LIES", "forward_parity", seed]
    assert found == status, reason
    assert word in reason


def test_printing_megabytes_changes_nothing(told: Told) -> None:
    """What is printed is nobody's answer, however much it looks like one."""
    assert [told["NOISE", check, 1] for check in CHECKS] == [("passed", "")] * 2


def test_forks_end_with_the_run(told: Told, folder: Path) -> None:
    """A process that a call left behind is gone when the run is over."""
    assert told["NOISE", "forward_parity", 2] == ("passed", "")
    status = Path("/proc", (folder / "bred").read_text(), "status")
    assert not status.exists() or "State:\tZ" in status.read_text()


def test_exceptions_that_nothing_catches_are_caught(told: Told) -> None:
    """An exception that derives from BaseException alone is an error of its case."""
    status, reason = told["NOISE", "forward_parity", 3]
    assert status == "error"
    assert reason.startswith("Unheard: of (at bad.py:")


def test_a_leak_is_told_when_it_reaches_the_limit(told: Told) -> None:
    """Memory that is kept, call after call, ends in out_of_memory under --memory-limit."""
    statuses = [told["NOISE", "forward_parity", seed][0] for seed in SEEDS[4:]]
    assert set(statuses) == {"passed", "out_of_memory"}
    assert statuses == sorted(statuses, reverse=True)


@pytest.mark.parametrize(
    ("seed", "reason"),
    [
        (1, "the process exited with code 1 (OSError: [Errno 9] Bad file descriptor)"),
        (2, "something other than an answer was written to the process's connection"),
        (3, "something other than an answer was written to the process's connection"),
    ],
)
def test_tampering_with_the_connection_is_a_crash(told: Told, seed: int, reason: str) -> None:
    """Descriptors that are closed, and answers that are forged, cost the process and nothing else."""
    crashes = [why for status, why in (told["DEADLY", check, seed] for check in CHECKS) if status == "crashed"]
    assert len(crashes) == 1
    assert crashes[0].startswith(reason)
