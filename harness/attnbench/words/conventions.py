"""What the trial of conventions found, as a sentence and as the source of a wrapper."""

from collections.abc import Iterator

from attnbench.interface.conventions import Convention, ModuleConvention
from attnbench.processes.convention_requests import (
    AsItIs,
    Construction,
    FunctionProposal,
    ModuleProposal,
    NoConvention,
    Proposal,
)
from attnbench.words.say import say, say_names

__all__ = ["describe_proposal", "describe_stage", "describe_trial"]

_PROPOSED = "{name} gives the right result if {conditions}: attnbench wrap {name} prints the file that declares it"
_HINT = "{name} needs a declaration: {what}; attnbench wrap {name} prints a draft"
_AS_IT_IS = "{name} gives the right result as it is: attnbench conform {name}"
_AND = ", "
_MANY = 6
_LAYOUTS = {
    "bhsd": "", "bshd": "its tensors are (batch, sequence, heads, width)",
    "sbhd": "its tensors are (sequence, batch, heads, width)",
    "folded": "its tensors are (batch·heads, sequence, width)",
    "bs3hd": "queries, keys and values are one tensor (batch, sequence, 3, heads, width)",
}  # fmt: skip
_MASKS = {
    "any": "", "keep": "true in its masks keeps a key", "hide": "true in its masks hides a key",
    "additive": "its masks are added to the logits",
}  # fmt: skip
_ORDER = "its arguments are {order}"
_NAMED = "{word} is its {name}"
_CONTIGUOUS = "its tensors are contiguous"
_CAUSAL = "every call is causal"
_ROWS = "a fully masked row is {rows}"
_ROW_WORDS = {"nan": "NaN", "mean": "the mean of all values"}
_CONSTRUCTED = "it is constructed with {arguments}"
_CONFIGURED = "it is constructed with {made_by}({arguments})"
_PROJECTED = "its layers are {layers}"
_TRANSPOSED = "its weights are (inputs, outputs)"
_SELF_ATTENTION = "query, key and value are one tensor"
_ONE_CONTEXT = "key and value are one tensor"
_LENGTH_FIRST = "its tokens are (length, batch, width)"
_STAGES = {
    "construct": "it could not be constructed{error}",
    "layers": "its parameters are not those of input projections and an output projection{error}",
    "call": "every call failed, the last with an exception{error}",
    "result": "no usual call of it gives the result of attention",
}
_CAUSE = ": {error}"
_SEEN = {
    "call": "its arguments: {names}", "constructor": "its constructor's arguments: {names}",
    "layers": "its parameters: {names}",
}  # fmt: skip
_TRIED = "layouts that were tried: {layouts}"
_LAYER = "{name} {shape}"
_NONE = "none"


def describe_proposal(name: str, proposal: Proposal) -> str | None:
    """Return one line about an object that is not right as it is; None if there is nothing to tell before a run."""
    if isinstance(proposal, AsItIs) or (isinstance(proposal, NoConvention) and proposal.is_callable):
        return None
    if isinstance(proposal, NoConvention):
        return say(_HINT, name=name, what=describe_stage(proposal))
    return say(_PROPOSED, name=name, conditions=say_names(_list_conditions(proposal), _MANY))


def describe_trial(name: str, proposal: AsItIs | NoConvention) -> Iterator[str]:
    """Yield lines for an object that needs no wrapper, or for which none was found."""
    if isinstance(proposal, AsItIs):
        yield say(_AS_IT_IS, name=name)
        return
    yield describe_stage(proposal)
    layers = [say(_LAYER, name=layer, shape=shape) for layer, shape in proposal.layers.items()]
    for what, names in (("constructor", proposal.constructor), ("call", proposal.call), ("layers", layers)):
        if names or what == "call":
            yield say(_SEEN[what], names=say(_AND).join(names) or say(_NONE))
    if proposal.kind == "function":
        yield say(_TRIED, layouts=say(_AND).join(_LAYOUTS))


def describe_stage(proposal: NoConvention) -> str:
    """Return how far a trial came that found no convention."""
    error = say(_CAUSE, error=proposal.error) if proposal.error else ""
    return say(_STAGES[proposal.stage], error=error)


def _list_conditions(proposal: FunctionProposal | ModuleProposal) -> list[str]:
    """Return what differs from a plain function or from the reference."""
    convention = proposal.convention
    found = [_LAYOUTS[convention.layout], _describe_order(convention)] if isinstance(convention, Convention) else []
    if isinstance(proposal, ModuleProposal):
        found += _describe_module(proposal.construction, proposal.convention)
    found += [say(_NAMED, word=word, name=own) for word, own in convention.names.items() if word != own]
    found += [
        _MASKS[convention.masks],
        _CONTIGUOUS if convention.contiguous else "",
        _CAUSAL if convention.causal_only else "",
    ]
    if proposal.hidden_rows != "zero":
        found.append(say(_ROWS, rows=_ROW_WORDS[proposal.hidden_rows]))
    return [one for one in found if one]


def _describe_order(convention: Convention) -> str:
    return say(_ORDER, order=say(_AND).join(convention.order)) if convention.order != Convention().order else ""


def _describe_module(construction: Construction, convention: ModuleConvention) -> list[str]:
    layers = say(_AND).join(convention.projections.values())
    arguments = say(_AND).join(construction.arguments)
    config = construction.config
    return [
        say(_CONSTRUCTED, arguments=arguments) if arguments else "",
        say(_CONFIGURED, made_by=config.made_by.name, arguments=say(_AND).join(config.arguments)) if config else "",
        say(_PROJECTED, layers=layers),
        _TRANSPOSED if convention.transposed else "",
        {1: _SELF_ATTENTION, 2: _ONE_CONTEXT}.get(len(convention.tokens), ""),
        "" if convention.batch_first else _LENGTH_FIRST,
    ]
