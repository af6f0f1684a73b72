"""Writes the sections that plug-ins bring into the page of a report.

The page has a placeholder for each, so that a plug-in can also renew its section after the report was written.
"""

from pathlib import Path

from attnbench.plugins.registry import PluginError, load
from attnbench.report.content import Content
from attnbench.report.page import make_environment
from attnbench.report.placeholders import fill_placeholder
from attnbench.report.sections import GROUP, Section, list_plugin_sections

__all__ = ["place_section", "place_sections"]


def place_sections(content: Content, folder: Path) -> None:
    """Write the sections of all plug-ins into the page of a folder; one that cannot be imported says so there."""
    for place, name in list_plugin_sections().items():
        try:
            section = load(name, GROUP)(content, folder)
        except PluginError as error:
            section = Section(
                anchor=place, title=name, template="<p>{{ values.reason }}</p>", source=True,
                values={"reason": str(error)},
            )  # fmt: skip
        place_section(folder, place, section)


def place_section(folder: Path, place: str, section: Section | None) -> None:
    """Write a section, or nothing, into a placeholder of the page of a folder; without a page, nothing is written.

    ``place`` is the slug of the name of the section's entry point.
    """
    path = folder / "index.html"
    if not path.exists():
        return
    text = path.read_text(encoding="utf-8")
    environment = make_environment()
    for placeholder, template in ((f"link to {place}", "section-link.html.j2"), (place, "section.html.j2")):
        content = ""
        if section is not None:
            content = environment.get_template(template).render(section=section, from_string=environment.from_string)
        text = fill_placeholder(text, placeholder, content)
    path.write_text(text, encoding="utf-8")
