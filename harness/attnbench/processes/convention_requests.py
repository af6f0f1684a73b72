"""The request for the convention of a function or module, and the replies."""

from typing import Literal

import msgspec

from attnbench.interface.conventions import Convention, ModuleConvention
from attnbench.processes.candidate_requests import CandidateRequest

__all__ = [
    "AsItIs",
    "Configuration",
    "Construction",
    "FindConvention",
    "FunctionProposal",
    "Imported",
    "ModuleProposal",
    "NoConvention",
    "Proposal",
]


class AsItIs(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The object gives the right result as it is called without a declaration."""


class FunctionProposal(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The function gives the right result if it is called by this convention."""

    convention: Convention
    # Parameters that a call by the convention never gets.
    unused: tuple[str, ...] = ()
    # The output in fully masked rows, if it is not 0.
    hidden_rows: Literal["zero", "nan", "mean"] = "zero"


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """A class that a wrapper imports; ``module`` is empty if it is defined beside the wrapped object."""

    name: str
    module: str = ""


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """The object with sizes that a constructor takes as the argument ``name``; its class gets ``arguments``."""

    name: str
    made_by: Imported
    arguments: dict[str, str]


class Construction(msgspec.Struct, frozen=True, kw_only=True):
    """How a module is made: arguments by name, each an expression of embed_dim, num_heads, dropout and bias."""

    arguments: dict[str, str]
    config: Configuration | None = None

    @property
    def expressions(self) -> frozenset[str]:
        """The expressions of all arguments, of the constructor and of its configuration."""
        return frozenset([*self.arguments.values(), *(self.config.arguments.values() if self.config else ())])

    def replace_expressions(self, others: dict[str, str]) -> "Construction":
        """Return the construction with other expressions in place of some."""

        def change(arguments: dict[str, str]) -> dict[str, str]:
            return {name: others.get(expression, expression) for name, expression in arguments.items()}

        config = self.config
        return Construction(
            arguments=change(self.arguments),
            config=config and msgspec.structs.replace(config, arguments=change(config.arguments)),
        )


class ModuleProposal(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The module gives the right result if it is made and called like this."""

    construction: Construction
    convention: ModuleConvention
    # Parameters of the forward method that a call by the convention never gets.
    unused: tuple[str, ...] = ()
    hidden_rows: Literal["zero", "nan", "mean"] = "zero"


class NoConvention(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """No convention gave the right result: how far the trial came, and what it saw."""

    kind: Literal["function", "module"]
    # ``construct``: the class could not be constructed; ``layers``: its parameters are no projections; ``call``: every
    # call raised an exception; ``result``: no call returned the right result.
    stage: Literal["construct", "layers", "call", "result"]
    # Parameters of the function or of the forward method, and of the constructor, as their signatures have them.
    call: tuple[str, ...]
    constructor: tuple[str, ...] = ()
    # Names and shapes of the module's parameters.
    layers: dict[str, tuple[int, ...]] = {}
    # The last exception, as one line.
    error: str = ""
    # Whether calls without a declaration raise no exception; what they return is then judged by a suite.
    is_callable: bool = False
    # A convention by which calls raise no exception, although their result is wrong.
    likely: FunctionProposal | ModuleProposal | None = None


Proposal = AsItIs | FunctionProposal | ModuleProposal | NoConvention


class FindConvention(CandidateRequest[Proposal], frozen=True, kw_only=True):
    """Asks by which convention a loaded object gives the right result on a small problem."""

    implementation: str
