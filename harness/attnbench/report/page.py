"""The report as one self-contained HTML file: style, script and figures are embedded, and nothing is loaded."""

import base64
import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

import jinja2
from markupsafe import Markup

from attnbench.report.case_forms import describe_form
from attnbench.report.content import Content
from attnbench.report.figures.drawings import Drawing
from attnbench.report.figures.marks import make_mark, make_rules
from attnbench.report.figures.style import Look
from attnbench.report.hidden_characters import spell_out
from attnbench.report.numbers import format_count
from attnbench.report.overview import make_overview
from attnbench.report.placeholders import make_placeholder
from attnbench.report.sections import list_plugin_sections, make_sections
from attnbench.report.slugs import make_slug
from attnbench.report.summary_grid import name_pass
from attnbench.words.failures import REPRODUCING
from attnbench.words.summary import describe_place

__all__ = ["make_environment", "render", "render_template"]

# The style sheet with the rules of the whole page comes first, the one of the printed page last.
FIRST, LAST = "page.css", "print.css"


# Names of files beside the page, as texts name them.
FILE_NAME = re.compile(r"\b[a-z][a-z-]*\.(?:csv|md)\b")


def render(
    content: Content,
    drawings: Sequence[Drawing] = (),
    files: Collection[str] = (),
    looks: Mapping[str, Look] = MappingProxyType({}),
    links: Sequence[tuple[str, str]] = (),
) -> str:
    """Return the HTML page of a report.

    ``files`` are the names of files beside the page to which it links; ``links`` are texts and addresses of other
    pages. ``looks`` are those of implementations in the figures; an implementation without one has no mark.
    """
    overview = make_overview(content.summary, content.failures)
    names = {row.name for table in overview.tables for row in table.rows}
    return render_template(
        "report.html.j2",
        runs=content.runs,
        overview=overview,
        drawings=drawings,
        files=tuple(files),
        links=tuple(links),
        sections=tuple(make_sections(content, drawings, looks)),
        marks={name: make_mark(look) for name, look in looks.items() if name in names},
        reproducing=REPRODUCING,
        from_string=make_environment().from_string,
        plugin_sections=tuple(list_plugin_sections()),
        placeholder=lambda name: Markup(make_placeholder(name)),  # noqa: S704  # two comments with a slug
    )


def render_template(name: str | jinja2.Template, **given: Any) -> str:
    """Return the page that a template makes of what is given, with the style, script and policy of all pages.

    A plug-in has templates of its own, which the method ``from_string`` of ``make_environment`` reads.
    """
    style, script = _read_style() + make_rules(), _read_template_file("page.js")
    return (
        make_environment()
        .get_template(name)
        .render(
            **given,
            # Files of this package, without text from runs. They are not escaped, because the policy has their hashes.
            style=Markup(style),  # noqa: S704
            script=Markup(script),  # noqa: S704
            policy=_make_policy(style, script),
        )
    )


@cache
def make_environment() -> jinja2.Environment:
    """Return the Jinja environment of the templates, with their filters; it escapes markup and hidden characters.

    There is one for all pages of a process, because compiling the templates takes a third of a second.
    """
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("attnbench.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_spell_out,
    )
    made.filters["breakable"] = _add_breaks
    made.filters["count"] = format_count
    made.filters["form"] = describe_form
    made.filters["linked"] = _link_files
    made.filters["pass"] = name_pass
    made.filters["place"] = describe_place
    made.filters["slug"] = make_slug
    made.filters["unbroken"] = _join_numbers
    made.filters["words"] = _keep_words
    return made


def _spell_out(value: Any) -> Any:
    """Spell out the hidden characters of a text that a template shows; markup stays markup."""
    if not isinstance(value, str):
        return value
    return Markup(spell_out(value)) if isinstance(value, Markup) else spell_out(value)  # noqa: S704  # escapes of Python


def _make_policy(style: str, script: str) -> str:
    """Return the page's Content-Security-Policy: only this style, this script and embedded images.

    Source: https://www.w3.org/TR/CSP3/
    """
    return "; ".join(
        (
            "default-src 'none'",
            "img-src data:",
            f"style-src '{_hash(style)}'",
            f"script-src '{_hash(script)}'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


@cache
def _read_style() -> str:
    """Return the style sheets of all sections as one."""
    folder = resources.files("attnbench.report") / "templates"
    names = sorted(
        (path.name for path in folder.iterdir() if path.name.endswith(".css")),
        key=lambda name: (name != FIRST, name == LAST, name),
    )
    return "".join(map(_read_template_file, names))


@cache
def _read_template_file(name: str) -> str:
    # A browser hashes the text after it has turned each CR LF into LF; a checkout on Windows may have CR LF.
    text = (resources.files("attnbench.report") / "templates" / name).read_text(encoding="utf-8")
    return text.replace("\r\n", "\n")


def _add_breaks(text: str) -> Markup:
    """Allow line breaks in a long name after a slash, a dot, an underscore or a plus sign."""
    return Markup("<wbr>").join(re.split(r"(?<=[/._+])", text))


@jinja2.pass_context
def _link_files(context: jinja2.runtime.Context, text: str) -> Markup:
    """Make links of the names of files beside the page; all else in the text is escaped."""
    made, end = Markup(), 0
    for found in FILE_NAME.finditer(text):
        if found[0] in context.get("files", ()):
            made += text[end : found.start()] + Markup('<a href="{0}">{0}</a>').format(found[0])
            end = found.end()
    return made + text[end:]


def _keep_words(text: str) -> Markup:
    """Mark the words of a command, which the page does not break unless one is longer than a line."""
    made = Markup()
    for part in re.split(r"(\s+)", text):
        made += Markup('<span class="word">{}</span>').format(part) if part.strip() else part
    return made


def _join_numbers(text: str) -> str:
    """Prevent line breaks within a number, and between a number and the word after it."""
    return re.sub(r"(\d) (?=[a-z0-9%])", "\\1\u00a0", text)
