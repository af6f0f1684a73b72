"""Tests of the sections that plug-ins bring to a report."""

from pathlib import Path

import pytest

from attnbench.report import write
from attnbench.report.plugin_sections import place_section
from attnbench.report.sections import GROUP, Section
from installed_plugins import Installer
from timed_runs import REFERENCE, case_of, check, store

SOURCE = """
from attnbench.report.sections import Section

def make(content, folder):
    text = f"<b>{len(content.results)} in {folder.name}</b>"
    return Section(anchor="mine", title="Mine", template="<p>{{ values.text }}</p>", source=True, values={"text": text})

def make_nothing(content, folder):
    return None
"""
GOOD = [check(REFERENCE, case_of(1))]


@pytest.fixture
def section(install: Installer) -> None:
    """Install a plug-in with a section, one without content, and one that cannot be imported."""
    lines = ["mine = section_plugin:make", "nothing = section_plugin:make_nothing", "broken = no_such_module:make"]
    install("sections", *lines, group=GROUP)
    (install.folder / "section_plugin.py").write_text(SOURCE)


def read_page(folder: Path) -> str:
    """Return the page of a report."""
    return (folder / "index.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("section")
def test_a_plug_in_can_bring_a_section(tmp_path: Path) -> None:
    """Its function gets the content and the folder; the section stands before the runs, and its texts are escaped."""
    write([store(GOOD)], tmp_path / "report")
    page = read_page(tmp_path / "report")
    assert "<p>&lt;b&gt;1 in report&lt;/b&gt;</p>" in page
    assert page.index('id="conformance"') < page.index('<section id="mine">') < page.index('id="runs"')
    assert '<a href="#mine">Mine</a>' in page
    assert 'id="nothing"' not in page


@pytest.mark.usefixtures("section")
def test_a_section_that_cannot_be_imported_says_so(tmp_path: Path) -> None:
    """The report is written, and has one line in place of the section."""
    write([store(GOOD)], tmp_path)
    page = read_page(tmp_path)
    reason = "cannot import &#39;broken&#39;: ModuleNotFoundError: No module named &#39;no_such_module&#39;"
    assert f'<section id="broken">\n<h2>broken</h2>\n<p>{reason}</p>' in page


@pytest.mark.usefixtures("section")
def test_a_section_can_be_renewed_after_the_report(tmp_path: Path) -> None:
    """A plug-in can write its section into a report that is there, any number of times, and take it away."""
    folder = tmp_path / "report"
    place_section(folder, "mine", None)
    assert not folder.exists()
    write([store(GOOD)], folder)
    before = read_page(folder)
    for text in ("one", "two"):
        section = Section(anchor="mine", title="Mine", template=f"<p>{text}</p>", source=True)
        place_section(folder, "mine", section)
    assert read_page(folder) == before.replace("&lt;b&gt;1 in report&lt;/b&gt;", "two")
    place_section(folder, "mine", None)
    assert "#mine" not in read_page(folder)
    assert 'id="mine"' not in read_page(folder)
