"""What removing padding is worth: ``python -m research.padded --help``.

``varlen_packed`` and ``varlen`` against ``torch.nn.MultiheadAttention`` without weights, in turns, on the hidden states
of real sentences of which half is padding, forward and forward with backward, in several fresh processes; told by the
same judge as everything that is timed. The module scope: projections, masks and whatever packs and unpacks are in the
time.

The reference is called with the boolean padding mask that the implementations get. In eval() without gradients it takes
a path of its own, one fused operator; that has turns, and a row, of its own.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from attnbench.analysis.speed_verdict import decide_speed
from attnbench.analysis.stats import estimate_clean_time
from attnbench.processes.rpc import Child, serve
from attnbench.records.environment import describe_machine
from attnbench.records.types import Timing
from research.lines import Lines, StudyError, read

__all__ = ["Shape", "measured", "table"]

# With a folder for each machine.
DATA = Path(__file__).parent / "data" / "padded"
BASE, TWIN = "torch_mha", "(twin)"
NAMES = ("varlen_packed", "varlen")
PADDING = 0.5
THREADS, PROCESSES, BUDGET_S = 2, 20, 3.0
# Layer of the encoder whose hidden states and weights they are: one from the middle.
LAYER = 3
BOTH, FUSED = "forward+backward", "forward, fused path"
PASSES = ("forward", BOTH, FUSED)
# What is kept of every call on a CPU: its time, and what says whether other work disturbed it.
COLUMNS = ("times_ns", "waited_ns", "switches", "cycles")

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
        """Shape of ``16x128``.

        Raises: ArgumentTypeError.
        """
        batch, _, length = text.partition("x")
        if not (batch.isdecimal() and length.isdecimal() and int(batch) > 0):
            raise argparse.ArgumentTypeError(f"needs batch x length, such as 16x128,8x512, got {text!r}")
        return cls(int(batch), int(length))


SHAPES = (Shape(16, 128), Shape(8, 512))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print the table."""
    asked = _parser().parse_args(arguments)
    try:
        _demand_encoder()
        for shape in asked.shapes:
            measured(asked.data / f"{shape.batch}x{shape.length}-{asked.threads}.jsonl", shape, asked)
        # Files may have been packed since.
        stored = sorted({path.with_name(path.name.removesuffix(".gz")) for path in asked.data.glob("*.jsonl*")})
        records = [record for path in stored for record in _records(path)]
    except StudyError as error:
        print(error, file=sys.stderr)
        return 1
    text = table(records)
    (asked.data / "padded.md").write_text(text)
    print(text)
    return 0


def _demand_encoder() -> None:
    """Raises: StudyError, with the install line, without the sentence encoder."""
    from attnbench.oracle import sentence_encoder

    if reason := sentence_encoder.describe_missing():
        raise StudyError(reason)


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
            with Child("research.padded", log=Path(folder, "log")) as child:
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
    """Times and verdicts, by shape and pass: the base's time over an implementation's, so that more is faster."""
    lines = [
        "| batch × length | padding | threads | pass | | ms | times as fast | interval | verdict | processes |",
        "| --- | ---: | ---: | --- | --- | ---: | ---: | --- | --- | ---: |",
    ]
    groups = dict.fromkeys((record["shape"], record["threads"]) for record in records)
    for shape, threads in groups:
        own = [record for record in records if (record["shape"], record["threads"]) == (shape, threads)]
        for pass_ in own[0]["samples"]:
            base = replace(_timing(own, pass_, BASE), twin=_timing(own, pass_, TWIN))
            for name in own[0]["samples"][pass_]:
                timing = {BASE: base, TWIN: base.twin}.get(name) or _timing(own, pass_, name)
                took = estimate_clean_time(timing)
                ms = f"{took.value / 1e6:.2f}" if took else ""
                cells = (shape, f"{own[0]['padded']:.1%}", threads, pass_, f"`{name}`", ms, *_compared(timing, base))
                lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def _compared(timing: Timing, base: Timing) -> tuple[str, str, str, str]:
    """How many times as fast as the base, its interval, the verdict, and the processes that count."""
    if timing is base:
        return "1", "", "", str(len(base.samples_ns))
    found = decide_speed(timing, base)
    state = f"{found.state}: {found.reason}" if found.reason else found.state
    if found.ratio is None:
        return "", "", state, "0"
    fast, low, high = (f"{1 / time:.2f}" for time in (found.ratio.value, found.ratio.high, found.ratio.low))
    return fast, f"{low} to {high}", state, str(found.counted)


def _timing(records: Sequence[Record], pass_: str, name: str) -> Timing:
    """Samples of one of them as the judge of speed takes them."""
    taken = [record["samples"][pass_][name] for record in records]
    columns: dict[str, Any] = {column: tuple(tuple(one[column]) for one in taken) for column in COLUMNS}
    return Timing(samples_ns=columns.pop("times_ns"), threads=records[0]["threads"], **columns)


def take(*, batch: int, length: int, threads: int, budget_s: float, seed: int) -> Record:
    """Samples of one process, and what the scheduler did meanwhile, by pass and name."""
    import torch

    from attnbench.measurement import sampling
    from attnbench.oracle import sentence_encoder

    torch.set_num_threads(threads)
    tokens, padded = sentence_encoder.make_padded_sentences(batch, length, padding=PADDING)
    model = sentence_encoder.load_encoder()
    with torch.no_grad():
        hidden = model(tokens, padded, layers=LAYER)
    reference = model.get_submodule(f"layers.{LAYER}.self_attn")
    samples: dict[str, dict[str, dict[str, list[int]]]] = {}
    for pass_ in PASSES:
        calls = _calls(reference, hidden, padded, pass_)
        taken = sampling.sample_interleaved(calls, budget_s=budget_s, seed=seed, baseline=(BASE, TWIN))
        told = {name: asdict(one) for name, one in taken.items()}
        samples[pass_] = {name: {column: one[column] for column in COLUMNS} for name, one in told.items()}
    return {"samples": samples, "padded": float(padded.double().mean())}


def _calls(reference: Any, hidden: Any, padded: Any, pass_: str) -> dict[str, Callable[[], object]]:
    """One pass of each: the reference twice, and the implementations or the reference's fused path.

    The fused path has turns of its own: what it allocates goes back to the system with every call, and whatever is
    called next pays for memory anew.
    """
    import copy
    from functools import partial

    import torch

    from attnbench.plugins.registry import load

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
    if pass_ != FUSED:
        modules |= {name: load(name).build(copy.deepcopy(reference)) for name in NAMES}
    for module in modules.values():
        # Without dropout it changes nothing but that the reference takes its ordinary path.
        module.train()
    if pass_ == BOTH:
        return {name: partial(both, module, hidden.clone().requires_grad_()) for name, module in modules.items()}
    if pass_ == FUSED:
        modules[f"{BASE}, fused path"] = copy.deepcopy(reference).eval()
    return {name: partial(forward, module) for name, module in modules.items()}


def _shapes(text: str) -> tuple[Shape, ...]:
    return tuple(map(Shape.parse, text.split(",")))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m research.padded", description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA / describe_machine().name, help="folder of the raw data")
    parser.add_argument("--resume", action="store_true", help="go on with what is there")
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--processes", type=int, default=PROCESSES, help="fresh processes of each shape")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds of each pass in each process")
    parser.add_argument(
        "--shapes",
        type=_shapes,
        default=SHAPES,
        help="batch and length, such as 16x128,8x512",
    )
    return parser


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].isdecimal():
        serve({"take": take}, int(sys.argv[1]))
    else:
        sys.exit(main())
