"""A request to the oracle worker of this study. The worker also answers all requests of ``oracle_requests``."""

from attnbench.processes.oracle_requests import OracleRequest

__all__ = ["ReadSeconds"]


class ReadSeconds(OracleRequest[dict[str, float]], frozen=True, kw_only=True):
    """A request for the CPU seconds that each part of the work has used so far."""
