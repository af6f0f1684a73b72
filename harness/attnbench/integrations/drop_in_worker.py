"""The process in which implementations run inside real models: the worker, with questions about whole models."""

import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from attnbench.integrations.drop_in import TWIN
from attnbench.integrations.models import MODELS, Batch, Embed, allowance, case_of, in_float64
from attnbench.interface import Refusal
from attnbench.measurement import sampling
from attnbench.processes.rpc import serve
from attnbench.workers.candidate_worker import CandidateWorker, Outcome, outcome_of

__all__ = ["DropInWorker"]


class DropInWorker(CandidateWorker):
    """Answers what the drop-in table asks of real models."""

    def handlers(self) -> dict[str, Callable[..., Any]]:
        """Requests by name."""
        return super().handlers() | {"lacking": self.lacking, "embed": self.embed, "take": self.take}

    def lacking(self, *, model: str) -> Outcome:
        """Why a model cannot be had here, or None."""
        return outcome_of(lambda: {"lacking": MODELS[model].missing()})

    def embed(self, *, implementation: str, model: str, batch: int, length: int, work_s: float) -> Outcome:
        """What an implementation's embeddings are, against the original's and those in float64."""
        return outcome_of(lambda: self._embedded(implementation, model, Batch.of(batch, length), work_s))

    def _embedded(self, name: str, model: str, batch: Batch, work_s: float) -> Outcome:
        one, case = self._implementations[name], case_of(batch, mask="padfloat" if model == "encoder" else "pad")
        if reason := one.unsupported(case):
            raise Refusal(reason)
        predicted = one.predicted_s(case)
        if predicted is not None and predicted > work_s:
            reason = f"one call is predicted to take {predicted:.3g} s, more than {work_s:g} s (--work-limit)"
            return {"status": "not_run", "reason": reason}
        originals = MODELS[model].originals(batch)
        oracle = in_float64(batch)
        own, original = MODELS[model].swapped(name, one, batch)(), next(iter(originals.values()))()
        return {
            "largest": float((own - original).abs().max()),
            "cosine": float(torch.nn.functional.cosine_similarity(own.double(), original.double()).min()),
            "error": float((own.double() - oracle).abs().max()),
            "allowed": allowance(originals, oracle),
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
        """Interleaved samples of the whole model with each attention; the original is timed twice."""
        return outcome_of(lambda: self._taken(implementations, model, Batch.of(batch, length), budget_s, limit_s, seed))

    def _taken(self, names: list[str], model: str, batch: Batch, budget_s: float, limit_s: float, seed: int) -> Outcome:
        torch.set_num_threads(self._threads)
        originals = MODELS[model].originals(batch)
        base = next(iter(originals))
        calls: dict[str, Embed] = {**originals, TWIN: MODELS[model].originals(batch)[base]}
        for name in names:
            try:
                calls[name] = MODELS[model].swapped(name, self._implementations[name], batch)
            except BaseException as error:
                raise sampling.Broken(name) from error
        allowed = allowance(originals, in_float64(batch))
        samples = sampling.interleaved(calls, budget_s=budget_s, limit_s=limit_s, seed=seed, baseline=(base, TWIN))
        # The same sentences in another order: what was kept from an earlier call is wrong now.
        batch.turn()
        oracle = in_float64(batch)
        return {
            "samples": {name: asdict(taken) for name, taken in samples.items()},
            "threads": torch.get_num_threads(),
            "errors": {name: _error(call, oracle) for name, call in calls.items()},
            "allowed": allowed,
        }


def _error(call: Embed, oracle: Tensor) -> float:
    return float((call().double() - oracle).abs().max())


def main() -> None:
    """Serve on the descriptor given as first argument."""
    serve(DropInWorker().handlers(), int(sys.argv[1]))


if __name__ == "__main__":
    main()
