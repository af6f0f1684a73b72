"""Settings of Sphinx for the site: the pages as they are in the repository, and a reference from docstrings.

The sources are the top folder's pages and those of ``docs``, so that links between pages work as they stand. Links to
other files of the repository lead to ``SITE_REPOSITORY``, the address of its files, or else to the files of this
checkout.
"""

import importlib.metadata
import os
import re
import shutil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# Address below which a file of the repository is found, such as https://HOST/OWNER/attnbench/tree/COMMIT.
REPOSITORY = os.environ.get("SITE_REPOSITORY") or ROOT.as_uri()
# Folders that are parts of the site: the example report, and asv's page where make docs has written it.
COPIED = ("reports/example", "reports/asv")
TOP_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")

project, release = "attnbench", importlib.metadata.version("attnbench")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinxcontrib.mermaid"]
root_doc = "README"
include_patterns = [*TOP_PAGES, "docs/*.md", "docs/site/*.rst"]
# Keeps Sphinx from walking through environments and results.
exclude_patterns = [path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "docs"]
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
autodoc_member_order = "groupwise"
python_use_unqualified_type_names = True
html_theme = "furo"
html_title = f"attnbench {release}"
html_static_path, html_css_files = ["static"], ["width.css"]
html_show_copyright = html_copy_source = False

_LINK = re.compile(r"\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s:]+)\)")


def turn_links(text: str, folder: Path) -> str:
    """Return a page in ``folder`` whose links to files that are no pages lead to where the files are.

    Links into copied folders become HTML, because Sphinx would copy the one file without those that it needs.
    """
    return _LINK.sub(lambda found: _turn_link(found, folder), text)


def _turn_link(found: re.Match[str], folder: Path) -> str:
    path, _, anchor = found["target"].partition("#")
    place = (folder / path).resolve()
    if not path or not place.is_relative_to(ROOT) or _is_page(place) or place.suffix in (".png", ".svg"):
        return found[0]
    name = place.relative_to(ROOT).as_posix()
    if name.startswith(COPIED) and place.suffix != ".md":
        return f'<a href="{found["target"]}">{found["text"]}</a>'
    return f"[{found['text']}]({REPOSITORY}/{name}{'#' * bool(anchor)}{anchor})"


def _is_page(place: Path) -> bool:
    name = place.relative_to(ROOT).as_posix()
    return name in TOP_PAGES or (place.parent == ROOT / "docs" and place.suffix == ".md")


def _read_source(_: Any, page: str, content: list[str]) -> None:
    content[0] = turn_links(content[0], (ROOT / page).parent)
    if page == root_doc:
        content[0] += (Path(__file__).parent / "contents.md").read_text("utf-8")


def _finish(app: Any, error: Exception | None) -> None:
    """Copy what is no page, and give the README the name by which servers find it."""
    if error is None:
        out = Path(app.outdir)
        shutil.copyfile(out / f"{root_doc}.html", out / "index.html")
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, out / name, dirs_exist_ok=True)


def setup(app: Any) -> None:
    """Connect the functions of this file with Sphinx."""
    app.connect("source-read", _read_source)
    app.connect("build-finished", _finish)
