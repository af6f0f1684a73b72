"""The TOML file of a sweep. Its axes and limits are the options of ``attnbench profile``, under the same names."""

import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import msgspec

from attnbench.devices import list_device_names
from attnsweep.value_faults import describe_fault

__all__ = ["Axes", "Configuration", "ConfigurationError", "Kind", "Machine", "TaskLimits", "read_configuration"]

Kind = Literal["conform", "profile"]
# One or several values of an option: an option that takes a list is written as a list or as on the command line.
Values = str | int | float | list[str | int | float]
# Parameters of the command that do not have the name of their key.
RENAMED = {
    "case": "cases", "timeout": "timeout_s", "memory_limit": "memory_bytes", "work_limit": "work_limit_s",
    "case_budget": "case_budget_s", "cases": "most_cases", "probe": "probe_s",
}  # fmt: skip


class ConfigurationError(Exception):
    """Raised where a sweep cannot be made as it is asked for; the message is one line."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of machine, as Slurm chooses it. Every case of the sweep runs on every kind."""

    # Name of the folder of this kind's results.
    name: str
    constraint: str | None = None
    gres: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    # Cores of a task; also its threads, unless the limits set them.
    cpus: int | None = None
    # Memory of a task as Slurm takes it, such as "32GB".
    memory: str | None = None
    # Device of the cases; None: the device of the sweep.
    device: str | None = None


class Axes(msgspec.Struct, frozen=True, kw_only=True):
    """What is multiplied to cases; each key is the option of ``attnbench profile`` with this name."""

    lengths: Values | None = None
    batch: Values | None = None
    heads: Values | None = None
    head_dim: Values | None = None
    width: Values | None = None
    kv_heads: Values | None = None
    mask: Values | None = None
    padding: Values | None = None
    like: str | None = None
    dtype: Values | None = None
    passes: Values | None = None
    case: Values | None = None


class TaskLimits(msgspec.Struct, frozen=True, kw_only=True):
    """TaskLimits of a task, and the options of ``attnbench profile`` that limit a measurement."""

    minutes: int | None = None
    tries: int | None = None
    cases: int | None = None
    probe: Values | None = None
    processes: int | None = None
    threads: int | None = None
    timeout: Values | None = None
    memory_limit: Values | None = None
    work_limit: Values | None = None
    case_budget: Values | None = None


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration file."""

    kind: Kind | None = None
    implementations: list[str] = []
    suite: str | None = None
    device: str | None = None
    # Folder of the sweep; relative to the working directory, as with the option.
    results: str | None = None
    # Folder of earlier runs, from which the time of a case is estimated.
    earlier: str | None = None
    allow_different_versions: bool | None = None
    axes: Axes = Axes()
    limits: TaskLimits = TaskLimits()
    machines: list[Machine] = []

    def list_defaults(self) -> dict[str, Any]:
        """Return what the file sets, by parameter name of the command."""
        repeated = {"dtype", "passes", "case"}
        given: dict[str, Any] = {}
        for table in (self, self.axes, self.limits):
            for name in table.__struct_fields__:
                value = getattr(table, name)
                if value is None or isinstance(value, msgspec.Struct) or name in ("implementations", "machines"):
                    continue
                words = [str(one) for one in value] if isinstance(value, list) else value
                if name in repeated:
                    words = words if isinstance(words, list) else str(words).split(",")
                elif not isinstance(words, bool):
                    words = ",".join(words) if isinstance(words, list) else str(words)
                given[RENAMED.get(name, name)] = words
        return given

    def name_key(self, parameter: str) -> str:
        """Return the key, with its table, that sets a parameter of the command, such as "axes.case"."""
        key = next((key for key, name in RENAMED.items() if name == parameter), parameter)
        tables = {"axes.": Axes, "limits.": TaskLimits}
        return next((table for table, kind in tables.items() if key in kind.__struct_fields__), "") + key


def read_configuration(path: Path) -> Configuration:
    """Read a configuration file.

    Raises: ConfigurationError where the file cannot be read, or has a key, a type or a value that is not known.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}; name a TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from error
    _check_keys(path, "", tables, Configuration)
    for name, kind in (("axes", Axes), ("limits", TaskLimits)):
        if isinstance(tables.get(name), dict):
            _check_keys(path, f"{name}.", tables[name], kind)
    machines = tables.get("machines")
    for number, table in enumerate(machines if isinstance(machines, list) else []):
        if isinstance(table, dict):
            _check_keys(path, f"machines[{number}].", table, Machine)
    try:
        found = msgspec.convert(tables, Configuration)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{path}: {describe_fault(error, tables, Configuration)}") from error
    _check_machines(path, found.machines)
    return found


def _check_keys(path: Path, place: str, table: dict[str, Any], kind: type[msgspec.Struct]) -> None:
    """Refuse a key that the table does not have, and an empty list.

    Raises: ConfigurationError.
    """
    for key, value in table.items():
        if key not in kind.__struct_fields__:
            near = get_close_matches(key, kind.__struct_fields__, n=1)
            hint = f", did you mean {near[0]!r}?" if near else ""
            available = ", ".join(kind.__struct_fields__)
            raise ConfigurationError(f"{path}: unknown key {place + key!r}{hint}; available: {available}")
        if value == []:
            raise ConfigurationError(
                f"{path}: {place + key} is an empty list, so the sweep has no case; name a value, or leave the key out"
            )


def _check_machines(path: Path, machines: list[Machine]) -> None:
    devices = list_device_names()
    for number, machine in enumerate(machines):
        if machine.device not in (None, *devices):
            needed = " or ".join(map(repr, devices))
            raise ConfigurationError(f"{path}: machines[{number}].device needs {needed}, got {machine.device!r}")
    names = [machine.name for machine in machines]
    for name in names:
        if not name or not name.replace("-", "").replace("_", "").isalnum():
            raise ConfigurationError(
                f"{path}: machines: a name has letters, digits, - and _ only, because it names a folder, got {name!r}"
            )
        if names.count(name) > 1:
            raise ConfigurationError(f"{path}: machines: two have the name {name!r}; give each a name of its own")
