"""Writes the two pages of docs/ that nobody writes by hand: formats.md from types, checks.md from the catalogue.

Run: python docs/generate.py
The source of the types is read with griffe, which mkdocstrings is built on; it is not imported.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import griffe

from attnbench.checks.catalogue import read_checks
from attnbench.mutants.mutant import load_mutant_set
from attnbench.plugins.registry import OPERATORS, list_names, load_operator
from attnbench.report.columns import CHANGES
from attnbench.report.tables import TABLES

DOCS = Path(__file__).parent
PACKAGE = DOCS.parent / "harness" / "attnbench"

RECORDS = (
    "Run", "Machine", "StoredJob", "Planned", "Result", "Finding", "Memory", "Samples", "Timing", "Ceiling",
    "Completion", "Resumption", "End",
)  # fmt: skip
# The records that are lines of a run file; the others are values of their fields.
LINES = ("Run", "Result", "Samples", "Ceiling", "Completion", "Resumption", "End")
DISPATCH = ("Dispatch", "DispatchCell", "Offer")
CERTIFICATE = ("Suite", "Code")
# Parts of facts, and of phrases in them.
OF_FACTS = (
    "Phrase", "Compared", "Coordinate", "SharedPositions", "Limit", "Fault", "SeenPolicy", "Argument", "Size",
    "SweptSize",
)  # fmt: skip
# Words of JSON for the types of fields.
WORDS = {
    "str": "text", "int": "integer", "float": "number", "bool": "boolean", "Any": "any value", "None": "null",
    "Number": "number", "Status": "text", "Fact": "[fact](#facts)", "Reason": "[fact](#facts) or text",
    "TypedRefusal": "[refusal](#refusals)", "Death": "[fact](#facts)", "Rows": "text", "ProbeName": "text",
    "Acts": "text", "SizeName": "text",
}  # fmt: skip


def make_formats() -> str:
    """Return the text of docs/formats.md."""
    types, dispatch = _read("records/types.py"), _read("analysis/dispatch.py")
    parts = [
        "# Fields and columns\n\nFor readers whose programs read what attnbench writes. `python docs/generate.py` "
        "makes this page from the source; [results.md](results.md) says what the files are for.",
        "## The run file\n\n"
        "A line is a JSON object. Its first field is `record`, with the name of one of these records in lower case: "
        f"{', '.join(f'`{name}`' for name in LINES)}. Fields with their usual value may be absent.",
        *(_describe_class(types, name) for name in RECORDS),
        "### Facts\n\nA fact is an object whose field `type` has one of these names.\n\n"
        + _list_tagged(_read("records/value_facts.py"), _read("records/outcome_facts.py")),
        "### Refusals\n\nA refusal is an object whose field `type` has one of these names.\n\n"
        + _list_tagged(_read("refusals.py")),
        "### Parts of facts",
        *(
            _describe_class(module, name, level=4)
            for module in (_read("records/value_facts.py"), _read("records/outcome_facts.py"))
            for name in OF_FACTS
            if name in module.classes
        ),
        "### Versions\n\n`schema` of a run is one of these. attnbench reads older versions and refuses newer ones.\n\n"
        + _list_history(types),
        "## The tables of a report\n\nA number that was not measured is empty in a CSV file, and NaN or NA in pandas.",
        *_describe_tables(),
        "## dispatch.json",
        *(_describe_class(dispatch, name) for name in DISPATCH),
        _describe_class(_read("analysis/stats.py"), "Interval"),
        "## Objects of a certificate\n\n[results.md](results.md#certificates) describes the certificate.",
        *(_describe_class(_read("analysis/certificate.py"), name) for name in CERTIFICATE),
    ]
    return "\n\n".join(parts) + "\n"


def make_checks() -> str:
    """Return the text of docs/checks.md."""
    sets = [load_mutant_set(load_operator(name)) for name in list_names(OPERATORS)]
    named = Counter(mutant.caught_by for one in sets for mutant in one.mutants)
    parts = [
        "# All checks\n\nFor readers who look up what a check requires. `python docs/generate.py` makes this page from "
        "the source; [conformance.md](conformance.md#the-checks) says how checks work. The last column counts the "
        "[mutants](conformance.md#mutants) that name the check as one that must fail on them."
    ]
    for chapter, checks in groupby(read_checks().values(), key=lambda check: check.chapter):
        rows = [[f"`{one.name}`", one.requirement, str(named[one.name])] for one in checks]
        parts.append(f"## {chapter}\n\n{_make_table(['check', 'requirement', 'mutants'], rows)}")
    return "\n\n".join(parts) + "\n"


PAGES = {"formats.md": make_formats, "checks.md": make_checks}


def _read(name: str) -> griffe.Module:
    path = PACKAGE / name
    code, lines = path.read_text(encoding="utf-8"), griffe.LinesCollection()
    lines[path] = code.splitlines()
    return griffe.visit(path.stem, filepath=path, code=code, lines_collection=lines)


def _describe_class(module: griffe.Module, name: str, level: int = 3) -> str:
    """Return the heading, the docstring and the fields of a class; fields that share a comment share a row."""
    found = module.classes[name]
    rows = [
        [", ".join(f"`{field.name}`" for field in fields), _describe_type(fields), _tidy(comment)]
        for fields, comment in _group_fields(found)
    ]
    return f"{'#' * level} {name}\n\n{_tidy(_text(found))}\n\n{_make_table(['field', 'type', 'is'], rows)}"


def _group_fields(found: griffe.Class) -> list[tuple[list[griffe.Attribute], str]]:
    """Return the fields with their comments; a field joins the one before if only the latter's comment names it."""
    groups: list[tuple[list[griffe.Attribute], str]] = []
    for field in _list_fields(found):
        comment = _read_comment(field)
        if not comment and groups and _names(groups[-1][1], field.name):
            groups[-1][0].append(field)
        else:
            groups.append(([field], comment))
    return groups


def _names(comment: str, field: str) -> bool:
    """Whether a comment says what a field is: it begins with the names of its fields, or has this name and a colon."""
    return f"``{field}``:" in comment or (comment.startswith("``") and f"``{field}``" in comment)


def _list_fields(found: griffe.Class) -> Iterator[griffe.Attribute]:
    return (one for one in found.attributes.values() if one.annotation is not None and "property" not in one.labels)


def _read_comment(field: griffe.Attribute) -> str:
    """Return the lines of comment right above a field."""
    lines = field.lines_collection[Path(str(field.filepath))]
    above: list[str] = []
    number = (field.lineno or 1) - 2
    while lines[number].strip().startswith("#"):
        above.insert(0, lines[number].strip().removeprefix("#").strip())
        number -= 1
    return " ".join(above)


def _describe_type(fields: Sequence[griffe.Attribute]) -> str:
    return "; ".join(dict.fromkeys(_name_type(ast.parse(str(field.annotation), mode="eval").body) for field in fields))


def _name_type(node: ast.expr) -> str:
    """Return a type in the words of JSON."""
    match node:
        case ast.Constant(value=None):
            return "null"
        case ast.Constant(value=str(text)):
            return _name_type(ast.parse(text, mode="eval").body)
        case ast.Name(id=name):
            return WORDS.get(name) or f"[{name}](#{name.lower()})"
        case ast.BinOp(left=left, right=right):
            return f"{_name_type(left)} or {_name_type(right)}"
        case ast.Subscript(value=ast.Name(id="Literal"), slice=values):
            names = values.elts if isinstance(values, ast.Tuple) else [values]
            return " or ".join(f"`{ast.literal_eval(one)}`" for one in names)
        case ast.Subscript(value=ast.Name(id="dict" | "Mapping"), slice=ast.Tuple(elts=[_, value])):
            return f"object of {_name_type(value)}"
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=elements)) if not _is_open(elements):
            return f"[{', '.join(map(_name_type, elements))}]"
        case ast.Subscript(value=ast.Name(id="tuple" | "list" | "Sequence"), slice=inner):
            element = inner.elts[0] if isinstance(inner, ast.Tuple) else inner
            return f"list of {_name_type(element)}"
    raise ValueError(f"no words for the type {ast.unparse(node)}")


def _is_open(elements: Sequence[ast.expr]) -> bool:
    return isinstance(elements[-1], ast.Constant) and elements[-1].value is ...


def _list_tagged(*modules: griffe.Module) -> str:
    """Return the tagged structs of these modules: name, first line of the docstring, and fields."""
    tagged = [one for module in modules for one in module.classes.values() if "tag" in _list_keywords(one)]
    rows = [
        [f"`{one.name}`", _tidy(_text(one)), ", ".join(f"`{field.name}`" for field in _list_fields(one))]
        for one in tagged
    ]
    return _make_table(["type", "says", "fields"], rows)


def _list_keywords(found: griffe.Class) -> set[str]:
    """Return the keywords in the head of a class, such as ``tag``."""
    node = ast.parse(found.source).body[0]
    return {keyword.arg or "" for keyword in node.keywords} if isinstance(node, ast.ClassDef) else set()


def _list_history(module: griffe.Module) -> str:
    """Return the history in the docstring of a module: a number, and what came with it."""
    lines = _text(module).partition("History of SCHEMA\n")[2]
    entries = re.findall(r"^(\d+)  (.*(?:\n   .*)*)", lines, flags=re.MULTILINE)
    return _make_table(["schema", "brought"], [[number, _tidy(text)] for number, text in entries])


def _describe_tables() -> Iterator[str]:
    found = [(name + ".csv" * one.in_report, one.row, one.columns) for name, one in TABLES.items()]
    found.append(("compare", "a change, in the table that `Comparison.to_frame()` returns", CHANGES))
    for name, row, columns in found:
        rows = [[f"`{column.name}`", column.meaning] for column in columns]
        yield f"### {name}\n\nA row is {row}.\n\n{_make_table(['column', 'is'], rows)}"


def _text(found: griffe.Object) -> str:
    return found.docstring.value if found.docstring else ""


def _tidy(text: str) -> str:
    """Return a docstring or comment in one paragraph, in the words of JSON and with the code marks of Markdown."""
    return " ".join(re.sub(r"\bNone\b", "null", text.replace("``", "`")).split())


def _make_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    for page, make in PAGES.items():
        (DOCS / page).write_text(make(), encoding="utf-8")
