"""Templates of standalone programs; ``attnbench.workers.script`` fills in the placeholders, such as ``$case``."""

from string import Template

__all__ = [
    "BESIDE",
    "EMBEDDED",
    "EXCLUDING",
    "FLAG",
    "FUNCTION",
    "GRADIENTS",
    "LIMIT",
    "OWN_GRADIENTS",
    "PACKED_GRADIENTS",
    "PROGRAM",
]

PROGRAM = Template('''\
"""$case

One call of $name: the largest error of each output and gradient, beside the error that is allowed.
Exit code: 0 if all are ok, 1 if one is wrong.
$limit"""

$imports
${environment}
import torch

$load
# By quantity: dtype, allowed error, and error of the reference. Errors are those against the formula in float64.
QUANTITIES = {
$quantities}
OPTIONS = $options

$function
def run($inputs):
    """Call the implementation; return its outputs and gradients by name."""
$build$leaves    with $call_mode:
        call = $call
        returned = call(**given, **OPTIONS)
$synchronize    returned = returned if isinstance(returned, tuple) else (returned,)
    found = {name: value for name, value in zip($outputs, returned) if value is not None}
$excluding$gradients    return found


def compare(value, expected, dtype):
    """Return the largest error, or in words why there is none."""
    if value is None or expected is None:
        return "not returned" if value is None else "returned, must be None"
    if value.shape != expected.shape or dtype not in (None, value.dtype):
        return f"{tuple(value.shape)} {value.dtype}, must be {tuple(expected.shape)} {dtype or ''}"
    value = value.detach().double()
    equal = (value == expected) | (value.isnan() & expected.isnan())
    return (value - expected).abs().masked_fill(equal, 0.0).max().item() if value.numel() else 0.0


def main(expected, **inputs):
    """Print one line for each quantity and return the exit code."""
    found, wrong = run(**inputs), 0
    print(f"{'quantity':24} {'error':>10} {'allowed':>10} {'reference':>10}")
    for name in QUANTITIES | found:
        dtype, allowed, reference = QUANTITIES.get(name, (None, 0.0, 0.0))
        error = compare(found.get(name), expected.get(name), dtype)
        ok = not isinstance(error, str) and error <= allowed
        wrong += not ok
        shown = error if isinstance(error, str) else f"{error:.3g}"
        print(f"{name:24} {shown:>10} {allowed:10.3g} {reference:10.3g}  {'ok' if ok else 'WRONG'}")
    return 1 if wrong else 0


$tensors''')

# Lines of the docstring about checks whose failure the program cannot show.
LIMIT = Template("""
This program makes one plain call; it does not show the check $checks.
""")
# Lines that read the tensors from the text of the program.
EMBEDDED = Template('''\
TENSORS = """
$text"""
file = io.BytesIO(zlib.decompress(base64.b64decode(TENSORS)))
sys.exit(main(**torch.load(file, map_location="$device", weights_only=True)))
''')
# Lines that read the tensors from a file in the folder of the program.
BESIDE = Template("""\
file = pathlib.Path(__file__).with_suffix(".pt")
sys.exit(main(**torch.load(file, map_location="$device", weights_only=True)))
""")

# Line that sets to 0 the rows of padded queries, which the implementation may fill with any values.
EXCLUDING = """\
    found |= {name: found[name].masked_fill(rows, 0.0) for name, rows in excluded.items() if name in found}
"""
# Line that adds the module's parameters to the tensors whose gradients are computed.
OWN_GRADIENTS = """\
    leaves |= {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
"""
GRADIENTS = """\
    loss = sum((value * cotangents[name]).sum() for name, value in found.items() if name in cotangents)
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
    found |= {f"grad.{name}": gradient for name, gradient in zip(leaves, gradients)}
"""
# Lines that convert the gradients of the module's parameters to the gradients of the reference's parameters.
PACKED_GRADIENTS = """\
    parameters = {name: value.detach().requires_grad_() for name, value in parameters.items()}
    made = implementation.weights_of(module, parameters)
    gradients = [found.pop(f"grad.{name}") for name in made]
    gradients = torch.autograd.grad(
        list(made.values()), list(parameters.values()), gradients, allow_unused=True, materialize_grads=True
    )
    found |= {f"grad.{name}": gradient for name, gradient in zip(parameters, gradients)}
"""

# Module that computes multi-head attention by calling a function on split heads.
FUNCTION = Template('''\

class Attention(torch.nn.MultiheadAttention):
    """The reference's projections, heads and masks around the function."""

    def forward(self, query, key, value, attn_mask=None, key_padding_mask=None, **options):
        tokens = [query, key, value]
        if query.dim() == 2:  # without a batch axis
            tokens = [one[None] for one in tokens]
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        elif not self.batch_first:
            tokens = [one.transpose(0, 1) for one in tokens]
        output, weights = self.attend(*tokens, attn_mask, key_padding_mask, **options)
        if query.dim() == 2:
            return output[0], None if weights is None else weights[0]
        return output if self.batch_first else output.transpose(0, 1), weights

    def attend(
        self, query, key, value, attn_mask, key_padding_mask, need_weights, average_attn_weights, is_causal
    ):
        weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = map(self.project, (query, key, value), weights, biases)
        if self.bias_k is not None:
            appended = (self.split(one.to(q.dtype).expand(len(q), 1, -1)) for one in (self.bias_k, self.bias_v))
            k, v = (torch.cat(pair, dim=2) for pair in zip((k, v), appended))
        if self.add_zero_attn:
            k, v = (torch.nn.functional.pad(one, (0, 0, 0, 1)) for one in (k, v))
        appended = k.shape[2] - key.shape[1]
        mask = self.combine(attn_mask, key_padding_mask, query, appended)
$flag        if mask is not None and mask.is_floating_point():
            mask = mask.to(q.dtype)
        returned = implementation($arguments)
        output, weights = returned if isinstance(returned, tuple) else (returned, None)
        if weights is not None and average_attn_weights:
            weights = weights.mean(dim=1)
        return self.out_proj(output.transpose(1, 2).flatten(2)), weights if need_weights else None

    def project(self, tokens, weight, bias):
        return self.split(torch.nn.functional.linear(tokens, weight, bias))

    def split(self, features):  # (batch, length, embed_dim) to (batch, heads, length, head_dim)
        return features.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def combine(self, attn_mask, key_padding_mask, query, appended):
        """Return one mask, boolean (true keeps a key) or added to the logits, or None."""
        if attn_mask is not None and attn_mask.dim() == 3:
            attn_mask = attn_mask.unflatten(0, (len(query), self.num_heads))
        padding = None if key_padding_mask is None else key_padding_mask[:, None, None]
        masks = [~one if one.dtype == torch.bool else one for one in (attn_mask, padding) if one is not None]
        if len({one.dtype for one in masks}) > 1:
            masks = [torch.where(one, 0.0, -math.inf).to(query) if one.dtype == torch.bool else one for one in masks]
        if not masks:
            return None
        mask = masks[0]
        for other in masks[1:]:
            mask = mask & other if mask.dtype == torch.bool else mask + other
        return torch.nn.functional.pad(mask, (0, appended), value=mask.dtype == torch.bool) if appended else mask

''')
FLAG = """\
        is_causal = is_causal and key_padding_mask is None and not appended
        mask = None if is_causal else mask
"""
