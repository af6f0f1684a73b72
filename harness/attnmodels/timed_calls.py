"""Timed calls of a whole model in one process: interleaved, each on the rows of the batch in another order."""

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnbench.analysis.speed_verdict import CONTROL
from attnbench.measurement.judged_calls import JudgedCalls
from attnbench.measurement.sampling import CallFailed, sample_interleaved
from attnbench.measurement.surroundings import Ended
from attnbench.plugins.registry import PluginError, join_lines
from attnbench.records.types import Timing
from attnmodels.facts import OUTPUT
from attnmodels.inputs import Plan, plan_batch
from attnmodels.libraries import Transformers
from attnmodels.sources import build_model
from attnmodels.whole import find_first_tensor, make_budget, select_tokens

__all__ = ["TimedCalls"]


@dataclass(slots=True)
class ShuffledRows:
    """Puts the rows of a batch in a random order before each call, and keeps the output of one call of each model.

    The order cannot be predicted, and the call is chosen after it has returned. A model that returns the output of an
    earlier call is therefore wrong.
    """

    # Those of the arguments that have a row for each sequence.
    tensors: Sequence[Tensor]
    rows: int
    # Order of the rows now: the place of each in the original batch.
    order: Tensor = field(init=False)
    judged: JudgedCalls[tuple[Tensor, Tensor]] = field(init=False, default_factory=JudgedCalls)
    _generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.order = torch.arange(self.rows)
        self._generator = torch.Generator().manual_seed(random.SystemRandom().getrandbits(63))

    def expect(self, counts: Mapping[str, int]) -> None:
        """Do nothing."""

    def prepare(self, name: str, cycle: int) -> None:
        """Put the rows in a new order."""
        del name, cycle
        order = torch.randperm(self.rows, generator=self._generator)
        for tensor in self.tensors:
            tensor.copy_(tensor[order])
        self.order = self.order[order]

    def inspect(self, name: str, result: object, ended: Ended) -> None:
        """Copy the output, and choose whether the copy is kept: each call is as likely as another."""
        del ended
        self.judged.offer(name, (self.order, find_first_tensor(result).clone()))

    def note_freed(self, name: str, freeing_ns: int) -> None:
        """Do nothing."""

    def list_outputs(self) -> dict[str, Tensor]:
        """Return the kept output of each model, with the rows in the order of the original batch."""
        return {name: output[order.argsort()] for name, (order, output) in self.judged.kept.items()}


class TimedCalls:
    """A model, and copies of it that share its weights, each on the path of an attention function."""

    def __init__(self, source: str, attentions: Sequence[str], *, small: bool | None, batch: int, length: int) -> None:
        """Build the model.

        ``batch`` sequences of up to ``length`` tokens; if the model takes a mask, half of all tokens are padding. The
        first attention is the baseline.

        Raises: PluginError where the model does not take such a batch, or a function is not known.
        """
        built = build_model(source, small=small)
        if type(built.library) is not Transformers:
            raise PluginError("only a model of transformers calls a function without anything in between")
        self._model, self._library = built.model.eval(), built.library
        try:
            self._plan: Plan = plan_batch(self._model, batch, length)
            exact = copy.deepcopy(self._model).double()
            self._library.select(exact, None)
            hand = partial(self._library.intercept, found=None)
            self._budget = make_budget(exact, self._share(None), self._plan, hand, gradients=False)
        except Exception as error:  # what inputs a model takes is known by running it
            raise PluginError(f"the model cannot be run on {batch} × {length}: {join_lines(error)}") from error
        # The copy for the A/A control is the baseline's.
        paths = {attentions[0]: attentions[0], CONTROL: attentions[0], **{name: name for name in attentions[1:]}}
        self._models = {name: self._share(self._library.find(path)) for name, path in paths.items()}
        self._batch = batch

    def _share(self, found: Any) -> Any:
        """Return a copy with the same weights, on the path of an attention function; None: of exact attention."""
        kept = {id(one): one for one in (*self._model.parameters(), *self._model.buffers())}
        shared = copy.deepcopy(self._model, kept)
        self._library.select(shared, found)
        return shared

    def sample(self, *, budget_s: float, limit_s: float, seed: int) -> tuple[dict[str, Timing], dict[str, float]]:
        """Return the samples of each model, and the error of one output of each as a share of the allowed error.

        Raises: PluginError where a call raises.
        """
        given = {
            name: one.clone() if isinstance(one, Tensor) else one
            for name, one in self._plan.forwards[0].arguments.items()
        }
        tensors = [one for one in given.values() if isinstance(one, Tensor) and one.shape[:1] == (self._batch,)]
        rows = ShuffledRows(tensors, self._batch)
        baseline, control, *_ = self._models
        try:
            samples = sample_interleaved(
                {name: _make_call(model, given) for name, model in self._models.items()},
                budget_s=budget_s, limit_s=limit_s, seed=seed, baseline=(baseline, control), surroundings=rows,
            )  # fmt: skip
        except CallFailed as error:
            cause = error.__cause__ or error
            raise PluginError(f"{error.name} cannot be timed: {join_lines(cause)[:300]}") from error
        found = {name: select_tokens(one, self._plan).double() for name, one in rows.list_outputs().items()}
        return samples, {name: self._budget.judge({OUTPUT: one})[0].share for name, one in found.items()}


def _make_call(model: Any, given: Mapping[str, Any]) -> Callable[[], object]:
    def call() -> object:
        with torch.no_grad():
            return model(**given)

    return call
