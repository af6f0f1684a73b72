"""Tests of the commands that install what an extra of attnbench needs."""

import tomllib
from pathlib import Path

import pytest

from attnbench.refusals import write_install_line

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", sorted(set(EXTRAS) - {"all"}))
def test_an_extra_is_installed_by_its_packages(extra: str) -> None:
    """The command names the packages, and not attnbench, which may have come from a checkout, a URL or a wheel."""
    start, *packages, end = write_install_line(extra).split("'")
    assert (start, end) == ("pip install ", "")
    assert sorted(packages[::2]) == sorted(package.replace("_", "-") for package in EXTRAS[extra])
    assert set(packages[1::2]) <= {" "}


def test_no_message_installs_attnbench_from_an_index() -> None:
    """No message of the harness or of an implementation tells to install attnbench by its name alone."""
    sources = [path for folder in ("harness", "implementations") for path in (ROOT / folder).rglob("*.py")]
    assert [path for path in sources if "pip install 'attnbench[{" in path.read_text()] == []
