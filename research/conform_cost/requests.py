"""The request that only the oracle worker of this study answers, in addition to those of ``oracle_requests``."""

from attnbench.processes.oracle_requests import OracleRequest

__all__ = ["ReadSeconds"]


class ReadSeconds(OracleRequest[dict[str, float]], frozen=True, kw_only=True):
    """Return the CPU seconds that each part of the work has used so far."""
