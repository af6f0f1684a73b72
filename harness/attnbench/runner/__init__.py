"""Plan and run cases: start the oracle worker and the candidate workers, and turn replies and failures into results."""

from attnbench.runner.candidate_pool import Limits
from attnbench.runner.conform import conform
from attnbench.runner.expected_failures import (
    Expectation,
    ExpectationError,
    audit,
    read_expectations,
    read_expectations_beside,
)
from attnbench.runner.forecast import Speed, forecast, forecast_case
from attnbench.runner.profile import (
    list_gating_checks,
    list_profile_cases,
    list_shape_cases,
    measure_calls,
    profile,
)
from attnbench.runner.progress import NoProgress, Progress
from attnbench.runner.roofline import measure_ceilings, measure_rates
from attnbench.runner.session import Plan, Session
from attnbench.runner.timeable import list_timeable
from attnbench.runner.timing_processes import Effort

__all__ = [
    "Effort",
    "Expectation",
    "ExpectationError",
    "Limits",
    "NoProgress",
    "Plan",
    "Progress",
    "Session",
    "Speed",
    "audit",
    "conform",
    "forecast",
    "forecast_case",
    "list_gating_checks",
    "list_profile_cases",
    "list_shape_cases",
    "list_timeable",
    "measure_calls",
    "measure_ceilings",
    "measure_rates",
    "profile",
    "read_expectations",
    "read_expectations_beside",
]
