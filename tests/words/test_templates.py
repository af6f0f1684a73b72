"""Tests that checks, fault models and templates fit one another."""

import ast
import string
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

import attnbench.checks
from attnbench.analysis import exclusions
from attnbench.interface import Inputs
from attnbench.operators.attention_core import OPERATOR as CORE
from attnbench.operators.multihead import OPERATOR as MULTIHEAD
from attnbench.records import sample_faults
from attnbench.records.facts import Fact
from attnbench.records.outcome_facts import Implausible
from attnbench.records.value_facts import Phrase, phrase
from attnbench.testing.operator import GivenAttention
from attnbench.words.calls import JUDGING
from attnbench.words.checks import COMPARISONS, VIOLATIONS
from attnbench.words.exclusions import FAULTS as EXCLUDED
from attnbench.words.faults import FAULTS
from attnbench.words.findings import describe_fact

# Keys of which only the beginning or the end stands in the source of a check; the rest is a name in the same module.
BUILT = {
    "deep_copy", "unpickled_module", "by_position", "by_default", "with_none", "larger_after_smaller",
    "smaller_after_larger", "sliced_inputs", "spread_inputs", "transposed_inputs", "first_axis_last",
    "hint_without_causal_mask", "wide_mask", "keys_of_one_sequence", "sequence_too_many", "batch_of_queries_alone",
    "weights_missing", "weights_unrequested", "weights_detached", "weights_tracked", "loaded_state",
    "module_converted_twice", "vmap", "func_grad_raised", "forward_derivative_raised",
}  # fmt: skip


CHECKS = sorted(Path(attnbench.checks.__file__).parent.rglob("*.py"))


def list_phrases(paths: Iterable[Path] = CHECKS) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the key and the names of the values of each phrase in these files, or in those of the built-in checks."""
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "phrase":
                names = frozenset(one.arg for one in node.keywords if one.arg)
                if isinstance(node.args[0], ast.Constant) and len(names) == len(node.keywords):
                    yield node.args[0].value, names


def list_fields(template: str) -> frozenset[str]:
    """Return the names that a template is filled with."""
    return frozenset(name for _, name, _, _ in string.Formatter().parse(template) if name)


TEMPLATES: Mapping[str, str] = COMPARISONS | VIOLATIONS | JUDGING


@pytest.mark.parametrize(("key", "names"), sorted(set(list_phrases()), key=lambda one: one[0]))
def test_a_phrase_of_a_check_has_a_template_with_its_values(key: str, names: frozenset[str]) -> None:
    """Each phrase whose key stands in a check is told by a template, which names the same values."""
    assert key in TEMPLATES
    assert list_fields(TEMPLATES[key]) == names


def test_every_template_of_a_check_is_used() -> None:
    """A template belongs to a phrase of a check: its key stands there, or is built from a name that does."""
    used = {key for key, _ in list_phrases()}
    left = {key for key in TEMPLATES if key not in used and not any(name in key for name in BUILT)}
    assert left == set()
    assert COMPARISONS.keys().isdisjoint(VIOLATIONS)


def test_every_fault_model_has_a_template_with_its_values() -> None:
    """The fault models on all cases of the suites core, those of calls from tests included, and the templates agree."""
    given = Inputs(parameters={}, tensors={"sinks": None}, options={"score_mod": abs})  # type: ignore[dict-item]
    models = {
        (model.name, frozenset(model.values))
        for operator in (MULTIHEAD, CORE, GivenAttention(given))
        for case in operator.suite("core")
        for names in (("output", "grad.query"), ("weights",))
        for model in operator.fault_models(case, names)
    }
    assert models <= {(name, list_fields(template)) for name, template in FAULTS.items()}
    assert FAULTS.keys() - {name for name, _ in models} == set()


def test_every_fault_of_what_is_left_out_has_a_template_with_its_values() -> None:
    """The phrases of implausible values and the templates are the same; those of an A/A control say it in addition."""
    of_timing = dict(list_phrases([Path(sample_faults.__file__)]))
    found = of_timing | dict(list_phrases([Path(exclusions.__file__)]))
    of_control = {f"control_{key}" for key in of_timing.keys() - {"processes_of_control"}}
    assert EXCLUDED.keys() - of_control == found.keys()
    assert {key: list_fields(EXCLUDED[key]) for key in found} == found


@pytest.mark.parametrize("fault", [phrase("no_samples"), "it has no samples"])
def test_an_implausible_timing_is_read_with_a_typed_fault_and_with_a_text(fault: Phrase | str) -> None:
    """Both forms of the fact are decoded, and say the same."""
    fact: Fact = msgspec.json.decode(msgspec.json.encode(Implausible(fault=fault)), type=Fact)
    assert describe_fact(fact) == "left out: it has no samples"
