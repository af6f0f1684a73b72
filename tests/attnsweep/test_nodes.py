"""Tests of the demands of machines on the nodes of a cluster, with a program in place of Slurm's ``sinfo``."""

from pathlib import Path

import pytest

from attnsweep.configuration import ConfigurationError, Machine
from attnsweep.nodes import check_machines

NODES = """\
main*|64|257000|2-00:00:00|a100,nvlink|gpu:a100:4(S:0-1),shard:8
main*|32|128000|2-00:00:00|h100|gpu:h100:2(IDX:0,1)
main*|128|515000|2-00:00:00|(null)|(null)
short|16|64000|30:00|a100|gpu:a100:1
"""


@pytest.fixture(autouse=True)
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file with what sinfo prints."""
    path = tmp_path / "nodes"
    path.write_text(NODES)
    program = tmp_path / "sinfo"
    program.write_text(f"#!/bin/sh\ncat {path}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return path


@pytest.mark.parametrize(
    "machine",
    [
        Machine(name="m"),
        Machine(name="m", constraint="a100&nvlink", gres="gpu:a100:4", cpus=64, memory="250G"),
        Machine(name="m", constraint="[a100*2|h100]", gres="gpu:2"),
        Machine(name="m", constraint="(b200|h100)&(h100|nvlink)", gres="gpu"),
        Machine(name="m", partition="short,main", gres="gpu:a100:4", memory="0"),
        Machine(name="m", gres="gpu:h100:2"),
        Machine(name="m", cpus=128, memory="515000"),
    ],
)
def test_what_a_node_has_is_accepted(machine: Machine) -> None:
    """One node has to fit all settings of a machine; of several partitions, one has to fit."""
    check_machines([machine], minutes=60)


@pytest.mark.parametrize(
    ("machine", "message"),
    [
        (
            Machine(name="m", constraint="a100&b200"),
            "constraint 'a100&b200': no node in the default partition fits; none has 'b200'; the features are: a100, "
            "h100, nvlink; ask for what a node has",
        ),
        (
            Machine(name="m", constraint="nvlink&h100"),
            "constraint 'nvlink&h100': no node in the default partition fits; the features are: a100, h100, nvlink; "
            "ask for what a node has",
        ),
        (
            Machine(name="m", partition="long"),
            "partition 'long': no node fits; the partitions are: main, short; ask for what a node has",
        ),
        (
            Machine(name="m", constraint="h100", gres="gpu:4"),
            "gres 'gpu:4': no node in the default partition with constraint 'h100' fits; the most of each gres is: "
            "gpu:2, gpu:h100:2; ask for what a node has",
        ),
        (
            Machine(name="m", gres="gpu:1", cpus=99),
            "cpus = 99: no node in the default partition with gpu:1 fits; the largest has cpus = 64; ask for what a "
            "node has",
        ),
        (
            Machine(name="m", constraint="a100", memory="512GB"),
            "memory '512GB': no node in the default partition with constraint 'a100' fits; the largest has memory "
            "'257000M'; ask for what a node has",
        ),
        (
            Machine(name="m", partition="short"),
            "minutes = 60: no node in partition 'short' fits; the longest time limit is minutes = 30; ask for what a "
            "node has",
        ),
    ],
)
def test_what_no_node_has_is_one_line(machine: Machine, message: str) -> None:
    """The line names the setting, the nodes that fit all others, and the largest value that one of these has."""
    with pytest.raises(ConfigurationError) as caught:
        check_machines([Machine(name="any"), machine], minutes=60)
    assert str(caught.value) == f"machine 'm': {message}"


def test_a_sinfo_that_is_not_understood_refuses_nothing(nodes: Path) -> None:
    """Another Slurm may print other lines; Slurm itself then refuses what it does not have."""
    nodes.write_text("something else\n")
    check_machines([Machine(name="m", cpus=10**6)], minutes=60)
