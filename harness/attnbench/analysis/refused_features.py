"""What an implementation refuses, from the cases of a run that it refused."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import get_args

from attnbench.analysis.coverage import is_checked
from attnbench.cases import CALL_MODES, CaseId, Dtype
from attnbench.records.facts import Reason
from attnbench.records.run_file import StoredRun
from attnbench.records.types import PERF, WITHOUT_CASES, Result
from attnbench.refusals import CannotCompile, LacksGradients, LacksKeywords, LacksWeights, NeedsDtype, OtherRefusal

__all__ = ["MULTIHEAD", "RefusalsOfRuns", "RefusedFeatures", "find_refused_features"]

# ``WEIGHTS``: the feature of cases that return weights. ``WEIGHTS_OPTION``: the flag of such cases. ``FLAGS``: the
# feature of each flag in a case id; a flag that is not here is called by its name. ``NEUTRAL``: flags that are no
# features, because their absence is one (``_list_layout_features``), or because they only vary another flag.
WEIGHTS, WEIGHTS_OPTION = "weights", "need_weights"
FLAGS = {
    WEIGHTS_OPTION: WEIGHTS,
    "add_bias_kv": "bias_k and bias_v",
    "is_causal": "is_causal",
}
NEUTRAL = frozenset(
    {"-", "bias", "batch_first", "average_attn_weights", "self_attention", "key_is_value", "query_is_key"}
)
# The only operator whose layout is known here: that its batch is optional, and that it has projections.
MULTIHEAD = "multihead"
# Suites whose cases are not those of a list. A run of these alone says nothing about what else is refused.
TIMED = frozenset({PERF}) | WITHOUT_CASES
# A feature that the reason of a refusal does not mention is inferred only if at least this many cases were refused for
# the reason. In the suite ``quick``, two of 30 cases often have several rare features in common.
FEWEST_CASES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedFeatures:
    """What an implementation refuses; not known if only cases of the suites in ``TIMED`` were checked or refused."""

    known: bool
    # Features such as "weights": every case that has one was refused. Those with the most refused cases come first.
    names: tuple[str, ...] = ()


def find_refused_features(results: Iterable[Result], device: str) -> RefusedFeatures:
    """Return what one implementation refused on a device; ``results`` are those of the implementation in one run."""
    taken: list[CaseId] = []
    refused: dict[Reason, list[CaseId]] = {}
    suites = set()
    for result in results:
        case = CaseId.parse(result.case)
        refusals = (finding for finding in result.findings if finding.status == "unsupported")
        reasons: list[Reason] = [one.facts[0] if one.facts else one.reason for one in refusals]
        if case.device != device or not (reasons or is_checked(result)):
            continue
        suites.add(result.suite)
        if is_checked(result):
            taken.append(case)
        else:
            refused.setdefault(reasons[0], []).append(case)
    if suites <= TIMED:
        return RefusedFeatures(known=False)
    return RefusedFeatures(known=True, names=_explain(refused, taken) if taken else ("every case",))


class RefusalsOfRuns:
    """What each implementation refuses on a device: from the run that timed it, or from a run of the same code."""

    def __init__(self, runs: Sequence[StoredRun]) -> None:
        self._runs = {stored.run.id: stored for stored in runs}
        self._results: dict[tuple[str, str], list[Result]] = {}
        # By machine, implementation and hash of its source files, the runs of this code.
        self._of_code: dict[tuple[str, str, str], list[str]] = {}
        for stored in runs:
            for result in stored.results:
                self._results.setdefault((stored.run.id, result.implementation), []).append(result)
            for name, source in stored.run.sources.items():
                self._of_code.setdefault((stored.run.machine.name, name, source), []).append(stored.run.id)
        # Many calls ask for the same run.
        self._read = cache(self._find_in_run)

    def find(self, implementation: str, run: str, device: str) -> RefusedFeatures:
        """Return what an implementation that was timed in a run refuses."""
        found = (self._read(implementation, other, device) for other in self._list_runs(implementation, run))
        return next((one for one in found if one.known), RefusedFeatures(known=False))

    def _list_runs(self, implementation: str, run: str) -> Iterator[str]:
        """Yield the run, and then the runs on the same machine whose source files of the implementation are equal."""
        if run not in self._runs:
            return
        yield run
        own = self._runs[run].run
        if source := own.sources.get(implementation):
            same_code = self._of_code[own.machine.name, implementation, source]
            yield from (name for name in same_code if name != run)

    def _find_in_run(self, implementation: str, run: str, device: str) -> RefusedFeatures:
        return find_refused_features(self._results.get((run, implementation), ()), device)


def _explain(refused: Mapping[Reason, Sequence[CaseId]], taken: Sequence[CaseId]) -> tuple[str, ...]:
    """Return the features that explain the refused cases of each reason, those of most cases first.

    A feature explains a reason if all cases that were refused for this reason have it, and no case that was taken has
    it.
    """
    found = {feature for case in taken for feature in _list_features(case)}
    features: Counter[str] = Counter()
    for reason, cases in refused.items():
        alike = set.intersection(*(set(_list_features(case)) for case in cases)) - found
        feature = _choose_feature([one for one in _list_features(cases[0]) if one in alike], reason, len(cases))
        if feature:
            features[feature] += len(cases)
    return tuple(feature for feature, _ in features.most_common())


def _choose_feature(candidates: Sequence[str], reason: Reason, cases: int) -> str:
    """Return the feature that explains a reason; empty if none does, or if the cases are too few to tell.

    ``cases`` is the number of cases that were refused for this reason. A feature that the reason mentions is preferred,
    and of two such features the one with more words.
    """
    mentioned = [one for one in candidates if _mentions(reason, one)]
    if mentioned:
        return max(mentioned, key=lambda one: len(one.split()))
    return candidates[0] if candidates and cases >= FEWEST_CASES else ""


def _mentions(reason: Reason, feature: str) -> bool:
    """Whether a refusal is about a feature; the text of a plug-in is if it has the feature's words."""
    match reason:
        case LacksKeywords(keywords=keywords):
            return any(all(word.rstrip("s") in keyword for word in feature.split()) for keyword in keywords)
        case LacksWeights():
            return feature == WEIGHTS
        case LacksGradients():
            return feature == "gradients"
        case CannotCompile():
            return feature == "compilation"
        case NeedsDtype(dtypes=dtypes):
            return feature in get_args(Dtype) and feature not in dtypes
        case OtherRefusal(text=text) | str(text):
            return all(word.rstrip("s") in text.lower() for word in feature.lower().split())
    return False


def _list_features(case: CaseId) -> Iterator[str]:
    """Yield the features of a case that an implementation may refuse, those that explain a refusal best first."""
    sizes, flags, mask, *_ = case.problem.split("/")
    for flag in flags.split("+"):
        name = flag.partition("=")[0]
        if name not in NEUTRAL:
            yield FLAGS.get(name, name)
    yield from _list_mask_features(case.operator, mask.removeprefix("mask="))
    call_mode = CALL_MODES.get(case.mode)  # type: ignore[call-overload]
    if call_mode is None:
        yield f"mode {case.mode}"
    else:
        yield from ["gradients"] * (call_mode.inputs_track or call_mode.parameters_track)
        yield from ["training mode"] * call_mode.training
        yield from ["autocast"] * call_mode.autocast
        yield from ["compilation"] * bool(call_mode.compiler)
    if case.operator == MULTIHEAD:
        yield from _list_layout_features(sizes.split("."), flags.split("+"))
    yield case.dtype


def _list_mask_features(operator: str, mask: str) -> Iterator[str]:
    if mask == "none":
        return
    yield "masks"
    for part in mask.split("+"):
        if operator != MULTIHEAD:
            yield f"mask {part}"
            continue
        if part.startswith("pad"):
            yield "padding masks"
        yield "float masks" if re.search("float|lowest", part) else "boolean masks"
        if part.endswith("causal"):
            yield "causal masks"


def _list_layout_features(sizes: Sequence[str], flags: Sequence[str]) -> Iterator[str]:
    if not {"self_attention", "query_is_key", "key_is_value"} & set(flags):
        yield "three different tensors"
    if not {"self_attention", "query_is_key"} & set(flags):
        yield "cross-attention"
    labels = {size[:1] for size in sizes}
    if "B" not in labels:
        yield "unbatched input"
    if labels & {"K", "V"}:
        yield "kdim or vdim"
    if "batch_first" not in flags:
        yield "sequence-first input"
    if "bias" not in flags:
        yield "projections without bias"
