"""Time saved by removing padding: ``python -m research.padded --help``.

The study compares two implementations, ``varlen_packed`` and ``varlen``, with the reference,
``torch.nn.MultiheadAttention(..., need_weights=False)``. The inputs are hidden states of real sentences. Half of the
tokens are padding. Two passes are timed by interleaved calls in several new processes: the forward pass alone, and
forward with backward. ``attnbench.analysis.speed_verdict`` gives the verdicts. The time of a call includes the
projections, the masks, and packing and unpacking.

The reference is called with the same boolean padding mask as the implementations. In ``eval()`` without gradients, the
reference uses its fast path, one fused operator. The fast path is timed separately, and has its own row in the table.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import asdict

from attnbench.analysis.speed_verdict import decide_speed
from attnbench.analysis.stats import estimate_clean_time
from attnbench.processes.request import Request
from attnbench.processes.rpc import Child, serve
from attnbench.records.environment import describe_machine
from attnbench.records.types import Timing
from attnbench.words.speed import explain_no_verdict
from research.lines import Lines, StudyError, read

__all__ = ["Shape", "format_table", "measure_processes"]

# Folder of the raw data, with a subfolder for each machine.
DATA = Path(__file__).parent / "data" / "padded"
# BASE: name of the baseline, the reference. CONTROL: stored name of the A/A control, a second copy of the baseline.
BASE, CONTROL = "torch_mha", "(twin)"
# Names of the implementations that remove padding.
NAMES = ("varlen_packed", "varlen")
# Fraction of the tokens that are padding.
PADDING = 0.5
# Defaults. THREADS: number of threads of each call. PROCESSES: number of new processes per shape. BUDGET_S: seconds of
# timed calls per pass and process.
THREADS, PROCESSES, BUDGET_S = 2, 20, 3.0
# Index of the encoder layer whose input and attention module are used. The layer is in the middle of the encoder.
LAYER = 3
BOTH, FUSED = "forward+backward", "forward, fused path"
PASSES = ("forward", BOTH, FUSED)
# Numbers stored for every call: its time, counters that show whether other work disturbed it, and the number of
# its cycle.
COLUMNS = ("times_ns", "waited_ns", "switches", "cycles")

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """Number of sentences of a batch, and number of tokens of its longest sentence; the embedding dimension is 384."""

    batch: int
    length: int

    def __str__(self) -> str:
        return f"{self.batch}×{self.length}"

    @classmethod
    def parse(cls, text: str) -> "Shape":
        """Parse a text such as ``16x128``.

        Raises: ArgumentTypeError if the text is not such a shape.
        """
        batch, _, length = text.partition("x")
        if not (batch.isdecimal() and length.isdecimal() and int(batch) > 0):
            raise argparse.ArgumentTypeError(f"must be batch x length, such as 16x128,8x512, got {text!r}")
        return cls(int(batch), int(length))


SHAPES = (Shape(16, 128), Shape(8, 512))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all shapes, and print the table."""
    options = _make_parser().parse_args(arguments)
    try:
        _require_encoder()
        for shape in options.shapes:
            measure_processes(options.data / f"{shape.batch}x{shape.length}-{options.threads}.jsonl", shape, options)
        # Stored files may be compressed; the names of compressed files end in .gz.
        paths = sorted({path.with_name(path.name.removesuffix(".gz")) for path in options.data.glob("*.jsonl*")})
        records = [record for path in paths for record in _read_records(path)]
    except StudyError as error:
        print(error, file=sys.stderr)
        return 1
    text = format_table(records)
    (options.data / "padded.md").write_text(text)
    print(text)
    return 0


def _require_encoder() -> None:
    """Check that the sentence encoder is installed.

    Raises: StudyError, with the install command, if it is not.
    """
    from attnbench.oracle import sentence_encoder

    if reason := sentence_encoder.describe_missing():
        raise StudyError(reason)


def measure_processes(path: Path, shape: Shape, options: Any) -> None:
    """Take samples in new processes until the file has the records of ``options.processes`` processes.

    Raises: StudyError if the file exists and ``--resume`` is not given, or if it was measured with other options.
    """
    header = {
        "kind": "header", "shape": str(shape), "threads": options.threads, "budget_s": options.budget,
        "padding": PADDING, "layer": LAYER,
    }  # fmt: skip
    with Lines.open(path, header, resume=options.resume) as lines, tempfile.TemporaryDirectory() as folder:
        for number in range(len(lines.records), options.processes):
            with Child("research.padded", log=Path(folder, "log")) as child:
                answer = child.ask(
                    TakePaddedSamples(
                        batch=shape.batch, length=shape.length, threads=options.threads, budget_s=options.budget,
                        seed=number,
                    )
                )  # fmt: skip
            lines.add({"kind": "process", "shape": str(shape), "threads": options.threads, **asdict(answer)})
            print(f"{path.name}: process {number + 1} of {options.processes}", flush=True)


def _read_records(path: Path) -> list[Record]:
    found = read(path)
    assert found is not None
    return found[1]


def format_table(records: Sequence[Record]) -> str:
    """Format the times and verdicts of every shape and pass as a Markdown table.

    The column "times as fast" has the baseline's time divided by the implementation's time.
    """
    lines = [
        "| batch × length | padding | threads | pass | | ms | times as fast | interval | verdict | processes |",
        "| --- | ---: | ---: | --- | --- | ---: | ---: | --- | --- | ---: |",
    ]
    groups = dict.fromkeys((record["shape"], record["threads"]) for record in records)
    for shape, threads in groups:
        own = [record for record in records if (record["shape"], record["threads"]) == (shape, threads)]
        for pass_ in own[0]["samples"]:
            base = replace(_make_timing(own, pass_, BASE), twin=_make_timing(own, pass_, CONTROL))
            for name in own[0]["samples"][pass_]:
                timing = {BASE: base, CONTROL: base.twin}.get(name) or _make_timing(own, pass_, name)
                took = estimate_clean_time(timing)
                ms = f"{took.value / 1e6:.2f}" if took else ""
                cells = (shape, f"{own[0]['padded']:.1%}", threads, pass_, f"`{name}`", ms, *_compare(timing, base))
                lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def _compare(timing: Timing, base: Timing) -> tuple[str, str, str, str]:
    """Return the cells of a table row from the column "times as fast" to the column "processes"."""
    if timing is base:
        return "1", "", "", str(len(base.samples_ns))
    verdict = decide_speed(timing, base)
    state = f"{verdict.state}: {explain_no_verdict(verdict.reason)}" if verdict.reason else verdict.state
    if verdict.ratio is None:
        return "", "", state, "0"
    fast, low, high = (f"{1 / time:.2f}" for time in (verdict.ratio.value, verdict.ratio.high, verdict.ratio.low))
    return fast, f"{low} to {high}", state, str(verdict.counted)


def _make_timing(records: Sequence[Record], pass_: str, name: str) -> Timing:
    """Combine one implementation's samples of all processes into the timing that ``decide_speed`` takes."""
    samples = [record["samples"][pass_][name] for record in records]
    columns: dict[str, Any] = {column: tuple(tuple(one[column]) for one in samples) for column in COLUMNS}
    return Timing(samples_ns=columns.pop("times_ns"), threads=records[0]["threads"], **columns)


class PaddedSamples(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of one process.

    ``samples`` has, for each pass and each name of a call, the lists of numbers that ``COLUMNS`` names. ``padded`` is
    the fraction of padded tokens.
    """

    samples: dict[str, dict[str, dict[str, list[int]]]]
    padded: float


class TakePaddedSamples(Request[PaddedSamples], frozen=True, kw_only=True):
    """A request to time the calls of all passes in one process."""

    batch: int
    length: int
    threads: int
    budget_s: float
    seed: int


def take_samples(request: TakePaddedSamples) -> PaddedSamples:
    """Time the calls of all passes in this process."""
    import torch

    from attnbench.measurement import sampling
    from attnbench.oracle import sentence_encoder
    from research.detection.pools import list_samples

    torch.set_num_threads(request.threads)
    tokens, padded = sentence_encoder.make_padded_sentences(request.batch, request.length, padding=PADDING)
    model = sentence_encoder.load_encoder()
    with torch.no_grad():
        hidden = model(tokens, padded, layers=LAYER)
    reference = model.get_submodule(f"layers.{LAYER}.self_attn")
    samples: dict[str, dict[str, dict[str, list[int]]]] = {}
    for pass_ in PASSES:
        calls = _make_calls(reference, hidden, padded, pass_)
        taken = sampling.sample_interleaved(
            calls, budget_s=request.budget_s, seed=request.seed, baseline=(BASE, CONTROL)
        )
        samples[pass_] = {name: list_samples(own, 0) for name, own in taken.items()}
    return PaddedSamples(samples=samples, padded=float(padded.double().mean()))


def _make_calls(reference: Any, hidden: Any, padded: Any, pass_: str) -> dict[str, Callable[[], object]]:
    """Return the calls that a pass interleaves. The key of a call is its name.

    Every pass calls the reference and its A/A control. The pass ``FUSED`` also calls the reference's fused fast path,
    and every other pass also calls the implementations. The fused path returns its memory to the system in every call,
    so the next call has to allocate memory again. The calls of the implementations are therefore never interleaved with
    calls of the fused path.
    """
    import copy
    from functools import partial

    import torch

    from attnbench.plugins.registry import load

    generator = torch.Generator().manual_seed(0)
    # The gradient with respect to the output is 0 at padded tokens, as in a model that ignores the outputs of padding.
    cotangent = torch.randn(hidden.shape, generator=generator).masked_fill(padded[..., None], 0.0)

    def forward(module: Any) -> object:
        with torch.no_grad():
            return module(hidden, hidden, hidden, key_padding_mask=padded, need_weights=False)

    def both(module: Any, tokens: Any) -> object:
        output = module(tokens, tokens, tokens, key_padding_mask=padded, need_weights=False)[0]
        return torch.autograd.grad(output, [tokens, *module.parameters()], cotangent)

    reference = copy.deepcopy(reference)
    reference.dropout = 0.0
    modules = {BASE: copy.deepcopy(reference), CONTROL: copy.deepcopy(reference)}
    if pass_ != FUSED:
        modules |= {name: load(name).build(copy.deepcopy(reference)) for name in NAMES}
    for module in modules.values():
        # Dropout is 0, so the only effect of train() is that the reference does not use its fast path.
        module.train()
    if pass_ == BOTH:
        return {name: partial(both, module, hidden.clone().requires_grad_()) for name, module in modules.items()}
    if pass_ == FUSED:
        modules[f"{BASE}, fused path"] = copy.deepcopy(reference).eval()
    return {name: partial(forward, module) for name, module in modules.items()}


def _parse_shapes(text: str) -> tuple[Shape, ...]:
    return tuple(map(Shape.parse, text.split(",")))


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m research.padded", description=__doc__.partition(":")[0])
    parser.add_argument("--data", type=Path, default=DATA / describe_machine().name, help="folder of the raw data")
    parser.add_argument("--resume", action="store_true", help="continue an interrupted measurement in the stored files")
    parser.add_argument("--threads", type=int, default=THREADS, help="number of threads of each call")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="number of new processes per shape")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds of timed calls per pass and process")
    parser.add_argument(
        "--shapes",
        type=_parse_shapes,
        default=SHAPES,
        help="shapes to measure, each batch x length, such as 16x128,8x512",
    )
    return parser


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].isdecimal():
        serve([TakePaddedSamples.answered_by(take_samples)], int(sys.argv[1]))
    else:
        sys.exit(main())
