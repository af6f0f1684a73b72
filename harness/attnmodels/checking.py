"""The order of work: the situations of a model with exact attention, then each function in each of them."""

import copy
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import metadata
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.interface import Refusal
from attnbench.plugins.registry import PluginError, join_lines
from attnmodels.facts import (
    END_TO_END,
    MODEL,
    ORDER,
    SITUATIONS,
    CallsDiffer,
    Cell,
    Inspection,
    LeftOut,
    ModelFact,
    Raised,
    Situation,
    Status,
)
from attnmodels.inputs import Forward, Plan, list_alone, plan_situation
from attnmodels.judging import judge, judge_dropout
from attnmodels.patterns import compare_alone, find_patterns, judge_mask
from attnmodels.recording import Attend, Call, Function, Given, Recorder, Wrap, outside_model, run_plan
from attnmodels.shrinking import DROPOUTS
from attnmodels.situations import find_reason, has_feature
from attnmodels.sources import BuiltModel, build_model
from attnmodels.tokens import Pattern
from attnmodels.whole import Budget, find_whole_reason, make_budget, run_whole

__all__ = ["CheckedModel"]

# Packages whose versions are told.
LIBRARIES = ("torch", "transformers", "diffusers")
# Inputs of the whole model: the first of these that it has. Behind padding on the left, a causal mask is not enough.
WHOLE: tuple[Situation, ...] = ("left-padding", "right-padding", "no-padding")
# Relative difference that rounding in float64 may make between two paths of the same model.
SAME_IN_FLOAT64 = 1e-9
# Exceptions by which a function says that it does not support a call.
REFUSALS = (Refusal, ValueError, NotImplementedError, ImportError)
# Most characters of the message of an exception.
MESSAGE = 300


@dataclass(slots=True)
class CheckedModel:
    """A model, and its calls with exact attention in every situation."""

    source: str
    small: bool | None = None
    model: Any = field(init=False)
    built: BuiltModel = field(init=False)
    exact: Any = field(init=False)
    calls: dict[Situation, list[list[Call]]] = field(init=False, default_factory=dict)
    left_out: list[LeftOut] = field(init=False, default_factory=list)
    patterns: dict[tuple[str, int], Pattern | None] = field(init=False, default_factory=dict)
    # Relative difference that casts to float32 inside the model make.
    cast_floor: float = field(init=False, default=0.0)
    _in_dtype: dict[torch.dtype, Any] = field(init=False, default_factory=dict)
    _budgets: dict[Situation, Budget] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Build the model, and run it with exact attention.

        Raises: PluginError in one line where there is no such model, or it cannot be checked.
        """
        self.built = build_model(self.source, small=self.small)
        self.model = self.built.model
        kind = type(self.model).__name__
        for module in (one for one in self.model.modules() if hasattr(one, "layerdrop")):
            # In training, layers would be left out at random.
            module.layerdrop = 0.0
        self.exact = copy.deepcopy(self.model).double()
        self.built.library.select(self.exact, None)
        try:
            first = self._record(self._plan("no-padding"))
        except Exception as error:  # what inputs a model takes is known by running it
            raise PluginError(f"{kind} cannot be run: {_shorten(error)}") from error
        if not any(first):
            raise PluginError(f"{kind} calls {self.built.library.called}")
        if _differ(first, self._record(self._plan("no-padding"))) > SAME_IN_FLOAT64:
            raise PluginError(f"{kind} is not deterministic: two equal passes differ")
        self.cast_floor = self._measure_casts(first)
        self._run_situations(first)

    def _measure_casts(self, first: list[list[Call]]) -> float:
        try:
            return _differ(first, self._record(self._plan("no-padding"), widen=False))
        except Exception:  # noqa: BLE001  # some models run in float64 without these casts alone
            return 0.0

    def _run_situations(self, first: list[list[Call]]) -> None:
        for situation in SITUATIONS:
            if reason := find_reason(situation, self.exact, list(chain(*first)), self.built.features):
                self.left_out.append(LeftOut(situation=situation, reason=reason))
                continue
            try:
                calls, again = (self._record(self._plan(situation)) for _ in range(2))
                random = _differ(calls, again) > SAME_IN_FLOAT64
            except Exception as error:  # noqa: BLE001  # a model may raise anything in a situation that it does not know
                self.left_out.append(LeftOut(situation=situation, reason=f"cannot be run: {_shorten(error)}"))
                continue
            if random:
                self.left_out.append(LeftOut(situation=situation, reason="random"))
                continue
            if situation == "dropout" and not self._drops(chain(*calls)):
                self.left_out.append(LeftOut(situation=situation, reason="no dropout"))
                continue
            self.calls[situation] = calls
            self.patterns = self.patterns or find_patterns(self.calls[situation][0])
        self._budget_whole()

    def _drops(self, calls: Iterable[Call]) -> bool:
        """Whether the model's own configuration asks for dropout of attention."""
        return any(one.dropout for one in calls) and not set(DROPOUTS) & set(self.built.changed)

    def _budget_whole(self) -> None:
        for situation in END_TO_END:
            reason = find_whole_reason(self.exact, situation)
            try:
                if reason is None:
                    plan = self._plan_whole(situation)
                    model = self._convert(plan.dtype, None)
                    self._budgets[situation] = make_budget(self.exact, model, plan, self._hand(None))
            except Exception as error:  # noqa: BLE001  # as above
                reason = f"cannot be run: {_shorten(error)}"
            if reason is not None:
                self.left_out.append(LeftOut(situation=situation, reason=reason))

    def _plan_whole(self, situation: Situation) -> Plan:
        """Return one forward pass in evaluation, with padding if the model takes a mask: on the left if it can be."""
        padded = next(one for one in WHOLE if one in self.calls)
        return replace(self._plan(padded), dtype=getattr(torch, END_TO_END[situation]))

    def _plan(self, situation: Situation) -> Plan:
        return plan_situation(self.exact, situation, self.built.features)

    def _record(self, plan: Plan, *, widen: bool = True) -> list[list[Call]]:
        """Return the calls of each forward pass of a plan, with exact attention in float64."""
        names = {id(module): name for name, module in self.exact.named_modules()}
        recorders: list[Recorder] = []

        def record(forward: Forward) -> Wrap:
            recorders.append(Recorder(names, forward))
            return lambda _: recorders[-1]

        run_plan(self.exact, plan, record, self._hand(None), widen=widen)
        return [one.calls for one in recorders]

    def inspect(self) -> Inspection:
        """Return what the model is, and what was found of its own masks and numbers."""
        calls = next(iter(self.calls.values()))
        return Inspection(
            model=type(self.model).__name__,
            parameters=sum(one.numel() for one in self.model.parameters()),
            layers=tuple(dict.fromkeys(one.layer for one in chain(*calls))),
            changed=self.built.changed,
            situations=(*self.calls, *self._budgets),
            left_out=tuple(self.left_out),
            cast_floor=self.cast_floor,
            unknown_patterns=tuple(layer for (layer, _), pattern in self.patterns.items() if pattern is None),
            cells=tuple(map(self._check_model, filter(self._has_tokens, self.calls))),
            unseen_layers=tuple(self._list_unseen()),
            versions={name: metadata.version(name) for name in LIBRARIES if name in sys.modules},
        )

    def _has_tokens(self, situation: Situation) -> bool:
        """Whether the tokens of a call are known, with which masks and numbers can be compared."""
        return any(one.queries is not None for one in chain(*self.calls[situation]))

    def _list_unseen(self) -> Iterator[str]:
        """Yield the outermost modules that are named attention, and in which no call was seen."""
        seen = {one.layer for calls in self.calls.values() for one in chain(*calls)}
        last = None
        for name, module in self.exact.named_modules():
            inside = last is not None and name.startswith(f"{last}.")
            touched = any(f"{one}.".startswith(f"{name}.") or f"{name}.".startswith(f"{one}.") for one in seen)
            if "attention" in type(module).__name__.lower() and not inside and not touched:
                last = name
                yield name

    def _check_model(self, situation: Situation) -> Cell:
        """Compare the model's masks with its layers' patterns, and its numbers with those of each sequence alone."""
        calls = list(chain(*self.calls[situation]))
        found: list[tuple[Call, ModelFact]] = []
        for call in calls:
            pattern = self.patterns.get((call.layer, call.occurrence))
            if pattern is not None and (fact := judge_mask(call, pattern)):
                found.append((call, fact))
        alone = list_alone(self.exact, self._plan(situation))
        if alone and not found:
            expected = chain(*self._record(Plan(forwards=alone)))
            found += compare_alone(calls, expected, SAME_IN_FLOAT64)
        return _make_cell(MODEL, situation, len(calls), [(call.layer, [fact]) for call, fact in found])

    def check(self, attention: str, situations: Iterable[Situation] = ORDER) -> tuple[Cell, ...]:
        """Check an attention function in those of the situations that the model has.

        Raises: PluginError in one line where there is no such function.
        """
        found = self.built.library.find(attention)
        asked = set(situations)
        calls = (self._check(attention, found, one) for one in self.calls if one in asked)
        wholes = (self._check_whole(attention, found, one) for one in self._budgets if one in asked)
        return (*calls, *wholes)

    def _check_whole(self, attention: str, found: Any, situation: Situation) -> Cell:
        plan, budget = self._plan_whole(situation), self._budgets[situation]
        try:
            own = run_whole(self._convert(plan.dtype, found), plan, lambda same: same, self._hand(found))
            facts = budget.judge(own)
        except Exception as error:  # noqa: BLE001  # as in _check
            return _make_cell(attention, situation, 0, [("", [_read_exception(error)])])
        held = all(one.share <= 1 for one in facts)
        return Cell(
            attention=attention, situation=situation, status="held" if held else "deviates", calls=0, facts=facts
        )  # fmt: skip

    def _hand(self, found: Any) -> Attend:
        """Return what hands the calls of a function to a wrapper; None stands for exact attention."""
        return partial(self.built.library.intercept, found=found)

    def _check(self, attention: str, found: Any, situation: Situation) -> Cell:
        plan = self._plan(situation)
        candidate = _Candidate(self, situation, plan)
        try:
            run_plan(self._convert(plan.dtype, found), plan, candidate.begin, self._hand(found))
            candidate.finish()
        except _OtherCallsError as error:
            candidate.found.append(("", [CallsDiffer(expected=error.args[0], came=error.args[1])]))
        except Exception as error:  # noqa: BLE001  # whatever a model raises on the path of a function is a fact
            candidate.add("", error)
        return _make_cell(attention, situation, candidate.count, candidate.found)

    def _convert(self, dtype: torch.dtype, found: Any) -> Any:
        """Return the model in a dtype, on the path of an attention function; None stands for exact attention."""
        if dtype not in self._in_dtype:
            self._in_dtype = {dtype: copy.deepcopy(self.model).to(dtype)}
        self.built.library.select(self._in_dtype[dtype], found)
        return self._in_dtype[dtype]


@dataclass(slots=True)
class _Candidate:
    """Judges each call of a function, and continues with the output of exact attention."""

    checked: CheckedModel
    situation: Situation
    plan: Plan
    found: list[tuple[str, list[ModelFact]]] = field(init=False, default_factory=list)
    count: int = field(init=False, default=0)
    _forward: int = field(init=False, default=-1)
    _number: int = field(init=False, default=0)

    def begin(self, _: Forward) -> Wrap:
        """Begin a forward pass; return what wraps the function."""
        self._forward, self._number = self._forward + 1, 0
        return lambda function: partial(self._call, function)

    def finish(self) -> None:
        """Note calls that did not come."""
        for calls in self.checked.calls[self.situation][self._forward :]:
            if len(calls) > self._number:
                self.found.append((calls[self._number].layer, [CallsDiffer(expected=_describe(calls[-1]), came="")]))

    def add(self, layer: str, error: Exception) -> None:
        """Note what a function raised."""
        self.found.append((layer, [_read_exception(error)]))

    def _call(
        self,
        function: Function,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        **others: Any,
    ) -> tuple[Tensor, None]:
        calls = self.checked.calls[self.situation][self._forward]
        call = calls[self._number] if self._number < len(calls) else None
        self._number += 1
        if call is None or (call.query.shape, call.key.shape) != (query.shape, key.shape):
            expected = "" if call is None else _describe(call)
            raise _OtherCallsError(expected, f"{tuple(query.shape)} and {tuple(key.shape)}")
        if self.situation == "training" and "dropout" in others:
            others["dropout"] = 0.0
        if has_feature(self.situation, call):
            self.count += 1
            given = Given(module=module, query=query, key=key, value=value, mask=attention_mask, others=others)
            self._judge(function, given, call)
        return call.output.transpose(1, 2).to(query.dtype).contiguous(), None

    def _judge(self, function: Function, given: Given, call: Call) -> None:
        pattern = self.checked.patterns.get((call.layer, call.occurrence))
        try:
            with outside_model():
                if self.situation == "dropout":
                    facts = judge_dropout(function, given, call.dropout)
                else:
                    facts = judge(function, given, call, pattern, self.checked.cast_floor, gradients=self.plan.training)
        except Exception as error:  # noqa: BLE001  # whatever a function raises is a fact
            self.add(call.layer, error)
            return
        if facts:
            self.found.append((call.layer, facts))


class _OtherCallsError(Exception):
    """A model that calls attention with other shapes than with exact attention, with what was expected and came."""


def _read_exception(error: Exception) -> Raised:
    kind = "Refusal" if isinstance(error, REFUSALS) else type(error).__name__
    return Raised(kind=kind, message=_shorten(error))


def _shorten(error: Exception) -> str:
    return join_lines(error)[:MESSAGE]


def _describe(call: Call) -> str:
    return f"{tuple(call.query.shape)} and {tuple(call.key.shape)}"


def _make_cell(
    attention: str, situation: Situation, calls: int, found: Sequence[tuple[str, Sequence[ModelFact]]]
) -> Cell:
    kinds = [fact.kind if isinstance(fact, Raised) else "" for _, facts in found for fact in facts]
    status: Status = "held" if not found else "deviates" if "" in kinds else "failed"
    if found and set(kinds) == {"Refusal"}:
        status = "refused"
    wanted = [one for one in found if status != "deviates" or not isinstance(one[1][0], Raised)]
    return Cell(
        attention=attention, situation=situation, status=status, calls=calls,
        layers=tuple(dict.fromkeys(layer for layer, _ in wanted)), facts=tuple(wanted[0][1]) if wanted else (),
    )  # fmt: skip


def _differ(one: Iterable[Iterable[Call]], other: Iterable[Iterable[Call]]) -> float:
    """Return the largest relative difference of the outputs of two runs."""
    pairs = zip(chain(*one), chain(*other), strict=True)
    return max(
        (float((a.output - b.output).abs().amax() / a.output.abs().amax().clamp(min=1e-30)) for a, b in pairs),
        default=0.0,
    )
