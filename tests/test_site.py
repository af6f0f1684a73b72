"""Tests of the settings of the site: links, the contents, and the reference. Building it is ``make docs``."""

import ast
import re

import pytest

from docs.site import conf
from pages import PAGES, ROOT, read_blocks

SITE = ROOT / "docs" / "site"


@pytest.mark.parametrize(
    ("link", "turned"),
    [
        ("[a](gate.md#what-fails)", "[a](gate.md#what-fails)"),
        ("[a](../README.md)", "[a](../README.md)"),
        ("[a](#here)", "[a](#here)"),
        ("[a](https://example.org/x)", "[a](https://example.org/x)"),
        ("![a](report.png)", "![a](report.png)"),
        ("[`a`](../research/README.md#b)", "[`a`](https://h/o/r/tree/c/research/README.md#b)"),
        ("[a](../results/h100)", "[a](https://h/o/r/tree/c/results/h100)"),
        ("[a](../reports/example/report.md)", "[a](https://h/o/r/tree/c/reports/example/report.md)"),
        ("[a](../reports/example/index.html)", '<a href="../reports/example/index.html">a</a>'),
    ],
)
def test_links_lead_to_pages_copies_or_the_repository(link: str, turned: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages, anchors and images stay as they are; the report is part of the site; all else is in the repository."""
    monkeypatch.setattr(conf, "REPOSITORY", "https://h/o/r/tree/c")
    assert conf.turn_links(f"Text {link}, text", ROOT / "docs") == f"Text {turned}, text"


def test_the_contents_have_every_page_once() -> None:
    """A page that the contents lack would be on the site, and in no menu."""
    listed = re.findall(r"^(?:docs/)?[\w/-]+$", (SITE / "contents.md").read_text("utf-8"), re.MULTILINE)
    pages = [page.relative_to(ROOT).with_suffix("").as_posix() for page in PAGES if page.name != "README.md"]
    assert sorted(listed) == sorted([*pages, "CHANGELOG", "docs/site/reference"])


def test_the_reference_has_the_modules_that_pages_import() -> None:
    """A module that a page imports is in the reference, with ``__all__`` as its contents."""
    modules = set(re.findall(r"automodule:: (\S+)", (SITE / "reference.rst").read_text("utf-8")))
    blocks = (block.text for page in PAGES for block in read_blocks(page) if block.language == "python")
    nodes = (node for text in blocks if (tree := parse(text)) for node in ast.walk(tree))
    imported = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    shown = {name for name in imported if name.split(".")[0] == "attnbench"}
    assert "attnbench.kernel" in shown
    assert shown - modules == set()


def parse(text: str) -> ast.Module | None:
    """Return the syntax tree of a block; None for an excerpt with lines left out."""
    try:
        return ast.parse(text)
    except SyntaxError:
        return None
