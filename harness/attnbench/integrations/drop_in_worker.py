"""The worker process that runs implementations inside real models: a candidate worker that answers more requests."""

import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from attnbench.analysis.speed_verdict import CONTROL
from attnbench.integrations.models import MODELS, Batch, Embed, compute_allowance, embed_in_float64, make_case
from attnbench.interface import Refusal
from attnbench.measurement import sampling
from attnbench.processes.rpc import serve
from attnbench.workers.candidate_worker import CandidateWorker, Outcome, run_for_outcome

__all__ = ["DropInWorker"]


class DropInWorker(CandidateWorker):
    """Candidate worker that also answers the requests of the drop-in table about whole models."""

    def handlers(self) -> dict[str, Callable[..., Any]]:
        """Return the handler of each request."""
        return super().handlers() | {"lacking": self.describe_missing, "embed": self.embed, "take": self.take}

    def describe_missing(self, *, model: str) -> Outcome:
        """Return what this machine lacks to run a model, or None."""
        return run_for_outcome(lambda: {"lacking": MODELS[model].describe_missing()})

    def embed(self, *, implementation: str, model: str, batch: int, length: int, work_s: float) -> Outcome:
        """Compare an implementation's embeddings with those of the original model and of the model in float64."""
        return run_for_outcome(
            lambda: self._compare_embeddings(implementation, model, Batch.from_sentences(batch, length), work_s)
        )

    def _compare_embeddings(self, name: str, model: str, batch: Batch, work_s: float) -> Outcome:
        one, case = self._implementations[name], make_case(batch, mask="padfloat" if model == "encoder" else "pad")
        if reason := one.unsupported(case):
            raise Refusal(reason)
        predicted = one.predicted_s(case)
        if predicted is not None and predicted > work_s:
            reason = f"one call is predicted to take {predicted:.3g} s, more than {work_s:g} s (--work-limit)"
            return {"status": "not_run", "reason": reason}
        originals = MODELS[model].build_originals(batch)
        oracle = embed_in_float64(batch)
        own, original = MODELS[model].build_swapped(name, one, batch)(), next(iter(originals.values()))()
        return {
            "largest": float((own - original).abs().max()),
            "cosine": float(torch.nn.functional.cosine_similarity(own.double(), original.double()).min()),
            "error": float((own.double() - oracle).abs().max()),
            "allowed": compute_allowance(originals, oracle),
            "untimed": one.untimed(case),
        }

    def take(
        self,
        *,
        implementations: list[str],
        model: str,
        batch: int,
        length: int,
        budget_s: float,
        limit_s: float,
        seed: int,
    ) -> Outcome:
        """Time interleaved calls of the model with each implementation, and of two originals (A/A control)."""
        return run_for_outcome(
            lambda: self._take_samples(
                implementations, model, Batch.from_sentences(batch, length), budget_s, limit_s, seed
            )
        )

    def _take_samples(
        self, names: list[str], model: str, batch: Batch, budget_s: float, limit_s: float, seed: int
    ) -> Outcome:
        torch.set_num_threads(self._threads)
        originals = MODELS[model].build_originals(batch)
        base = next(iter(originals))
        calls: dict[str, Embed] = {**originals, CONTROL: MODELS[model].build_originals(batch)[base]}
        for name in names:
            try:
                calls[name] = MODELS[model].build_swapped(name, self._implementations[name], batch)
            except BaseException as error:
                raise sampling.CallFailed(name) from error
        allowed = compute_allowance(originals, embed_in_float64(batch))
        samples = sampling.sample_interleaved(
            calls, budget_s=budget_s, limit_s=limit_s, seed=seed, baseline=(base, CONTROL)
        )
        # Reverse the sentences before computing errors: an implementation that returns cached results is then wrong.
        batch.reverse()
        oracle = embed_in_float64(batch)
        return {
            "samples": {name: asdict(taken) for name, taken in samples.items()},
            "threads": torch.get_num_threads(),
            "errors": {name: _largest_error(call, oracle) for name, call in calls.items()},
            "allowed": allowed,
        }


def _largest_error(call: Embed, oracle: Tensor) -> float:
    return float((call().double() - oracle).abs().max())


def main() -> None:
    """Answer requests on the socket whose file descriptor is the first argument."""
    serve(DropInWorker().handlers(), int(sys.argv[1]))


if __name__ == "__main__":
    main()
