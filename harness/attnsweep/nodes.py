"""Whether a Slurm cluster has a node on which the tasks of each kind of machine can run, as ``sinfo`` describes it."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from attnsweep.configuration import ConfigurationError, Machine
from attnsweep.slurm import ask_slurm

__all__ = ["check_machines"]

# Partition, CPUs, memory in MiB, time limit, features and generic resources, one line for each node in each partition
# (man sinfo, --format). "*" follows the name of the default partition.
FORMAT = "%P|%c|%m|%l|%f|%G"
# A feature in a constraint such as "[a100*2&nvlink|h100]", or one of its signs; "*" and a number are a count of nodes.
WORD, SIGNS = re.compile(r"[A-Za-z_][\w.:=-]*|[&|()\[\]]"), "&|()[]"
# A generic resource, such as "gpu:a100:2", "gpu:2" or "gpu"; the sockets of a node's resource follow in parentheses.
GRES = re.compile(
    r"(?P<name>[^:()]+)(?::(?P<type>(?!\d+[KMGTP]?(?:\(|$))[^:()]+))?(?::(?P<count>\d+)(?P<unit>[KMGTP]?))?(?:\(.*)?",
    re.IGNORECASE,
)
MEMORY = re.compile(r"(?P<count>\d+)(?P<unit>[KMGTP]?)B?", re.IGNORECASE)
# Powers of 1024 of the units; memory without a unit is in MiB (man sbatch, --mem).
POWERS = {"K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node in one of its partitions."""

    partition: str
    is_default: bool
    cpus: int
    memory_mib: int
    # Time limit of the partition; None if it has none.
    minutes: int | None
    features: frozenset[str]
    # Number of each generic resource, by its name and by its name with its type: "gpu" and "gpu:a100".
    gres: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a kind of machine asks for."""

    # The setting in words, and the nodes that fit it, in words that follow "node".
    setting: str
    nodes: str
    fits: Callable[[Node], bool]
    # What some nodes have of it, in words that follow "no node fits".
    describe: Callable[[Sequence[Node]], str]


def check_machines(machines: Sequence[Machine], *, minutes: int) -> None:
    """Refuse a kind of machine if no node can run its tasks, however long they wait; ``minutes`` is their time limit.

    Raises: ConfigurationError, also where Slurm does not answer.
    """
    lines = ask_slurm("sinfo", "--all", "--noheader", "--Node", f"--format={FORMAT}").splitlines()
    nodes = [node for line in lines if (node := _parse_node(line)) is not None]
    for machine in machines if nodes else ():
        _check_machine(_list_demands(machine, nodes, minutes), nodes, machine.name)


def _parse_node(line: str) -> Node | None:
    """Return the node of a line; None for a line of another form."""
    fields = line.strip().split("|")
    if len(fields) != 6 or not (fields[1].isdecimal() and fields[2].isdecimal()):
        return None
    partition, cpus, memory, limit, features, gres = fields
    return Node(
        partition=partition.rstrip("*"), is_default=partition.endswith("*"), cpus=int(cpus), memory_mib=int(memory),
        minutes=_parse_minutes(limit), features=frozenset(features.split(",")) - {"(null)"}, gres=_count_gres(gres),
    )  # fmt: skip


def _parse_minutes(limit: str) -> int | None:
    """Return the minutes of a time limit such as "1-12:00:00"; None for "infinite" and for other words."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limit)
    if found is None:
        return None
    days, hours, minutes, _ = (int(text or 0) for text in found.groups())
    return (24 * days + hours) * 60 + minutes


def _count_gres(text: str) -> dict[str, int]:
    """Return the number of each generic resource in a list such as "gpu:a100:4(S:0-1),shard:8"."""
    found: dict[str, int] = {}
    # Commas in parentheses are part of a list of sockets.
    for word in re.split(r",(?![^(]*\))", text):
        if (one := GRES.fullmatch(word)) is None or not one["name"] or one["name"] == "null":
            continue
        count = int(one["count"] or 1) << 10 * POWERS.get((one["unit"] or "").upper(), 0)
        for name in {one["name"], f"{one['name']}:{one['type']}" if one["type"] else one["name"]}:
            found[name] = found.get(name, 0) + count
    return found


def _check_machine(demands: Iterable[Demand], nodes: Sequence[Node], name: str) -> None:
    """Leave out the nodes that one demand after another excludes, until none is left.

    Raises: ConfigurationError that names the setting which excludes the last ones, and what these have.
    """
    left = list(nodes)
    of = ""
    for demand in demands:
        fitting = [node for node in left if demand.fits(node)]
        if not fitting:
            has = demand.describe(left)
            raise ConfigurationError(
                f"machine {name!r}: {demand.setting}: no node{of} fits; {has}; ask for what a node has"
            )
        left = fitting
        of += f" {demand.nodes}"


def _list_demands(machine: Machine, nodes: Sequence[Node], minutes: int) -> Iterator[Demand]:
    if (partition := machine.partition) is not None:
        yield Demand(
            setting=f"partition {partition!r}", nodes=f"in partition {partition!r}",
            fits=lambda node: node.partition in partition.split(","),
            describe=lambda left: f"the partitions are: {_list_words(node.partition for node in left)}",
        )  # fmt: skip
    elif any(node.is_default for node in nodes):
        yield Demand(
            setting="no partition", nodes="in the default partition", fits=lambda node: node.is_default, describe=str
        )
    if (constraint := machine.constraint) is not None:
        yield Demand(
            setting=f"constraint {constraint!r}", nodes=f"with constraint {constraint!r}",
            fits=lambda node: _fits_constraint(constraint, node.features),
            describe=lambda left: _describe_features(constraint, left),
        )  # fmt: skip
    for name, count in _count_gres(machine.gres or "").items():
        yield _demand_gres(f"gres {machine.gres!r}", name, count)
    if (cpus := machine.cpus) is not None:
        yield Demand(
            setting=f"cpus = {cpus}", nodes=f"with cpus = {cpus}", fits=lambda node: node.cpus >= cpus,
            describe=lambda left: f"the largest has cpus = {max(node.cpus for node in left)}",
        )  # fmt: skip
    if machine.memory is not None and (memory_mib := _parse_memory(machine.memory)) is not None:
        yield Demand(
            setting=f"memory {machine.memory!r}", nodes=f"with memory {machine.memory!r}",
            fits=lambda node: node.memory_mib >= memory_mib,
            describe=lambda left: f"the largest has memory '{max(node.memory_mib for node in left)}M'",
        )  # fmt: skip
    yield Demand(
        setting=f"minutes = {minutes}", nodes=f"with minutes = {minutes}",
        fits=lambda node: node.minutes is None or node.minutes >= minutes,
        describe=lambda left: f"the longest time limit is minutes = {max(node.minutes or 0 for node in left)}",
    )  # fmt: skip


def _demand_gres(asked: str, name: str, count: int) -> Demand:
    def describe(nodes: Sequence[Node]) -> str:
        most: dict[str, int] = {}
        for node in nodes:
            for other, own in node.gres.items():
                most[other] = max(own, most.get(other, 0))
        return f"the most of each gres is: {_list_words(f'{other}:{own}' for other, own in most.items())}"

    return Demand(
        setting=asked,
        nodes=f"with {name}:{count}",
        fits=lambda node: node.gres.get(name, 0) >= count,
        describe=describe,
    )


def _describe_features(constraint: str, nodes: Sequence[Node]) -> str:
    existing = {name for node in nodes for name in node.features}
    unknown = [name for name in WORD.findall(constraint) if name not in SIGNS and name not in existing]
    none = f"none has {unknown[0]!r}; " if unknown else ""
    return f"{none}the features are: {_list_words(existing)}"


def _list_words(words: Iterable[str]) -> str:
    return ", ".join(sorted(set(words))) or "none"


def _parse_memory(text: str) -> int | None:
    """Return memory in MiB; None for what Slurm may know, and for "0", all memory of a node."""
    found = MEMORY.fullmatch(text.strip())
    if found is None:
        return None
    return int(found["count"]) << 10 * POWERS[(found["unit"] or "M").upper()] >> 20


def _fits_constraint(constraint: str, features: frozenset[str]) -> bool:
    """Return whether a node with these features fits a constraint; of a task, each node has to fit it."""
    words = WORD.findall(constraint)

    def read_any(place: int) -> tuple[bool, int]:
        """Read features that "|" joins; return whether any fits, and the place behind them."""
        fits, place = read_all(place)
        while place < len(words) and words[place] == "|":
            other, place = read_all(place + 1)
            fits = fits or other
        return fits, place

    def read_all(place: int) -> tuple[bool, int]:
        fits, place = read_one(place)
        while place < len(words) and words[place] == "&":
            other, place = read_one(place + 1)
            fits = fits and other
        return fits, place

    def read_one(place: int) -> tuple[bool, int]:
        if place >= len(words):
            return True, place
        if words[place] in ("(", "["):
            fits, place = read_any(place + 1)
            return fits, place + 1
        return words[place] in features, place + 1

    return read_any(0)[0]
