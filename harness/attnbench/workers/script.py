"""Standalone programs: each calls an implementation on one case, with saved inputs and expected values."""

import base64
import io
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.cases import Case
from attnbench.devices import get_device
from attnbench.interface import Policies, reference_arguments
from attnbench.oracle.expected import CaseOracle
from attnbench.processes.script_subject import Form, Subject
from attnbench.workers.script_templates import (
    BESIDE,
    EMBEDDED,
    EXCLUDING,
    FLAG,
    FUNCTION,
    GRADIENTS,
    LIMIT,
    OWN_GRADIENTS,
    PACKED_GRADIENTS,
    PROGRAM,
)

__all__ = ["EMBEDDED_BYTES", "write_script"]

# Largest total size of the tensors that are embedded in a program, in bytes. The program is then up to 5.7 MB long,
# because base64 adds a third.
EMBEDDED_BYTES = 2**22
# Defaults of ``torch.nn.MultiheadAttention``. A program leaves out a constructor argument that has its default value.
_DEFAULTS = {"dropout": 0.0, "bias": True, "add_bias_kv": False, "add_zero_attn": False, "batch_first": False}
# Keyword arguments that ``from_kernel`` passes to a function, as source code. ``dropout_p`` is always 0, because a case
# with dropout in training has no program.
_OFFERED = {
    "mask": "mask",
    "is_causal": "is_causal",
    "scale": "1 / math.sqrt(self.head_dim)",
    "dropout_p": "0.0",
    "need_weights": "need_weights",
}
_CALLS = {
    None: "module",
    "aot_eager": 'torch.compile(module, backend="aot_eager")',
    "inductor": "torch.compile(module)",
    "export": "torch.export.export(module, (), {**given, **OPTIONS}).module()",
}
Saved = dict[str, dict[str, Tensor]]


def write_script(case_oracle: CaseOracle, subject: Subject, beside: Path | None = None) -> str:
    """Return the program that calls an implementation on a case and compares the result with the expected values.

    The tensors are embedded in the program or, if ``beside`` is given, written to the file ``beside``. In this case,
    a program stored as ``NAME.py`` reads the tensors from ``NAME.pt`` in the same folder.

    Raises: ValueError, with the reason, where no such program is possible; OSError where ``beside`` cannot be written.
    """
    case, inputs, form = case_oracle.case, case_oracle.inputs, subject.form
    if case.problem.dropout and case.training:
        raise ValueError("a case with dropout in training has random outputs and no standalone program")
    build, saved = _format_build(case_oracle, form), _collect_tensors(case_oracle, subject.policies)
    function = _format_function(form) if form.kind == "function" else ""
    environment = f"\nos.environ |= {dict(subject.environment)}\n" if subject.environment else ""
    tensors = _store_tensors(saved, case, beside)
    text = environment + function + tensors
    modules = (name for name in ("base64", "io", "math", "os", "pathlib", "zlib") if f"{name}." in text)
    return PROGRAM.substitute(
        case=case.id,
        name=subject.name,
        limit=LIMIT.substitute(checks=", ".join(subject.unshown)) if subject.unshown else "",
        imports="\n".join(f"import {name}" for name in sorted({"sys", *modules})),
        environment=environment,
        load=subject.load + ("implementation = implementation()\n" if form.kind == "implementation class" else ""),
        quantities=_format_quantities(case_oracle),
        options=_select(inputs.options, form.call if form.kind == "module class" else None),
        function=function,
        inputs=", ".join(name for name in saved if name != "expected"),
        build=build,
        leaves=_format_leaves(case_oracle),
        call_mode=_format_call_mode(case),
        call=_CALLS[case.compiler],
        outputs=case_oracle.operator.outputs,
        synchronize="        implementation.synchronize()\n" if form.kind.startswith("implementation") else "",
        excluding=EXCLUDING if "excluded" in saved else "",
        gradients=_format_gradients(case_oracle, form),
        tensors=tensors,
    )


def _collect_tensors(case_oracle: CaseOracle, policies: Policies) -> Saved:
    """Return the program's inputs, the output rows that the program does not compare, and the expected values."""
    case, inputs, expected = case_oracle.case, case_oracle.inputs.map_tensors(_copy), case_oracle.expected
    values = {name: _copy(value) for name, value in expected.quantities.items()}
    if any(name.startswith("grad.") and bool(rows.any()) for name, rows in expected.hidden_rows.items()):
        raise ValueError(
            "the policy hidden_row_gradients leaves gradients of this case open, so a program cannot compare them; "
            "choose a case without fully masked rows"
        )
    if policies.hidden_rows == "nan":
        for name in expected.hidden_rows.keys() & values.keys():
            values[name].masked_fill_(expected.hidden_rows[name], math.nan)
    saved: Saved = {"parameters": inputs.parameters, "given": inputs.tensors}
    if case.differentiates:
        saved["cotangents"] = {name: value for name, value in inputs.cotangents.items() if name in values}
    if policies.padded_queries == "own":
        saved["excluded"] = {name: _copy(rows) for name, rows in case_oracle.operator.padded_rows(case, inputs).items()}
    return saved | {"expected": values}


def _copy(tensor: Tensor) -> Tensor:
    """Return a copy that is not a view, because ``torch.save`` would store the whole storage that a view is part of."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _store_tensors(saved: Saved, case: Case, path: Path | None) -> str:
    """Write the tensors to the file ``path`` or, if ``path`` is None, format them as text.

    Return those lines of the program that read the tensors and call ``main``. If the tensors are formatted as text, the
    lines contain the text.
    """
    memory = io.BytesIO()
    torch.save(saved, memory)
    if path is not None:
        path.write_bytes(memory.getvalue())
        return BESIDE.substitute(device=get_device(case.device).torch_type)
    if memory.tell() > EMBEDDED_BYTES:
        raise ValueError(f"the tensors of the case take {memory.tell() / 2**20:.3g} MiB: add --output FILE.py")
    text = base64.encodebytes(zlib.compress(memory.getvalue(), level=9)).decode()
    return EMBEDDED.substitute(device=get_device(case.device).torch_type, text=text)


def _format_quantities(case_oracle: CaseOracle) -> str:
    """Format one line for each output and gradient: dtype, allowed error, and error of the reference."""
    lines = []
    for name, allowance in case_oracle.expected.allowances.items():
        dtype = case_oracle.gradient_dtype if name.startswith("grad.") else case_oracle.dtype
        # Under autocast, only the first output has a required dtype.
        any_dtype = case_oracle.case.autocast and name in case_oracle.operator.outputs[1:]
        numbers = f"{None if any_dtype else dtype}, {allowance.allowed:.6g}, {allowance.yardstick:.3g}"
        lines.append(f"    {name!r}: ({numbers}),\n")
    return "".join(lines)


def _select(given: Mapping[str, Any], accepted: tuple[str, ...] | None) -> dict[str, Any]:
    """Return the arguments whose name is in ``accepted``, or all arguments if ``accepted`` is None.

    Leaving out the other arguments is safe: an implementation refuses a case in which they change the result.
    """
    return {name: value for name, value in given.items() if accepted is None or name in accepted}


def _format_function(form: Form) -> str:
    arguments = [f"{name}={code}" for name, code in _OFFERED.items() if form.call is None or name in form.call]
    return FUNCTION.substitute(
        arguments=", ".join(["q", "k", "v", *arguments]),
        flag=FLAG if form.call is None or "is_causal" in form.call else "",
    )


def _format_build(case_oracle: CaseOracle, form: Form) -> str:
    """Format the program's lines that build the implementation's module and assign it to ``module``.

    An implementation builds its module from the reference, so the program has to build the reference too.

    Raises: ValueError where a program cannot build the reference.
    """
    case = case_oracle.case
    reference = case_oracle.operator.reference(case, case_oracle.inputs)
    mode = f".train({case.training}).requires_grad_({case.leaves_parameters_trainable})"
    if form.kind == "function":
        lines = [*_format_reference("module", "Attention", reference), f"module{mode}"]
    elif form.kind == "module class":
        arguments = _format_arguments(_select(reference_arguments(reference), form.constructor))
        lines = [
            f"module = implementation({arguments})",
            "# Not strict, because the module may have buffers that the reference lacks.",
            'module.to(parameters["out_proj.weight"]).load_state_dict(parameters, strict=False)',
            *_format_mode(case),
        ]
    else:
        lines = [
            *_format_reference("reference", "torch.nn.MultiheadAttention", reference),
            f"module = implementation.build(reference{mode})",
            "if isinstance(module, torch.nn.Module):",
            *(f"    {line}" for line in _format_mode(case)),
        ]
    return "".join(f"    {line}\n" for line in lines)


def _format_mode(case: Case) -> list[str]:
    """Format the program's lines that set the mode of ``module``; a parameter of whole numbers has no gradient."""
    if not case.leaves_parameters_trainable:
        return [f"module.train({case.training}).requires_grad_(False)"]
    return [
        f"module.train({case.training})",
        "for parameter in module.parameters():",
        "    parameter.requires_grad_(parameter.is_floating_point() or parameter.is_complex())",
    ]


def _format_reference(name: str, maker: str, reference: nn.Module) -> list[str]:
    """Format the program's lines that assign to ``name`` a module with the parameters of the reference."""
    if isinstance(reference, nn.MultiheadAttention):
        given = reference_arguments(reference)
        defaults = _DEFAULTS | {"kdim": reference.embed_dim, "vdim": reference.embed_dim}
        arguments = {key: value for key, value in given.items() if key not in defaults or value != defaults[key]}
        return [
            f"{name} = {maker}({_format_arguments(arguments)})",
            f'{name}.to(parameters["out_proj.weight"]).load_state_dict(parameters)',
        ]
    nested = [parameter for parameter, _ in reference.named_parameters() if "." in parameter]
    if nested:
        kind = type(reference).__name__
        raise ValueError(f"a standalone program cannot build the reference, a {kind} with the parameter {nested[0]!r}")
    return [
        f"{name} = torch.nn.Module()",
        "for key, value in parameters.items():",
        f"    {name}.register_parameter(key, torch.nn.Parameter(value, requires_grad=value.is_floating_point()))",
    ]


def _format_leaves(case_oracle: CaseOracle) -> str:
    """Format the program's line that sets ``leaves``: the arguments whose gradients are computed."""
    if not case_oracle.case.differentiates:
        return ""
    names = [name for name in case_oracle.inputs.tensors if f"grad.{name}" in case_oracle.expected.quantities]
    return f"    leaves = {{name: given[name].requires_grad_() for name in {names}}}\n"


def _format_arguments(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


def _format_call_mode(case: Case) -> str:
    if case.call_mode.inference_mode:
        return "torch.inference_mode()"
    if case.autocast:
        return f'torch.autocast("{get_device(case.device).torch_type}", dtype=torch.{case.dtype})'
    return f"torch.set_grad_enabled({case.differentiates})"


def _format_gradients(case_oracle: CaseOracle, form: Form) -> str:
    case = case_oracle.case
    if not case.differentiates:
        return ""
    if not (case.tracks_parameters and case_oracle.inputs.parameters):
        return GRADIENTS
    return OWN_GRADIENTS + GRADIENTS + (PACKED_GRADIENTS if form.kind.startswith("implementation") else "")
