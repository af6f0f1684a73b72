"""The worker process that runs implementations in real models: a candidate worker that answers more requests."""

import sys

import torch

from attnbench.analysis.speed_verdict import CONTROL
from attnbench.integrations.drop_in_requests import (
    ComparedEmbeddings,
    CompareEmbeddings,
    FindMissing,
    Missing,
    TimedModels,
    TimeModels,
)
from attnbench.integrations.models import MODELS, Batch, Embed, compute_allowance, embed_in_float64, make_case
from attnbench.integrations.shuffled_sentences import ShuffledSentences
from attnbench.interface import Refusal
from attnbench.measurement import sampling
from attnbench.processes.candidate_requests import Outcome
from attnbench.processes.request import Handler
from attnbench.processes.rpc import serve
from attnbench.records.outcome_facts import OverWorkLimit
from attnbench.records.value_facts import store_number
from attnbench.workers.candidate_worker import CandidateWorker
from attnbench.workers.loaded_implementations import LoadedImplementations
from attnbench.workers.outcomes import run_for_outcome

__all__ = ["DropInWorker"]


class DropInWorker:
    """Answers the requests to a candidate worker, and the requests about whole models for the drop-in table."""

    def __init__(self) -> None:
        self._loaded = LoadedImplementations()
        self._candidate_worker = CandidateWorker(self._loaded)

    def handlers(self) -> list[Handler]:
        """Return the handlers of all requests."""
        return [
            *self._candidate_worker.handlers(),
            FindMissing.answered_by(self.find_missing),
            CompareEmbeddings.answered_by(self.compare_embeddings),
            TimeModels.answered_by(self.time_models),
        ]

    def find_missing(self, request: FindMissing) -> Missing | Outcome:
        """Return what this machine lacks to run a model."""
        return run_for_outcome(lambda: Missing(reason=MODELS[request.model].describe_missing()))

    def compare_embeddings(self, request: CompareEmbeddings) -> ComparedEmbeddings | Outcome:
        """Compare an implementation's embeddings with the embeddings of the original and of the float64 model."""
        return run_for_outcome(lambda: self._compare_embeddings(request))

    def _compare_embeddings(self, request: CompareEmbeddings) -> ComparedEmbeddings | Outcome:
        name, model = request.implementation, MODELS[request.model]
        batch = Batch.from_sentences(request.batch, request.length)
        one, case = self._loaded.get(name), make_case(batch, mask="padfloat" if request.model == "encoder" else "pad")
        if reason := one.unsupported(case):
            raise Refusal(reason)
        predicted = one.predicted_s(case)
        if predicted is not None and predicted > request.work_s:
            return Outcome(
                status="not_run", facts=(OverWorkLimit(predicted_s=store_number(predicted), limit_s=request.work_s),)
            )
        originals = model.build_originals(batch)
        oracle = embed_in_float64(batch)
        own, original = model.build_swapped(name, one, batch)(), next(iter(originals.values()))()
        return ComparedEmbeddings(
            largest=float((own - original).abs().max()),
            cosine=float(torch.nn.functional.cosine_similarity(own.double(), original.double()).min()),
            error=float((own.double() - oracle).abs().max()),
            allowed=compute_allowance(originals, oracle),
            untimed=one.untimed(case),
        )

    def time_models(self, request: TimeModels) -> TimedModels | Outcome:
        """Time interleaved calls of the model with each implementation, of the original model, and of a copy of it."""
        return run_for_outcome(lambda: self._take_samples(request))

    def _take_samples(self, request: TimeModels) -> TimedModels:
        self._loaded.restore_threads()
        model, batch = MODELS[request.model], Batch.from_sentences(request.batch, request.length)
        originals = model.build_originals(batch)
        base = next(iter(originals))
        calls: dict[str, Embed] = {**originals, CONTROL: model.build_originals(batch)[base]}
        for name in request.implementations:
            try:
                calls[name] = model.build_swapped(name, self._loaded.get(name), batch)
            except BaseException as error:
                raise sampling.CallFailed(name) from error
        oracle = embed_in_float64(batch)
        allowed = compute_allowance(originals, oracle)
        sentences = ShuffledSentences(batch)
        samples = sampling.sample_interleaved(
            calls,
            budget_s=request.budget_s,
            limit_s=request.limit_s,
            seed=request.seed,
            baseline=(base, CONTROL),
            surroundings=sentences,
        )
        return TimedModels(
            samples=samples,
            errors=sentences.find_errors(oracle),
            allowed=allowed,
        )


def main() -> None:
    """Answer the requests on the socket whose file descriptor is the first command-line argument."""
    serve(DropInWorker().handlers(), int(sys.argv[1]))


if __name__ == "__main__":
    main()
