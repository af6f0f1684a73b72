"""Typed refusals: why an implementation does not compute, or must not be timed on, a case.

``Implementation.unsupported``, ``Implementation.untimed`` and the exception ``Refusal`` take a typed refusal or a text.
A typed refusal can be grouped, compared and told in the same words for all implementations; a text is told as it is.
Fields that differ from case to case are left out: the id of the case has them.
"""

import re
from functools import cache
from importlib.metadata import requires
from typing import Literal

import msgspec

__all__ = [
    "BrokenPackage",
    "CannotCompile",
    "Interpreted",
    "LacksDevice",
    "LacksGradients",
    "LacksKeywords",
    "LacksWeights",
    "MachineNeed",
    "NeedsCapability",
    "NeedsDevice",
    "NeedsDtype",
    "NeedsElements",
    "NeedsEqualSizes",
    "NeedsPackage",
    "NeedsProgram",
    "NeedsSameTensor",
    "NeedsVariable",
    "OtherRefusal",
    "Restriction",
    "TakesOnly",
    "TypedRefusal",
    "UnsupportedSize",
    "write_install_line",
]


class NeedsDevice(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The implementation runs on these devices only."""

    devices: tuple[str, ...]


class LacksDevice(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """This machine has no such device."""

    device: str


class NeedsCapability(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The CUDA device has a lower compute capability than the implementation needs."""

    least: tuple[int, int]


class NeedsPackage(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Packages are missing, or too old; ``install`` is the command that installs them."""

    packages: tuple[str, ...]
    install: str


class BrokenPackage(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A package is installed, but cannot be used here; ``error`` is what its import raised, or what it lacks."""

    package: str
    error: str


class NeedsProgram(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """None of these programs is on the path."""

    programs: tuple[str, ...]


class NeedsVariable(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An environment variable must have a value before Python starts."""

    name: str
    value: str


class NeedsDtype(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The implementation computes in these dtypes only; on ``device`` only, if it is given."""

    dtypes: tuple[str, ...]
    device: str = ""


class LacksKeywords(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The implementation does not take these keywords, which the case needs; ``of`` is what would take them."""

    keywords: tuple[str, ...]
    of: Literal["kernel", "function", "constructor", "forward"] = "kernel"


class LacksGradients(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The implementation has no backward pass: for one argument, or on one device, if these are given."""

    argument: str = ""
    device: str = ""


class LacksWeights(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The implementation does not return attention weights."""


class UnsupportedSize(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A size of the problem is outside of what the implementation takes; on ``device`` only, if it is given."""

    name: str
    least: int | None = None
    most: int | None = None
    power_of_two: bool = False
    # Sizes that are not supported although the limits allow them.
    excluded: tuple[int, ...] = ()
    device: str = ""


class NeedsEqualSizes(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Two sizes of the problem must be equal."""

    names: tuple[str, str]


# What every call of a function or module satisfies.
# ``causal``: the causal mask, aligned at the top left, is the only mask.
# ``boolean_masks``: no mask is added to the logits. ``shared_masks``: one mask serves all heads.
# ``one_mask``: one mask serves all sequences and heads. ``equal_shapes``: queries, keys and values have equal shapes.
# ``self_attention``, ``one_context``: query, key and value are one tensor; key and value are one tensor.
# ``biases``, ``no_biases``: all projections have biases; none has.
# ``one_width``, ``given_keys``: kdim and vdim equal embed_dim; no keys are appended.
Restriction = Literal[
    "causal", "boolean_masks", "shared_masks", "one_mask", "equal_shapes", "self_attention", "one_context", "biases",
    "no_biases", "one_width", "given_keys",
]  # fmt: skip


class TakesOnly(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The implementation is restricted by how it was written, and the case does not satisfy the restriction."""

    what: Restriction


class NeedsElements(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The implementation does not take tensors without elements."""


class NeedsSameTensor(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Two arguments must be the same tensor if another argument is given."""

    arguments: tuple[str, str]
    given: str


class CannotCompile(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The implementation is not compiled by ``compiler``.

    compiled: it already calls ``torch.compile``. values: it reads values of tensors, which cannot be traced.
    interpreter: its kernel is interpreted. order: its sums have a fixed order, which a compiler may change.
    """

    why: Literal["compiled", "values", "interpreter", "order"]
    compiler: str = "torch.compile"


class Interpreted(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The kernel is interpreted, so that its time does not show the speed of the compiled kernel."""

    interpreter: str


class OtherRefusal(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A reason in the words of an implementation or of the library that it calls."""

    text: str
    # The library whose words these are; empty if they are the implementation's.
    library: str = ""


# What an implementation needs of the machine, and lacks here for every case.
MachineNeed = NeedsDevice | LacksDevice | NeedsCapability | NeedsPackage | BrokenPackage | NeedsProgram | NeedsVariable
# The union is closed: each struct is told apart by its tag.
TypedRefusal = (
    MachineNeed
    | NeedsDtype
    | LacksKeywords
    | LacksGradients
    | LacksWeights
    | UnsupportedSize
    | NeedsEqualSizes
    | NeedsElements
    | NeedsSameTensor
    | TakesOnly
    | CannotCompile
    | Interpreted
    | OtherRefusal
)


@cache
def write_install_line(extra: str) -> str:
    """Return the command that installs the packages of an extra of attnbench, such as ``report``.

    It names the packages. ``pip install 'attnbench[report]'`` would need a package index that has attnbench, and with a
    path or a URL in its place it could replace an editable or older attnbench.
    """
    of_extra = re.compile(rf"""extra == ["']{extra}["']""")
    found = [needed.partition(";") for needed in requires("attnbench") or ()]
    return f"pip install {' '.join(repr(package.strip()) for package, _, marker in found if of_extra.search(marker))}"
