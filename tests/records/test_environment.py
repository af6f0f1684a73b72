"""Tests of the description of a run's machine: enough to compare machines, and no host name or user name."""

import getpass
import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from attnbench.records import environment
from attnbench.records.environment import (
    TESTED_TORCH,
    check_torch_version,
    count_cores,
    describe_machine,
    find_checkout,
    find_commit,
    find_versions,
    observe_busy_cores,
    read_address_space_bytes,
)


@pytest.mark.parametrize(
    ("cpu", "gpu", "name"),
    [
        ("AMD EPYC 9V74 80-Core Processor", None, "amd-epyc-9v74-80-core"),
        ("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", None, "intel-xeon-platinum-8481c"),
        ("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "NVIDIA H200", "intel-xeon-platinum-8481c-nvidia-h200"),
        ("AMD EPYC 9V74 80-Core Processor", "NVIDIA H200", "amd-epyc-9v74-80-core-nvidia-h200"),
        ("../\u00e9/etc", None, "etc"),
        ("", None, "unknown"),
    ],
)
def test_a_machine_is_named_after_its_models(
    monkeypatch: pytest.MonkeyPatch, cpu: str, gpu: str | None, name: str
) -> None:
    """The name joins the models of CPU and GPU, without frequencies and trademarks; it is a valid name of a folder."""
    monkeypatch.setattr(environment, "read_cpu_model", lambda: cpu)
    monkeypatch.setattr(environment, "_query_accelerator", lambda: (gpu, "580.1" if gpu else None))
    found = describe_machine()
    assert (found.name, found.gpu, found.driver) == (name, gpu, "580.1" if gpu else None)


def test_nothing_names_the_host_or_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """The description of a machine contains no host name and no user name."""
    before = describe_machine()
    monkeypatch.setattr(platform, "node", lambda: "hostname-of-somebody")
    monkeypatch.setattr(
        platform, "uname", lambda: platform.uname_result("Linux", "hostname-of-somebody", "1", "2", "3")
    )
    monkeypatch.setattr(getpass, "getuser", lambda: "somebody")
    monkeypatch.setenv("HOSTNAME", "hostname-of-somebody")
    monkeypatch.setenv("USER", "somebody")
    after = describe_machine()
    assert after.name == before.name
    assert "somebody" not in str(after)


def test_a_machine_has_cores_memory_and_a_system() -> None:
    """The description has at least one core, some memory, and the version of Python."""
    found = describe_machine()
    assert found.cores >= 1
    assert found.memory_bytes > 2**28
    assert found.system.endswith(f"Python {platform.python_version()}")


def test_what_a_platform_does_not_report_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without /proc and the GPU driver's tool, the machine's name comes from Python's ``platform`` module."""

    def absent(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", absent)
    monkeypatch.setattr(subprocess, "run", absent)
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    found = describe_machine()
    assert (found.name, found.gpu, found.driver, found.isa) == ("arm64", None, None, None)
    assert read_address_space_bytes() == 0


def test_address_space_is_counted() -> None:
    """Where the system reports the size of a process's address space, this size is more than 1 MiB."""
    if not Path("/proc/self/statm").exists():
        pytest.skip("no /proc here")
    assert read_address_space_bytes() > 2**20


def test_versions_are_those_of_the_libraries_that_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The versions of attnbench, torch and numpy are recorded; libraries that are not installed are left out."""
    assert {"attnbench", "torch", "numpy"} <= find_versions().keys()
    monkeypatch.setattr(environment, "LIBRARIES", ("torch", "no-such-library"))
    assert find_versions().keys() == {"torch"}


@pytest.mark.parametrize("installed", ["2.8.0", "2.10.0", "2.11.1+cpu", "2.13.0", "2.13.1+cu130", "2.12.0.dev20260301"])
def test_a_tested_torch_gives_no_warning(installed: str) -> None:
    """The tested range contains all patch and development releases of its minor releases, 2.8 to 2.13."""
    assert TESTED_TORCH == ((2, 8), (2, 13))
    assert check_torch_version(installed) is None


@pytest.mark.parametrize("installed", ["2.7.1", "2.14.0", "1.13.1", "3.0.0", "2.100.0", "from-source"])
def test_an_untested_torch_gives_a_warning_with_the_remedy(installed: str) -> None:
    """The warning names the installed version, the tested range, and the command that installs a tested version."""
    assert check_torch_version(installed) == (
        f"torch {installed} is outside the tested range 2.8 to 2.13: findings may differ; "
        "pip install torch==2.13.0 installs a tested version"
    )


@pytest.mark.parametrize(("installed", "older"), [("2.7.1+cu126", True), ("2.8.0", False), ("from-source", False)])
def test_an_older_torch_is_told_with_both_versions(
    installed: str, older: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the installed version and the one that is needed."""
    monkeypatch.setattr(environment, "version", lambda _: installed)
    message = f"torch {installed} is installed, and attnbench needs 2.8 or newer: pip install 'torch>=2.8'"
    assert environment.find_older_torch() == (message if older else None)


# Commits


def run_git(folder: Path, *arguments: str) -> None:
    """Run git with an invented name and e-mail address."""
    identity = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_commit_is_marked_where_tracked_files_differ(tmp_path: Path) -> None:
    """A commit has twelve digits, and a plus sign if a tracked file was changed; untracked files add no plus sign."""
    (tmp_path / "file").write_text("one")
    run_git(tmp_path, "init")
    run_git(tmp_path, "add", "file")
    run_git(tmp_path, "commit", "-m", "one")
    clean = find_commit(tmp_path)
    assert clean is not None
    assert len(clean) == 12
    assert set(clean) <= set("0123456789abcdef")
    (tmp_path / "untracked").write_text("two")
    assert find_commit(tmp_path) == clean
    (tmp_path / "file").write_text("two")
    assert find_commit(tmp_path) == f"{clean}+"


def test_there_is_no_commit_outside_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside a checkout, in a folder that does not exist, and without git, the commit is None."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert find_commit(tmp_path) is None
    assert find_commit(tmp_path / "nowhere") is None
    monkeypatch.setenv("PATH", "")
    assert find_commit(tmp_path) is None


def git(folder: Path, *words: str) -> None:
    """Run git in a folder."""
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_checkout_says_whether_the_files_are_those_of_its_commit(tmp_path: Path) -> None:
    """A changed or untracked file makes a checkout dirty; files that it ignores are not of its commit."""
    git(tmp_path, "init", "-q")
    for name in ("own.py", "other.py", "new.py", "ignored.py"):
        (tmp_path / name).write_text("")
    (tmp_path / ".gitignore").write_text("ignored.py\n")
    git(tmp_path, "add", "own.py", "other.py", ".gitignore")
    git(tmp_path, "commit", "-q", "-m", "first")
    commit = find_commit(tmp_path)
    assert find_checkout(tmp_path, ["own.py"]) == (commit, False)
    assert find_checkout(tmp_path, ["own.py", "new.py"]) == (commit, True)
    assert find_checkout(tmp_path, ["own.py", "ignored.py"]) == (commit, True)
    assert find_checkout(tmp_path, ["ignored.py"]) is None
    assert find_checkout(tmp_path, []) is None
    (tmp_path / "other.py").write_text("changed = 1\n")
    assert find_checkout(tmp_path, ["own.py"]) == (commit, True)


def test_other_work_is_counted_in_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core that was idle for a quarter of the time was busy for the rest; cores of other processes are left out."""
    readings = iter([
        "cpu  0 0 0 0\ncpu0 100 0 0 50 10 0 0 0 7 7\ncpu1 0 0 0 0 0 0 0 0 0 0\ncpu2 9 9 9 9 9 9 9 9 9 9\nintr 1\n",
        "cpu  0 0 0 0\ncpu0 130 0 0 55 15 0 0 0 9 9\ncpu1 0 0 0 8 0 0 0 0 0 0\ncpu2 99 9 9 9 9 9 9 9 9 9\nintr 2\n",
    ])  # fmt: skip
    monkeypatch.setattr(Path, "read_text", lambda path, encoding: next(readings))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    assert observe_busy_cores(0) == pytest.approx(30 / 40)


def test_where_the_system_counts_no_times_no_core_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without /proc/stat, nothing is known of other work."""

    def refuse(path: Path, encoding: str) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", refuse)
    assert observe_busy_cores(0) == 0


def test_the_busy_cores_are_at_most_those_of_this_process() -> None:
    """Whatever else runs, the number is between none and all cores."""
    assert 0 <= observe_busy_cores(0.1) <= count_cores()
