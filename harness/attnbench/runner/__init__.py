"""Planning and running: starts the judge and the workers, and turns answers, deaths and silence into results."""

from attnbench.runner.ceilings import ceilings
from attnbench.runner.conform import conform
from attnbench.runner.expected_failures import (
    Expectation,
    ExpectationError,
    audit,
    expectations_beside,
    read_expectations,
)
from attnbench.runner.profile import gating_checks, measure, profile, profile_cases
from attnbench.runner.progress import NoProgress, Progress
from attnbench.runner.session import Limits, Plan, Session
from attnbench.runner.timing import Effort

__all__ = [
    "Effort",
    "Expectation",
    "ExpectationError",
    "Limits",
    "NoProgress",
    "Plan",
    "Progress",
    "Session",
    "audit",
    "ceilings",
    "conform",
    "expectations_beside",
    "gating_checks",
    "measure",
    "profile",
    "profile_cases",
    "read_expectations",
]
