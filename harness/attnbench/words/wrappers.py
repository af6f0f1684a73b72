"""The source of a wrapper: a file that declares how a function or a module is called."""

import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path

from attnbench.interface.conventions import Convention
from attnbench.processes.convention_requests import Construction, FunctionProposal, ModuleProposal, NoConvention
from attnbench.words.conventions import describe_stage
from attnbench.words.say import say

__all__ = ["write_wrapper"]

_IMPORT = "from {module} import {names}"
_POLICIES = {
    "nan": ('Policies(hidden_rows="nan", hidden_row_gradients="nan")',),
    "mean": ('Policies(hidden_rows="mean")',),
    "zero": (),
}
_MAKER = "def make(embed_dim, num_heads{options}):\n    return {made}"
_UNUSED = "# Never passed, and so not checked: {names}."
_NO_CONVENTION = "# To edit: {stage}."
_DRAFTED = 'ModuleConvention(projections={"q": "?", "k": "?", "v": "?", "out": "?"})'

_INDENT = "    "
# Imported names by module.
_Imports = dict[str, list[str]]


def write_wrapper(name: str, proposal: FunctionProposal | ModuleProposal | NoConvention) -> str:
    """Return the source of a file that declares an object, which is named ``FILE.py:NAME`` or ``package.module:NAME``.

    The file must stand beside FILE. It is a draft if no convention was found.
    """
    place, _, own = name.rpartition(":")
    imports = {Path(place).stem if place.endswith(".py") else place: [own]}
    constant = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", own.rpartition(".")[2]).upper()
    todo = [say(_NO_CONVENTION, stage=describe_stage(proposal))] if isinstance(proposal, NoConvention) else []
    known = proposal.likely if isinstance(proposal, NoConvention) else proposal
    if known and known.unused:
        todo.append(say(_UNUSED, names=", ".join(known.unused)))
    match known:
        case FunctionProposal():
            parts = [f"{constant} = {_wrap_function(own, known, imports)}"]
        case ModuleProposal():
            maker = _write_maker(own, known.construction, imports)
            parts = ["", maker, "", "", f"{constant} = {_wrap_module(own, known, imports)}"]
        case None if isinstance(proposal, NoConvention) and proposal.kind == "function":
            imports["attnbench.kernel"] = ["from_kernel"]
            parts = [f"{constant} = {_call('from_kernel', [own])}"]
        case None:
            imports["attnbench.kernel"] = ["ModuleConvention", "from_module"]
            maker = say(_MAKER, options="", made=f"{own}(embed_dim, num_heads)")
            parts = ["", maker, "", "", f"{constant} = {_call('from_module', ['make', _DRAFTED])}"]
    return "\n".join([*_write_imports(imports), "", *todo, *parts, ""])


def _write_imports(imports: _Imports) -> Iterator[str]:
    """Yield the import lines: the standard library first, the wrapped object's file last."""
    own, *others = imports
    for module in (*sorted(others, key=lambda one: (one not in sys.stdlib_module_names, one)), own):
        yield say(_IMPORT, module=module, names=", ".join(sorted(imports[module])))


def _wrap_function(own: str, proposal: FunctionProposal, imports: _Imports) -> str:
    imports["attnbench.kernel"] = ["from_kernel"]
    arguments = [own]
    if proposal.convention != Convention():
        imports["attnbench.kernel"].append("Convention")
        arguments.append(f"convention={_write(proposal.convention)}")
    return _call("from_kernel", [*arguments, *_write_policies(proposal, imports)])


def _wrap_module(own: str, proposal: ModuleProposal, imports: _Imports) -> str:
    imports["attnbench.kernel"] = ["ModuleConvention", "from_module"]
    arguments = ["make", _write(proposal.convention), f'name="{own}"']
    return _call("from_module", [*arguments, *_write_policies(proposal, imports)])


def _write_policies(proposal: FunctionProposal | ModuleProposal, imports: _Imports) -> list[str]:
    found = [f"policies={one}" for one in _POLICIES[proposal.hidden_rows]]
    if found:
        imports["attnbench.interface"] = ["Policies"]
    return found


def _write_maker(own: str, construction: Construction, imports: _Imports) -> str:
    """Return the function that makes the module."""
    config = construction.config
    given = _write_arguments(construction.arguments)
    if config:
        imports.setdefault(config.made_by.module or next(iter(imports)), []).append(config.made_by.name)
        given.insert(0, f"{config.name}={config.made_by.name}({', '.join(_write_arguments(config.arguments))})")
    options = [word for word in ("dropout", "bias") if word in construction.expressions]
    return say(
        _MAKER,
        options="".join(f", {one}" for one in ["*", *options]) if options else "",
        made=f"{own}({', '.join(given)})",
    )


def _write_arguments(arguments: Mapping[str, str]) -> list[str]:
    return [f"{name}={expression}" for name, expression in arguments.items()]


def _call(function: str, arguments: Sequence[str]) -> str:
    """Return the source of a call, with one argument a line; a long one is continued on the next line."""
    lines = [
        textwrap.fill(
            f"{one},",
            116,
            initial_indent=_INDENT,
            subsequent_indent=2 * _INDENT,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for one in arguments
    ]
    return "\n".join([f"{function}(", *lines, ")"])


def _write(value: object) -> str:
    """Return the source of a value; of a data class, the fields that are not the defaults."""
    if is_dataclass(value):
        given = {one.name: getattr(value, one.name) for one in fields(value)}
        defaults = {
            one.name: one.default_factory() if callable(one.default_factory) else one.default for one in fields(value)
        }
        shown = [f"{name}={_write(own)}" for name, own in given.items() if own != defaults[name]]
        return f"{type(value).__name__}({', '.join(shown)})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_write(key)}: {_write(own)}' for key, own in value.items())}}}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_write, value))}{',' * (len(value) == 1)})"
    return f'"{value}"' if isinstance(value, str) else repr(value)
