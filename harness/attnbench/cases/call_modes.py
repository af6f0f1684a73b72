"""Modes of cases; a mode says how the module is called."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

__all__ = [
    "CALL_MODES",
    "COMPILED_MODES",
    "MODES",
    "CallMode",
    "Compiler",
    "Mode",
]

Mode = Literal[
    "inference",
    "eval",
    "train",
    "inference_mode",
    "sampling",
    "frozen",
    "tuning",
    "autocast",
    "autocast_inference",
    "aot",
    "inductor",
    "inductor_train",
    "exported",
]
Compiler = Literal["aot_eager", "inductor", "export"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallMode:
    """How the module is called in one mode: gradients, train() or eval(), autocast, compiler."""

    # The module is in train() mode; if false, in eval() mode.
    training: bool = False
    inputs_track: bool = False
    parameters_track: bool = False
    # The module is called under torch.autocast with the case's dtype; inputs and parameters are float32.
    autocast: bool = False
    # A call without gradients is made under torch.inference_mode instead of torch.no_grad.
    inference_mode: bool = False
    compiler: Compiler | None = None


_ALL_TRACK: dict[str, Any] = {"inputs_track": True, "parameters_track": True}
CALL_MODES: dict[Mode, CallMode] = {
    "inference": CallMode(),
    "eval": CallMode(**_ALL_TRACK),
    "train": CallMode(training=True, **_ALL_TRACK),
    "inference_mode": CallMode(inference_mode=True),
    # Dropout without gradients, as in Monte Carlo dropout.
    "sampling": CallMode(training=True),
    # A frozen layer inside a network in training: gradients with respect to the inputs only.
    "frozen": CallMode(training=True, inputs_track=True),
    # The first layer of a network: gradients with respect to the parameters only.
    "tuning": CallMode(parameters_track=True),
    "autocast": CallMode(training=True, autocast=True, **_ALL_TRACK),
    # A trained model that is served under autocast, where the reference may take its fast path.
    "autocast_inference": CallMode(autocast=True),
    "aot": CallMode(compiler="aot_eager", **_ALL_TRACK),
    "inductor": CallMode(compiler="inductor"),
    "inductor_train": CallMode(training=True, compiler="inductor", **_ALL_TRACK),
    "exported": CallMode(compiler="export"),
}
# Modes in which the module is compiled.
COMPILED_MODES: frozenset[str] = frozenset(mode for mode, call_mode in CALL_MODES.items() if call_mode.compiler)
MODES: tuple[Mode, ...] = get_args(Mode)
