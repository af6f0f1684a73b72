"""What typed refusals say."""

from collections.abc import Mapping
from typing import assert_never

from attnbench.devices import find_device
from attnbench.refusals import (
    BrokenPackage,
    CannotCompile,
    Interpreted,
    LacksDevice,
    LacksGradients,
    LacksKeywords,
    LacksWeights,
    NeedsCapability,
    NeedsDevice,
    NeedsDtype,
    NeedsElements,
    NeedsEqualSizes,
    NeedsPackage,
    NeedsProgram,
    NeedsSameTensor,
    NeedsVariable,
    OtherRefusal,
    Restriction,
    TakesOnly,
    TypedRefusal,
    UnsupportedSize,
)
from attnbench.words.say import say

__all__ = ["describe_declared", "describe_refusal"]

_DEVICE = "{article} {noun}"
_OTHER_DEVICE = "the device {name}"
_OR = " or "
_NEEDS_DEVICE = "needs {devices}"
_LACKS_DEVICE = "this machine has no {noun}"
_LACKS_OTHER_DEVICE = "this machine has no device {name}"
_CAPABILITY = "needs a CUDA device of capability {major}.{minor} or newer"
_PACKAGE = "needs {packages}: {install}"
_BROKEN = "{package} is installed, but cannot be used here: {error}"
_PROGRAM = "needs a compiler: install {programs}"
_VARIABLE = "needs {name}={value} in the environment before Python starts"
_ON = "on {device}, "
_DTYPE = "{on}computes in {dtypes} only"
_KEYWORDS = {
    "kernel": "the kernel takes no {keywords}",
    "function": "the function takes no {keywords}",
    "constructor": "the constructor takes no {keywords}",
    "forward": "the forward method takes no {keywords}",
}
_KEYWORD_MEANS = {"enable_gqa": "enable_gqa: key must have as many heads as query"}
_GRADIENTS = "{on}forward only: no gradients"
_GRADIENTS_OF = "{on}computes no gradient of {argument}"
_WEIGHTS = "returns no attention weights"
_SIZE = "{on}{name} must be {limits}"
_LEAST = "at least {least}"
_MOST = "at most {most}"
_POWER = "a power of two"
_EXCLUDED = "other than {sizes}"
_AND = " and "
_EQUAL = "{first} must equal {second}"
_ELEMENTS = "takes no tensors without elements"
_ONLY: Mapping[Restriction, str] = {
    "causal": "every call is causal",
    "boolean_masks": "takes boolean masks only",
    "shared_masks": "takes no mask that differs between heads",
    "one_mask": "takes no mask that differs between sequences or heads",
    "equal_shapes": "queries, keys and values must have equal shapes",
    "self_attention": "query, key and value must be one tensor",
    "one_context": "key and value must be one tensor",
    "biases": "its projections have biases, and the case has none",
    "no_biases": "not all of its projections have biases",
    "one_width": "kdim and vdim must equal embed_dim",
    "given_keys": "appends no keys: add_bias_kv and add_zero_attn must be false",
}
_SAME = "with {given}, {first} and {second} must be the same tensor"
_COMPILE = {
    "compiled": "already calls torch.compile, so it is not compiled by {compiler}",
    "values": "reads values of tensors, which {compiler} cannot trace",
    "interpreter": "its kernel is interpreted, so it is not compiled by {compiler}",
    "order": "its sums have a fixed order, which {compiler} may change",
}
_INTERPRETED = "interpreted by {interpreter}: the time does not show the speed of the compiled kernel"
_LIBRARY = "{library}: {text}"
_NO_TEXT = "refused"


def describe_declared(reason: TypedRefusal | str) -> str:
    """Return what ``unsupported(case)`` or ``untimed(case)`` returned, as one line."""
    return " ".join(reason.split()) if isinstance(reason, str) else describe_refusal(reason)


def describe_refusal(refusal: TypedRefusal) -> str:  # noqa: C901  # one case for each refusal
    """Return why a case is refused or not timed, without a full stop."""
    match refusal:
        case NeedsDevice():
            devices = say(_OR).join(map(_name_device, refusal.devices))
            return say(_NEEDS_DEVICE, devices=devices)
        case LacksDevice():
            device = find_device(refusal.device)
            return say(_LACKS_DEVICE, noun=device.noun) if device else say(_LACKS_OTHER_DEVICE, name=refusal.device)
        case NeedsCapability(least=(major, minor)):
            return say(_CAPABILITY, major=major, minor=minor)
        case NeedsPackage():
            return say(_PACKAGE, packages=", ".join(refusal.packages), install=refusal.install)
        case BrokenPackage(package=package, error=error):
            return say(_BROKEN, package=package, error=error)
        case NeedsProgram():
            return say(_PROGRAM, programs=say(_OR).join(refusal.programs))
        case NeedsVariable():
            return say(_VARIABLE, name=refusal.name, value=refusal.value)
        case NeedsDtype():
            return say(_DTYPE, on=_describe_device(refusal.device), dtypes=", ".join(refusal.dtypes))
        case LacksKeywords():
            named = (say(_KEYWORD_MEANS.get(word, "{word}"), word=word) for word in refusal.keywords)
            return say(_KEYWORDS[refusal.of], keywords=", ".join(named))
        case LacksGradients():
            template = _GRADIENTS_OF if refusal.argument else _GRADIENTS
            return say(template, on=_describe_device(refusal.device), argument=refusal.argument)
        case LacksWeights():
            return say(_WEIGHTS)
        case UnsupportedSize():
            return say(_SIZE, on=_describe_device(refusal.device), name=refusal.name, limits=_describe_limits(refusal))
        case NeedsEqualSizes(names=(first, second)):
            return say(_EQUAL, first=first, second=second)
        case NeedsElements():
            return say(_ELEMENTS)
        case NeedsSameTensor(arguments=(first, second)):
            return say(_SAME, given=refusal.given, first=first, second=second)
        case TakesOnly():
            return say(_ONLY[refusal.what])
        case CannotCompile():
            return say(_COMPILE[refusal.why], compiler=refusal.compiler)
        case Interpreted():
            return say(_INTERPRETED, interpreter=refusal.interpreter)
        case OtherRefusal():
            text = refusal.text or say(_NO_TEXT)
            return say(_LIBRARY, library=refusal.library, text=text) if refusal.library else text
    assert_never(refusal)


def _name_device(name: str) -> str:
    device = find_device(name)
    return say(_DEVICE, article=device.article, noun=device.noun) if device else say(_OTHER_DEVICE, name=name)


def _describe_device(name: str) -> str:
    return say(_ON, device=_name_device(name)) if name else ""


def _describe_limits(size: UnsupportedSize) -> str:
    parts = [say(_LEAST, least=size.least)] if size.least is not None else []
    parts += [say(_MOST, most=size.most)] if size.most is not None else []
    parts += [say(_POWER)] if size.power_of_two else []
    parts += [say(_EXCLUDED, sizes=", ".join(map(str, size.excluded)))] if size.excluded else []
    return say(_AND).join(parts)
