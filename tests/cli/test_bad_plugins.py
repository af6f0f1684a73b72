"""Bad plug-ins in one run: each one's findings report its own faults, and no plug-in disturbs another plug-in.

Plug-ins that raise, exit, hang, crash, patch torch or return nonsense are in ``tests/runner/test_conform.py``.
"""

import json
from pathlib import Path

import pytest

from attnbench.processes import rpc
from commands import run_command

PLUGINS = Path(__file__).parents[1] / "data" / "bad_plugins.py"
# Seconds that a process has to exit when it has lost its connection: on a busy machine, 2 s may be too few.
GRACE_S = 60.0
CASE = "multihead/B2.L5.S7.E24.H3/bias+batch_first/mask=none/regime=plain/seed={}/float32/cpu/inference"
# A bad plug-in has no fault for seed 0, and a different fault for each further seed.
SEEDS = range(8)
BAD = ("STATE", "DISGUISED", "SIDE_EFFECTS", "TAMPERING")
HONEST = ("sdpa_math", "sdpa")
CHECKS = ("forward_parity", "global_state_untouched")
# Status and reason by implementation, check and seed.
Report = dict[tuple[str, str, int], tuple[str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the run, with the bad plug-ins in it."""
    made = tmp_path_factory.mktemp("bad")
    (made / "bad.py").write_text(PLUGINS.read_text())
    return made


@pytest.fixture(scope="module")
def report(folder: Path) -> Report:
    """Statuses and reasons of one run: of all bad plug-ins, and of an honest implementation before and after them."""
    names = [HONEST[0], *(f"bad.py:{name}" for name in BAD), HONEST[1]]
    options = {
        "--case": [CASE.format(seed) for seed in SEEDS],
        "--check": CHECKS,
        "--memory-limit": ["1GB"],
        "--threads": ["1"],
        "--json": ["findings.json"],
    }
    words = [word for option, values in options.items() for value in values for word in (option, value)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rpc, "GRACE_S", GRACE_S)
        done = run_command("conform", *names, *words, cwd=folder)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    seeds = {CASE.format(seed): seed for seed in SEEDS}
    return {
        (found["implementation"].removeprefix("bad.py:"), found["check"], seeds[found["case"]]): (
            found["status"],
            found["reason"],
        )
        for found in json.loads((folder / "findings.json").read_text())["findings"]
    }


@pytest.mark.parametrize("name", HONEST)
def test_honest_implementations_are_undisturbed(report: Report, name: str) -> None:
    """Honest implementations that run before and after the bad plug-ins pass on every case."""
    assert [report[name, check, seed] for check in CHECKS for seed in SEEDS] == [("passed", "")] * 16


@pytest.mark.parametrize("name", BAD)
def test_a_bad_plugin_passes_where_it_has_no_fault(report: Report, name: str) -> None:
    """A bad plug-in passes on the case without a fault."""
    assert [report[name, check, 0] for check in CHECKS] == [("passed", "")] * 2


@pytest.mark.parametrize(
    ("seed", "word"),
    [
        (1, "the random number generator"),
        (2, "the random number generator"),  # seeded with the same number in each call
        (3, "the gradient mode"),
        (4, "the number of threads"),
        (5, "the use of deterministic algorithms"),
        (6, "the precision of float32 matrix products"),
        (7, "the default dtype"),
    ],
)
def test_changes_of_torch_s_global_state_are_reported(report: Report, seed: int, word: str) -> None:
    """The finding names the changed setting; the outputs of this case and of later cases stay right."""
    status, reason = report["STATE", "global_state_untouched", seed]
    assert status == "failed"
    assert word in reason
    assert report["STATE", "forward_parity", seed] == ("passed", "")


@pytest.mark.parametrize(
    ("seed", "status", "word"),
    [
        (1, "failed", "output has shape (2, 4, 24), must be (2, 5, 24)"),
        (2, "failed", "240 of 240 elements"),
        (3, "failed", "output has shape (1,), must be (2, 5, 24)"),
        (4, "error", ""),  # an object whose __class__ is Tensor
        (5, "error", ""),  # a tuple of one element that reports two
        (6, "passed", ""),
    ],
)
def test_results_that_misreport_themselves_are_detected(report: Report, seed: int, status: str, word: str) -> None:
    """A result is evaluated by its elements, whatever its class reports."""
    found, reason = report["DISGUISED", "forward_parity", seed]
    assert found == status, reason
    assert word in reason


def test_printing_megabytes_changes_nothing(report: Report) -> None:
    """Printed text is never taken for an answer, even if it looks like one."""
    assert [report["SIDE_EFFECTS", check, 1] for check in CHECKS] == [("passed", "")] * 2


def test_forks_end_with_the_run(report: Report, folder: Path) -> None:
    """A process that a call forked has ended when the run is over."""
    assert report["SIDE_EFFECTS", "forward_parity", 2] == ("passed", "")
    status = Path("/proc", (folder / "forked").read_text(), "status")
    assert not status.exists() or "State:\tZ" in status.read_text()


def test_exceptions_that_are_no_exception_subclass_are_errors(report: Report) -> None:
    """An exception that derives from BaseException directly is an error of its case."""
    status, reason = report["SIDE_EFFECTS", "forward_parity", 3]
    assert status == "error"
    assert reason.startswith("Uncommon: of (at bad.py:")


def test_a_leak_is_reported_when_it_reaches_the_limit(report: Report) -> None:
    """A call that leaks memory gets the status out_of_memory as soon as it reaches --memory-limit."""
    statuses = [report["SIDE_EFFECTS", "forward_parity", seed][0] for seed in SEEDS[4:]]
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
def test_tampering_with_the_connection_is_a_crash(report: Report, seed: int, reason: str) -> None:
    """If a call closes file descriptors or forges an answer, its case is a crash; other cases are not affected."""
    crashes = [why for status, why in (report["TAMPERING", check, seed] for check in CHECKS) if status == "crashed"]
    assert len(crashes) == 1
    assert crashes[0].startswith(reason)
