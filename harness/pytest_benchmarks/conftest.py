"""What the stored table says of the machine."""

from typing import Any

from attnbench.records.environment import describe_machine


def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    """Store the name that runs give this machine in place of its host name."""
    machine_info["node"] = describe_machine().name
