"""A case: one problem of one operator, in one dtype, on one device, called in one mode."""

import hashlib
from dataclasses import dataclass, replace
from typing import Any

from attnbench.cases.call_modes import CALL_MODES, MODES, CallMode, Compiler, Mode
from attnbench.cases.case_id import CaseId
from attnbench.cases.dtypes import DTYPES, Dtype
from attnbench.cases.problem import Problem
from attnbench.devices import HOST, list_device_names

__all__ = ["Case"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One problem of one operator, in one dtype, on one device, called in one mode."""

    operator: str
    problem: Any  # the operator's own subclass of Problem
    dtype: Dtype = "float32"
    device: str = HOST
    mode: Mode = "eval"

    @property
    def id(self) -> str:
        """The complete description of this case; ``Case.parse`` is the inverse."""
        problem = self.problem.id()
        parts = CaseId(operator=self.operator, problem=problem, dtype=self.dtype, device=self.device, mode=self.mode)
        return str(parts)

    @property
    def seed(self) -> int:
        """Seed of the inputs: a stable hash of the id without dtype, device and mode.

        Cases that differ only in dtype, device or mode therefore have the same data.
        """
        text = f"{self.operator}/{self.problem.id()}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")

    @property
    def call_mode(self) -> CallMode:
        """How the module is called in this case's mode."""
        return CALL_MODES[self.mode]

    @property
    def given_dtype(self) -> Dtype:
        """Dtype of inputs and parameters: float32 under autocast, and the case's dtype in all other modes."""
        return "float32" if self.autocast else self.dtype

    @property
    def training(self) -> bool:
        """Whether the module is in train() mode; if not, it is in eval() mode."""
        return self.call_mode.training

    @property
    def tracks_inputs(self) -> bool:
        """Whether inputs and masks require gradients."""
        return self.call_mode.inputs_track

    @property
    def leaves_parameters_trainable(self) -> bool:
        """Whether parameters have ``requires_grad``, as those of a new module do: in all modes but ``frozen``.

        Without gradients, torch still reads this flag, and may then compute a product in another way. Where the
        reference does not take its fast path, it takes up to 1.7 times as long on a batch if its parameters are frozen.
        """
        return self.tracks_parameters or not self.differentiates

    @property
    def tracks_parameters(self) -> bool:
        """Whether parameters require gradients."""
        return self.call_mode.parameters_track

    @property
    def differentiates(self) -> bool:
        """Whether any input or parameter requires gradients."""
        return self.tracks_inputs or self.tracks_parameters

    @property
    def compiler(self) -> Compiler | None:
        """The compiler that compiles the module; None if the module is not compiled."""
        return self.call_mode.compiler

    @property
    def autocast(self) -> bool:
        """Whether the module is called under autocast."""
        return self.call_mode.autocast

    def with_fields(self, **common: Any) -> "Case":
        """Return this case with changed values of the fields that every operator's cases have (dtype, device, mode)."""
        return replace(self, **common)

    def with_problem(self, **changes: Any) -> "Case":
        """Return this case with some fields of its problem changed."""
        return replace(self, problem=self.problem.change(**changes))

    @classmethod
    def parse(cls, text: str, problems: dict[str, type[Problem]]) -> "Case":
        """Return the case whose id is ``text``; ``problems`` gives the problem type of each operator.

        Raises: ValueError that names the part that cannot be parsed.
        """
        parts = CaseId.parse(text)
        if parts.operator not in problems:
            raise ValueError(f"unknown operator {parts.operator!r}; available: {', '.join(sorted(problems))}")
        for name, allowed in (("dtype", DTYPES), ("device", list_device_names()), ("mode", MODES)):
            value = getattr(parts, name)
            if value not in allowed:
                raise ValueError(f"unknown {name} {value!r}; available: {', '.join(allowed)}")
        problem = problems[parts.operator].parse(parts.problem)
        common: dict[str, Any] = {"dtype": parts.dtype, "device": parts.device, "mode": parts.mode}
        return cls(operator=parts.operator, problem=problem, **common)
