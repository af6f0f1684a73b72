"""What removing padding is worth: ``python -m studies.padded --help``.

``varlen_packed`` and ``varlen`` against ``torch.nn.MultiheadAttention`` without weights, in turns, on the hidden states
of real sentences of which half is padding, forward and forward with backward. Several fresh processes; each gives one
ratio of medians. The module scope: projections, masks and whatever packs and unpacks are in the time.

The reference is called with the boolean padding mask that the implementations get. In eval() without gradients it takes
a path of its own, one fused operator; that stands in a row of its own.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnbench.child import Child, serve
from attnbench.stats import estimate
from studies.lines import Lines, StudyError, read

__all__ = ["Shape", "measured", "table"]

DATA = Path(__file__).parents[2] / "results" / "padded"
BASE, TWIN, FUSED = "torch_mha", "(twin)", "torch_mha, fused path"
NAMES = ("varlen_packed", "varlen")
PADDING = 0.5
THREADS, PROCESSES, BUDGET_S = 2, 20, 3.0
# Layer of the encoder whose hidden states and weights they are: one from the middle.
LAYER = 3
PASSES = ("forward", "forward+backward")

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """Sentences, and tokens of the longest one; the width is the encoder's, 384."""

    batch: int
    length: int

    def __str__(self) -> str:
        return f"{self.batch}×{self.length}"

    @classmethod
    def parse(cls, text: str) -> "Shape":
        """Shape of ``16x128``."""
        batch, _, length = text.partition("x")
        return cls(int(batch), int(length))


SHAPES = (Shape(16, 128), Shape(8, 512))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print the table."""
    asked = _parser().parse_args(arguments)
    try:
        for shape in asked.shapes:
            measured(asked.data / f"{shape.batch}x{shape.length}-{asked.threads}.jsonl", shape, asked)
        records = [record for path in sorted(asked.data.glob("*.jsonl*")) for record in _records(path)]
    except StudyError as error:
        print(error, file=sys.stderr)
        return 1
    text = table(records)
    (asked.data / "padded.md").write_text(text)
    print(text)
    return 0


def measured(path: Path, shape: Shape, asked: Any) -> None:
    """Samples of so many fresh processes, stored as they are taken.

    Raises: StudyError for a file that was measured otherwise.
    """
    header = {
        "kind": "header", "shape": str(shape), "threads": asked.threads, "budget_s": asked.budget, "padding": PADDING,
        "layer": LAYER,
    }  # fmt: skip
    with Lines.opened(path, header, resume=asked.resume) as lines, tempfile.TemporaryDirectory() as folder:
        for number in range(len(lines.held), asked.processes):
            with Child("studies.padded", log=Path(folder, "log")) as child:
                answer = child.ask(
                    {
                        "do": "take", "batch": shape.batch, "length": shape.length, "threads": asked.threads,
                        "budget_s": asked.budget, "seed": number,
                    }
                )  # fmt: skip
            lines.add({"kind": "process", "shape": str(shape), "threads": asked.threads, **answer})
            print(f"{path.name}: process {number + 1} of {asked.processes}", flush=True)


def _records(path: Path) -> list[Record]:
    found = read(path)
    assert found is not None
    return found[1]


def table(records: Sequence[Record]) -> str:
    """Times and ratios, by shape and pass: base over implementation, so that more is faster."""
    lines = [
        "| batch × length | padding | threads | pass | | ms | times as fast as torch_mha | 95 % | processes |",
        "| --- | ---: | ---: | --- | --- | ---: | ---: | --- | ---: |",
    ]
    groups = dict.fromkeys((record["shape"], record["threads"]) for record in records)
    for shape, threads in groups:
        own = [record for record in records if (record["shape"], record["threads"]) == (shape, threads)]
        for pass_ in PASSES:
            for name in own[0]["samples"][pass_]:
                found = estimate([1 / ratio for ratio in _ratios(own, pass_, name)])
                ms = estimate([statistics.median(record["samples"][pass_][name]) / 1e6 for record in own]).value
                cells = (
                    shape, f"{own[0]['padded']:.1%}", threads, pass_, f"`{name}`", f"{ms:.2f}", f"{found.value:.2f}",
                    f"{found.low:.2f} to {found.high:.2f}", found.processes,
                )  # fmt: skip
                lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def _ratios(records: Sequence[Record], pass_: str, name: str) -> list[float]:
    """Time over the reference's, one ratio of medians per process."""
    samples: Iterator[Mapping[str, Sequence[int]]] = (record["samples"][pass_] for record in records)
    return [statistics.median(one[name]) / statistics.median(one[BASE]) for one in samples]


def take(*, batch: int, length: int, threads: int, budget_s: float, seed: int) -> Record:
    """Samples of one process, in nanoseconds, by pass and name."""
    import torch

    from attnbench import encoder, timing

    torch.set_num_threads(threads)
    tokens, padded = encoder.padded_sentences(batch, length, padding=PADDING)
    model = encoder.encoder()
    with torch.no_grad():
        hidden = model(tokens, padded, layers=LAYER)
    reference = model.get_submodule(f"layers.{LAYER}.self_attn")
    samples: dict[str, dict[str, list[int]]] = {}
    for pass_ in PASSES:
        calls = _calls(reference, hidden, padded, backward=pass_ == PASSES[1])
        taken = timing.interleaved(calls, budget_s=budget_s, seed=seed, throughout=(BASE, TWIN))
        samples[pass_] = {name: one.times_ns for name, one in taken.items()}
    return {"samples": samples, "padded": float(padded.double().mean())}


def _calls(reference: Any, hidden: Any, padded: Any, *, backward: bool) -> dict[str, Callable[[], object]]:
    """One pass of each: the reference twice, the implementations, and the reference's fused path where it has one."""
    import copy
    from functools import partial

    import torch

    from attnbench.registry import load

    generator = torch.Generator().manual_seed(0)
    # Padded rows come back with nothing, as from a model that leaves them out; the same for all.
    cotangent = torch.randn(hidden.shape, generator=generator).masked_fill(padded[..., None], 0.0)

    def forward(module: Any) -> object:
        with torch.no_grad():
            return module(hidden, hidden, hidden, key_padding_mask=padded, need_weights=False)

    def both(module: Any, tokens: Any) -> object:
        output = module(tokens, tokens, tokens, key_padding_mask=padded, need_weights=False)[0]
        return torch.autograd.grad(output, [tokens, *module.parameters()], cotangent)

    reference = copy.deepcopy(reference)
    reference.dropout = 0.0
    modules = {BASE: copy.deepcopy(reference), TWIN: copy.deepcopy(reference)}
    modules |= {name: load(name).build(copy.deepcopy(reference)) for name in NAMES}
    for module in modules.values():
        # Without dropout it changes nothing but that the reference takes its ordinary path.
        module.train()
    if backward:
        return {name: partial(both, module, hidden.clone().requires_grad_()) for name, module in modules.items()}
    modules[FUSED] = copy.deepcopy(reference).eval()
    return {name: partial(forward, module) for name, module in modules.items()}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m studies.padded", description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the raw data")
    parser.add_argument("--resume", action="store_true", help="go on with what is there")
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--processes", type=int, default=PROCESSES, help="fresh processes of each shape")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds of each pass in each process")
    parser.add_argument(
        "--shapes",
        type=lambda text: tuple(map(Shape.parse, text.split(","))),
        default=SHAPES,
        help="batch and length, such as 16x128,8x512",
    )
    return parser


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].isdecimal():
        serve({"take": take}, int(sys.argv[1]))
    else:
        sys.exit(main())
