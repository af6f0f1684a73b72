"""A case as a standalone program, which needs torch and the implementation but not attnbench."""

from attnbench.cases import Case
from attnbench.operators.multihead.inputs import draw_inputs
from attnbench.operators.multihead.problem import MultiheadProblem
from attnbench.operators.multihead.rows import find_hidden_rows
from attnbench.operators.multihead.script_inputs import format_draws

__all__ = ["format_script"]

_HEAD = '''\
"""{case}: the reference in float64, and one call of the implementation."""

import hashlib
import math

import torch
{load}

def stream(name):
    digest = hashlib.sha256(f"{seed}/{{name}}".encode()).digest()[:7]
    return torch.Generator().manual_seed(int.from_bytes(digest, "big"))


def normal(name, *shape, std=1.0):
    return std * torch.randn(shape, generator=stream(name), dtype=torch.float64)

'''

_UNIFORM = """
def uniform(name, *shape):
    return torch.rand(shape, generator=stream(name), dtype=torch.float64)

"""

_ROUNDED = """

def rounded(tensors, dtype):
    return {{name: {to} for name, t in tensors.items()}}


dtype = torch.{dtype}
{names} = (rounded(tensors, dtype) for tensors in ({names}))
options = {options}


def reference(dtype):
    module = torch.nn.MultiheadAttention({constructor}).to({place})
    module.load_state_dict(parameters)
    return module.train({train}){requires}


def run(module, dtype, **options):
    given = rounded(call, dtype)
{aliases}"""

_FORWARD = """\
    output, weights = module(**given, **options)
    return {"output": output} | ({} if weights is None else {"weights": weights})

"""

_BACKWARD = """\
    leaves = {leaves}
    output, weights = module(**given, **options)
    found = {{"output": output}} | ({{}} if weights is None else {{"weights": weights}})
    loss = sum((found[name] * cotangents[name].to(found[name].dtype)).sum() for name in cotangents)
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return found | {{f"gradient of {{name}}": gradient for name, gradient in zip(leaves, gradients)}}

"""

_TAIL = """
{exact}expected = run(exact, torch.float64, **options | {reference_options})
{weights}{built}{compiled}with {call_mode}:
    found = run(module, dtype, **options)
for name, value in found.items():
    if name in expected and value.numel():
        print(f"{{name}}: largest error {{(value.double() - expected[name]).abs().max():.3g}}")
"""

# Training mode avoids the reference's fast path, whose fully masked rows are NaN even if no weights are returned.
_EXACT = "exact = reference(torch.float64).train()\n"

_WEIGHTS = """\
# The reference returns NaN weights in fully masked rows, and also NaN outputs if it returns weights.
expected["weights"] = run(exact, torch.float64, **options | {"is_causal": False})["weights"].nan_to_num()
"""

_BUILT = """\
if hasattr(implementation, "build"):
    module = implementation.build(reference(dtype))
else:
    module = implementation({constructor}).to({place})
    module.load_state_dict(parameters)
module.train({train}){requires}
"""

_COMPILED = {
    None: "",
    "aot_eager": 'module.compile(backend="aot_eager")\n',
    "inductor": "module.compile()\n",
    "export": "module = torch.export.export(module, (), {**call, **options}).module()\n",
}


def format_script(case: Case, load: str) -> str:
    """Return the program that runs a case; ``load`` is the source code that defines ``implementation``.

    Raises: ValueError for a case without a standalone program.
    """
    problem: MultiheadProblem = case.problem
    if problem.encoder_layer is not None:
        raise ValueError("a case with the real encoder's weights has no standalone program: leave out --script")
    if problem.dropout and case.training:
        raise ValueError(
            "a case with dropout in training has random outputs and no standalone program: leave out --script"
        )
    empty = bool(find_hidden_rows(case, draw_inputs(case)))
    # If a case has fully masked rows and the reference returns weights, these rows and all gradients of the reference
    # are NaN. The program then computes no gradients.
    gradients = case.differentiates and not (empty and problem.need_weights)
    constructor, place = _format_constructor(problem), "dtype" if case.device == "cpu" else '"cuda", dtype'
    words = {"constructor": constructor, "place": place, "train": case.training}
    words["requires"] = ".requires_grad_(False)" if case.tracks_inputs and not case.tracks_parameters else ""
    lines = "\n".join([*format_draws(problem), *_format_cotangents(problem, gradients=gradients)])
    return "".join(
        [
            _HEAD.format(case=case.id, seed=case.seed, load=load),
            _UNIFORM if "uniform(" in lines else "",
            f"\n{lines}\n",
            _ROUNDED.format(
                to=f"t.to({place}) if t.is_floating_point() else t" + ("" if case.device == "cpu" else ".cuda()"),
                dtype=case.given_dtype,
                names="parameters, call, cotangents" if gradients else "parameters, call",
                options=_get_options(problem),
                aliases=_format_aliases(problem),
                **words,
            ),
            _BACKWARD.format(leaves=_format_leaves(case)) if gradients else _FORWARD,
            _TAIL.format(
                exact=_EXACT + ("exact.dropout = 0.0\n" if problem.dropout else ""),
                # The program ignores expected weights if the call of the implementation returns no weights. The
                # reference may treat the hint is_causal wrongly, so the program calls the reference without this hint.
                reference_options={"need_weights": not empty, "is_causal": False},
                weights=_WEIGHTS if empty and problem.need_weights else "",
                built=_BUILT.format(**words),
                compiled=_COMPILED[case.compiler],
                call_mode=_format_call_mode(case),
            ),
        ]
    )


def _format_constructor(problem: MultiheadProblem) -> str:
    """Format the arguments of the reference's constructor that differ from their defaults."""
    defaults = {
        "dropout": 0.0, "bias": True, "add_bias_kv": False, "add_zero_attn": False, "kdim": None, "vdim": None,
        "batch_first": False,
    }  # fmt: skip
    given = {name: getattr(problem, name) for name in defaults}
    words = [f"{name}={value!r}" for name, value in given.items() if value != defaults[name]]
    return ", ".join([str(problem.embed_dim), str(problem.num_heads), *words])


def _get_options(problem: MultiheadProblem) -> dict[str, bool]:
    names = ("need_weights", "average_attn_weights", "is_causal")
    return {name: getattr(problem, name) for name in names}


def _format_cotangents(problem: MultiheadProblem, *, gradients: bool) -> list[str]:
    if not gradients:
        return []
    batch = [] if problem.batch is None else [problem.batch]
    tokens = [*batch, problem.queries] if problem.batch_first else [problem.queries, *batch]
    shapes = {"output": [*tokens, problem.embed_dim]}
    if problem.need_weights:
        heads = [] if problem.average_attn_weights else [problem.num_heads]
        shapes["weights"] = [*batch, *heads, problem.queries, problem.columns]
    drawn = (f"'{name}': normal('cotangent.{name}', {', '.join(map(str, s))})" for name, s in shapes.items())
    return [f"cotangents = {{{', '.join(drawn)}}}"]


def _format_aliases(problem: MultiheadProblem) -> str:
    """Format the line that makes several arguments one tensor again; the program's ``rounded`` copied each argument."""
    if problem.self_attention:
        return '    given["key"] = given["value"] = given["query"]\n'
    if problem.key_is_value:
        return '    given["value"] = given["key"]\n'
    return '    given["key"] = given["query"]\n' if problem.query_is_key else ""


def _format_leaves(case: Case) -> str:
    inputs = "{name: t.requires_grad_() for name, t in given.items() if t.is_floating_point()}"
    own = "{name: p for name, p in module.named_parameters() if p.requires_grad}"
    return " | ".join(
        leaves for leaves, wanted in ((inputs, case.tracks_inputs), (own, case.tracks_parameters)) if wanted
    )


def _format_call_mode(case: Case) -> str:
    if case.call_mode.inference_mode:
        return "torch.inference_mode()"
    if case.autocast:
        return f'torch.autocast("{case.device}", dtype=torch.{case.dtype})'
    return f"torch.set_grad_enabled({case.differentiates})"
