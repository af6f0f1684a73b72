"""Tests of what a timing process does with one case, on implementations of ours in this process."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from attnbench.cases import Case
from attnbench.checks.observations import Match, deserialize
from attnbench.interface import Implementation, Inputs, Policies
from attnbench.measurement import sampling
from attnbench.measurement.sampling import CallFailed
from attnbench.measurement.scheduler import Scheduler
from attnbench.oracle import tensor_file
from attnbench.plugins.registry import load_operator, load_problem_types
from attnbench.workers import interleaved_timing
from attnbench.workers.interleaved_timing import InterleavedTiming, ProcessDisturbed
from attnbench.workers.oracle_worker import OracleWorker

CASE = "multihead/B1.L4.S4.E8.H2/bias+batch_first+self_attention/mask=none/regime=plain/seed=0/float32/cpu/"
CHECKS = {"inference": ["forward_parity"], "train": ["forward_parity", "input_gradients", "parameter_gradients"]}


class Own(Implementation):
    """The reference, which tells what it was given."""

    def __init__(self, act: Callable[[], object] = lambda: None) -> None:
        self.act = act
        self.built = 0
        self.waits = 0
        self.prepared: list[torch.Tensor] = []
        self.queries: list[torch.Tensor] = []
        self.modes: list[bool] = []

    def build(self, reference: Any) -> Any:
        """The reference."""
        self.built += 1
        return reference

    def prepare(self, module: Any, case: Case, inputs: Inputs) -> Callable[..., Any]:
        """Its forward, looked at."""
        del case
        self.prepared.append(inputs.tensors["query"].detach().clone())

        def call(**arguments: Any) -> Any:
            self.queries.append(arguments["query"].detach().clone())
            self.modes.append(torch.is_grad_enabled())
            self.act()
            return module(**arguments)

        return call


class Asynchronous(Own):
    """Counts how often it is waited for."""

    def synchronize(self) -> None:
        """Count."""
        self.waits += 1


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> OracleWorker:
    """Who draws inputs."""
    return OracleWorker(tmp_path_factory.mktemp("judge"))


@pytest.fixture
def take(judge: OracleWorker, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Turns of some implementations."""

    def taken(
        implementations: dict[str, Implementation],
        *,
        baseline: str | None = None,
        mode: str = "inference",
        seed: int = 1,
    ) -> dict[str, Any]:
        case = Case.parse(CASE + mode, load_problem_types())
        return InterleavedTiming(
            implementations=implementations, baseline=baseline, operator=load_operator("multihead"), case=case,
            inputs=judge.draw_inputs(case=case.id), seed=seed,
        ).take_samples(budget_s=0.01, limit_s=60, checks=CHECKS[mode], observation=str(tmp_path / "seen"))  # fmt: skip

    return taken


def test_the_baseline_is_built_twice_and_the_others_once(take: Callable[..., dict[str, Any]]) -> None:
    """The twin has inputs of its own, shares the baseline's turn, and is told apart."""
    base, other = Own(), Own()
    answer = take({"base": base, "other": other}, baseline="base")
    assert (base.built, other.built) == (2, 1)
    assert set(answer["samples"]) == {"base", "other"}
    shared, own = (answer["twin"]["cycles"], answer["samples"]["base"]["cycles"]), answer["samples"]["other"]["cycles"]
    assert set(own) <= set(shared[0]) ^ set(shared[1]) == set(shared[0]) | set(shared[1])
    assert len({tensor.data_ptr() for tensor in base.prepared}) == 2


def test_without_a_baseline_there_is_no_twin(take: Callable[..., dict[str, Any]]) -> None:
    """Also where it is not among those that are timed."""
    other = Own()
    assert take({"other": other})["twin"] is None
    assert take({"other": other}, baseline="base")["twin"] is None


@pytest.mark.parametrize("mode", ["inference", "train"])
def test_nothing_that_is_timed_saw_the_values_that_are_judged(
    take: Callable[..., dict[str, Any]], judge: OracleWorker, mode: str
) -> None:
    """It is built and called on other values; afterwards the case's own are in the same tensors, and it is right."""
    own = Own()
    answer = take({"own": own}, mode=mode)
    given = tensor_file.read(Path(judge.draw_inputs(case=CASE + mode)))["tensors"]["query"]
    assert not any(torch.equal(query, given) for query in own.prepared + own.queries[:-1])
    assert torch.equal(own.queries[-1], given)
    observations = tensor_file.read(Path(answer["observations"]["own"]))
    assert set(observations) == set(CHECKS[mode])
    for plain in observations.values():
        (observation,) = deserialize(plain)
        assert isinstance(observation, Match)
        assert bool(observation.quantities)
    found = judge.evaluate(case=CASE + mode, checks=CHECKS[mode], observations=[answer["observations"]["own"]],
                        policies={})  # fmt: skip
    assert {finding["status"] for finding in found.values()} == {"passed"}


@pytest.mark.parametrize(("mode", "expected"), [("inference", False), ("train", True)])
def test_the_call_is_made_in_the_gradient_mode_of_the_case(
    take: Callable[..., dict[str, Any]], mode: str, expected: bool
) -> None:
    """Which is entered once, not in every call."""
    own = Own()
    take({"own": own}, mode=mode)
    assert set(own.modes) == {expected}
    assert torch.is_grad_enabled()


def test_whoever_works_on_after_its_call_is_waited_for(take: Callable[..., dict[str, Any]]) -> None:
    """In every timed call."""
    own = Asynchronous()
    answer = take({"own": own})
    assert own.waits >= len(answer["samples"]["own"]["times_ns"]) > 0


def test_the_cost_of_building_is_told(take: Callable[..., dict[str, Any]]) -> None:
    """In nanoseconds, beside the first call."""
    sample = take({"own": Own()})["samples"]["own"]
    assert sample["build_ns"] > 0
    assert sample["first_call_ns"] > 0


@pytest.mark.parametrize("when", ["build", "call", "later"])
def test_who_raises_is_named(take: Callable[..., dict[str, Any]], when: str) -> None:
    """Whether it is built, called or looked at afterwards; for its twin the baseline is."""

    def fail() -> None:
        if when == "call" or len(own.queries) > 10:
            raise ArithmeticError("enough")

    own = Own(fail)
    if when == "build":
        own.build = lambda reference: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(CallFailed) as raised:
        take({"other": Own(), "own": own}, baseline="own")
    assert raised.value.name == "own"
    assert isinstance(raised.value.__cause__, ArithmeticError)


@contextlib.contextmanager
def threads(number: int) -> Iterator[None]:
    """As many threads as there were, afterwards."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)
    assert before != number


def test_a_process_whose_settings_were_changed_is_unfit(take: Callable[..., dict[str, Any]]) -> None:
    """What it measured from then on was another machine."""
    with threads(2), pytest.raises(ProcessDisturbed, match="a call changed the number of threads from 1 to 2"):
        take({"own": Own(lambda: torch.set_num_threads(2))})


def test_a_process_in_which_something_works_on_is_unfit(
    take: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that goes on after the call has returned takes the next one's core."""
    monkeypatch.setattr(interleaved_timing, "PATIENCE_S", 0.0)
    # On a busy machine it gets a core late.
    monkeypatch.setattr(interleaved_timing, "WATCHED_S", 0.5)
    monkeypatch.setattr(interleaved_timing, "BUSY", 0.1)
    stop = threading.Event()
    burning: list[threading.Thread] = []

    def burn() -> None:
        big = torch.ones(500, 500)
        while not stop.is_set():
            big @ big

    def start() -> None:
        if not burning:
            burning.append(threading.Thread(target=burn, daemon=True))
            burning[0].start()

    try:
        with pytest.raises(ProcessDisturbed, match="threads kept running after the call returned, on "):
            take({"own": Own(start)})
    finally:
        stop.set()
        burning[0].join()


class Keeping(Own):
    """Keeps what it returned, by the values that it was given."""

    def prepare(self, module: Any, case: Case, inputs: Inputs) -> Callable[..., Any]:
        """Its forward, and some work besides, where the values are new."""
        del case, inputs
        kept: list[tuple[torch.Tensor, Any]] = []

        def call(**arguments: Any) -> Any:
            for query, answer in kept:
                if torch.equal(query, arguments["query"]):
                    return answer
            for _ in range(200):
                answer = module(**arguments)
            kept.append((arguments["query"].clone(), answer))
            return answer

        return call


@pytest.fixture
def uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system without counters: every call is taken for clean, however busy the machine is."""

    def silent() -> Scheduler:
        scheduler = Scheduler(Path("nowhere"))
        scheduler.counts_switches = False
        return scheduler

    monkeypatch.setattr(sampling, "Scheduler", silent)


@pytest.mark.usefixtures("uncounted")
def test_who_keeps_what_it_returned_is_found(take: Callable[..., dict[str, Any]]) -> None:
    """Its answers are right, on new values too; only the time of a call on the same values is none."""
    with pytest.raises(CallFailed) as raised:
        take({"other": Own(), "keeps": Keeping()}, seed=interleaved_timing.FIRST)
    assert raised.value.name == "keeps"
    assert isinstance(raised.value.__cause__, ProcessDisturbed)
    assert "times as long as repeated ones: it caches its results" in str(raised.value.__cause__)


def test_who_computes_every_time_is_not_suspected(take: Callable[..., dict[str, Any]]) -> None:
    """On new values a call takes what it takes on those that it had."""
    assert set(take({"own": Own(), "other": Own()}, baseline="own", seed=interleaved_timing.FIRST)["samples"]) == {
        "own",
        "other",
    }


@pytest.mark.parametrize(
    ("policies", "mode", "expected"),
    [
        (Policies(capturable=True), "inference", True),
        (Policies(capturable=True), "train", False),
        (Policies(capturable=True, deterministic=False), "inference", False),
        (Policies(), "inference", False),
    ],
)
def test_a_graph_is_captured_only_of_what_allows_it_and_can_be_compared(
    policies: Policies, mode: str, expected: bool
) -> None:
    """Of a call without gradients that gives the same bits each time: its replay must give them, too."""
    own = Own()
    own.policies = policies
    case = Case.parse(CASE.replace("/cpu/", "/cuda/") + mode, load_problem_types())
    turn = InterleavedTiming(
        implementations={"own": own}, baseline=None, operator=load_operator("multihead"), case=case, inputs="", seed=1
    )
    assert turn._is_capturable("own") is expected


def test_on_a_cpu_there_is_nothing_of_a_device(take: Callable[..., dict[str, Any]]) -> None:
    """One time, from end to end, and no word of clocks."""
    (sample,) = take({"own": Own()})["samples"].values()
    assert (sample["method"], sample["clock"]) == ("wall", "")
    assert sample["device_ns"] == sample["graph_ns"] == sample["late"] == sample["clock_before_mhz"] == []
