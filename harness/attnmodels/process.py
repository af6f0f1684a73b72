"""The process that runs models: it answers the requests to inspect a model and to check an attention function."""

import logging
import sys

import torch

from attnbench.plugins.registry import PluginError, load
from attnbench.processes.request import Fault, Handler
from attnbench.processes.rpc import serve
from attnbench.records.value_facts import store_number
from attnmodels.attentions import is_interface
from attnmodels.checking import CheckedModel
from attnmodels.facts import Inspection
from attnmodels.requests import CheckAttention, CheckedAttention, InspectModel, ModelSamples, SampleModel
from attnmodels.timed_calls import TimedCalls

__all__ = ["ModelProcess"]


class ModelProcess:
    """Keeps the model of the last request."""

    def __init__(self) -> None:
        self._checked: CheckedModel | None = None

    def handlers(self) -> list[Handler]:
        """Return the handlers of all requests."""
        return [
            InspectModel.answered_by(self.inspect),
            CheckAttention.answered_by(self.check),
            SampleModel.answered_by(self.sample),
        ]

    def inspect(self, request: InspectModel) -> Inspection | Fault:
        """Build a model, and check it with exact attention."""
        try:
            return self._get(request.source, small=request.small).inspect()
        except PluginError as error:
            return Fault(reason=str(error))

    def check(self, request: CheckAttention) -> CheckedAttention | Fault:
        """Check an attention function in every situation of a model."""
        try:
            checked = self._get(request.source, small=request.small)
            own = ":" in request.attention and not is_interface(load(request.attention))
            return CheckedAttention(cells=checked.check(request.attention), is_implementation=own)
        except PluginError as error:
            return Fault(reason=str(error))

    def sample(self, request: SampleModel) -> ModelSamples | Fault:
        """Time a model on the path of each attention function."""
        if request.threads:
            torch.set_num_threads(request.threads)
        try:
            timed = TimedCalls(
                request.source, request.attentions, small=request.small, batch=request.batch, length=request.length
            )
            samples, shares = timed.sample(budget_s=request.budget_s, limit_s=request.limit_s, seed=request.seed)
        except PluginError as error:
            return Fault(reason=str(error))
        return ModelSamples(samples=samples, shares={name: store_number(one) for name, one in shares.items()})

    def _get(self, source: str, *, small: bool | None) -> CheckedModel:
        if self._checked is None or (self._checked.source, self._checked.small) != (source, small):
            self._checked = CheckedModel(source, small)
        return self._checked


def main() -> None:
    """Answer requests on the socket whose file descriptor is the first command-line argument."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    serve(ModelProcess().handlers(), int(sys.argv[1]))


if __name__ == "__main__":
    main()
