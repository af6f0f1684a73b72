"""Tests of ``InterleavedTiming``, which times implementations on one case in one process."""

import contextlib
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from attnbench.cases import Case
from attnbench.checks.observations import Match, deserialize
from attnbench.interface import Implementation, Inputs, Policies
from attnbench.measurement.account import Account
from attnbench.measurement.instrument import Instrument
from attnbench.measurement.sampling import FEWEST, CallFailed
from attnbench.oracle import tensor_file
from attnbench.plugins.registry import load_operator, load_problem_types
from attnbench.processes.candidate_requests import TimedSamples
from attnbench.processes.oracle_requests import DrawInputs, Evaluate
from attnbench.records.types import Finding
from attnbench.records.value_facts import Phrase, phrase
from attnbench.workers.interleaved_timing import InterleavedTiming
from attnbench.workers.oracle_worker import OracleWorker
from attnbench.workers.timed_calls import ProcessDisturbed, _find_unreal, _read_parts

CASE = "multihead/B1.L4.S4.E8.H2/bias+batch_first+self_attention/mask=none/regime=plain/seed=0/float32/cpu/"
CHECKS = {"inference": ["forward_parity"], "train": ["forward_parity", "input_gradients", "parameter_gradients"]}


class Recording(Implementation):
    """The reference; each call records its query and gradient mode, and runs the function ``act``."""

    def __init__(self, act: Callable[[], object] = lambda: None) -> None:
        self.act = act
        self.built = 0
        self.waits = 0
        self.prepared: list[torch.Tensor] = []
        self.queries: list[torch.Tensor] = []
        self.modes: list[bool] = []

    def build(self, reference: Any) -> Any:
        """Return the reference."""
        self.built += 1
        return reference

    def prepare(self, module: Any, case: Case, inputs: Inputs) -> Callable[..., Any]:
        """Return a call of the module that records the query and the gradient mode."""
        del case
        self.prepared.append(inputs.tensors["query"].detach().clone())

        def call(**arguments: Any) -> Any:
            self.queries.append(arguments["query"].detach().clone())
            self.modes.append(torch.is_grad_enabled())
            self.act()
            return module(**arguments)

        return call


class Asynchronous(Recording):
    """Implementation that defines ``synchronize`` and counts its calls."""

    def synchronize(self) -> None:
        """Count this call."""
        self.waits += 1


@pytest.fixture(scope="module")
def oracle_worker(tmp_path_factory: pytest.TempPathFactory) -> OracleWorker:
    """Oracle worker that runs in this process."""
    return OracleWorker(tmp_path_factory.mktemp("oracle"))


@pytest.fixture
def take_samples(oracle_worker: OracleWorker, tmp_path: Path) -> Callable[..., TimedSamples]:
    """Function that times implementations on CASE in a call mode, and returns the reply of the worker."""

    def take(
        implementations: dict[str, Implementation],
        *,
        baseline: str | None = None,
        mode: str = "inference",
        seed: int = 1,
    ) -> TimedSamples:
        case = Case.parse(CASE + mode, load_problem_types())
        return InterleavedTiming(
            implementations=implementations, baseline=baseline, operator=load_operator("multihead"), case=case,
            inputs=oracle_worker.draw_inputs(DrawInputs(case=case.id)), seed=seed, instrument=Instrument(),
        ).take_samples(budget_s=0.01, limit_s=60, checks=CHECKS[mode], observation=str(tmp_path / "seen"))  # fmt: skip

    return take


def test_the_baseline_is_built_twice_and_the_others_once(take_samples: Callable[..., TimedSamples]) -> None:
    """The baseline is built a second time as its copy, which has its own inputs and its own samples in the reply.

    Each cycle calls either the baseline or the copy.
    """
    base, other = Recording(), Recording()
    reply = take_samples({"base": base, "other": other}, baseline="base")
    assert (base.built, other.built) == (2, 1)
    assert set(reply.samples) == {"base", "other"}
    shared = reply.twin.cycles[0], reply.samples["base"].cycles[0]
    (own,) = reply.samples["other"].cycles
    assert set(own) <= set(shared[0]) ^ set(shared[1]) == set(shared[0]) | set(shared[1])
    assert len({tensor.data_ptr() for tensor in base.prepared}) == 2


def test_without_a_baseline_there_is_no_copy(take_samples: Callable[..., TimedSamples]) -> None:
    """Without a baseline, or if the baseline is not among the timed implementations, there are no samples of a copy."""
    other = Recording()
    assert take_samples({"other": other}).twin is None
    assert take_samples({"other": other}, baseline="base").twin is None


@pytest.mark.parametrize("mode", ["inference", "train"])
def test_every_call_has_values_of_its_own(take_samples: Callable[..., TimedSamples], mode: str) -> None:
    """Calls of a process get different values, which are the same numbers with other signs.

    With 8 features and 4 tokens there are 2048 values, so a few of the calls may get equal values by chance. The number
    of calls depends on the machine; calls after the samples are those of the checks.
    """
    own = Recording()
    count = len(take_samples({"own": own}, mode=mode).samples["own"].samples_ns[0])
    assert count >= FEWEST
    assert len({tuple(query.flatten().tolist()) for query in own.queries[:count]}) > 0.75 * count
    assert all(torch.equal(query.abs(), own.queries[0].abs()) for query in own.queries)


def test_a_call_that_writes_into_its_inputs_fails(take_samples: Callable[..., TimedSamples]) -> None:
    """A call may not change its inputs; CallFailed names the implementation and the input."""

    class Writing(Recording):
        def prepare(self, module: Any, case: Case, inputs: Inputs) -> Callable[..., Any]:
            call = super().prepare(module, case, inputs)

            def write(query: torch.Tensor, **others: Any) -> Any:
                returned = call(query=query, **others)
                query.mul_(2)
                return returned

            return write

    with pytest.raises(CallFailed) as raised:
        take_samples({"other": Recording(), "own": Writing()})
    assert raised.value.name == "own"
    assert raised.value.__cause__.args == (phrase("wrote_input", name="query"),)


def test_modules_are_freed_within_the_account(
    take_samples: Callable[..., TimedSamples], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules are freed before the account of elapsed time is closed, because an object may wait when it is freed."""
    events: list[str] = []

    class Waiting(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, **arguments: Any) -> Any:
            return self.inner(**arguments)

        def __del__(self) -> None:
            events.append("freed")

    class Built(Recording):
        def build(self, reference: Any) -> Any:
            return Waiting(reference)

    def close(account: Account) -> int:
        events.append("closed")
        return close_account(account)

    close_account = Account.close
    monkeypatch.setattr(Account, "close", close)
    take_samples({"own": Built()}, mode="inference")
    assert events == ["freed", "closed"]


def test_declared_values_stay(take_samples: Callable[..., TimedSamples], oracle_worker: OracleWorker) -> None:
    """With the policy fixed_values, every call has the values of the case; others have values of their own."""
    own, other = Recording(), Recording()
    own.policies = Policies(fixed_values=True)
    reply = take_samples({"own": own, "other": other}, baseline="own")
    assert all(torch.equal(query, own.queries[0]) for query in own.queries)
    assert not torch.equal(other.queries[0], other.queries[1])
    assert {name: taken.values for name, taken in reply.samples.items()} == {"own": "fixed", "other": "fresh"}
    for file in reply.observations.values():
        assert evaluate(oracle_worker, file, "inference")["forward_parity"].status == "passed"


@pytest.mark.parametrize("mode", ["inference", "train"])
def test_a_timed_call_passes_its_checks(
    take_samples: Callable[..., TimedSamples], oracle_worker: OracleWorker, mode: str
) -> None:
    """Outputs and gradients of the judged call, and of one call after all, equal the oracle's for their values."""
    reply = take_samples({"own": Recording(), "other": Recording()}, baseline="own", mode=mode)
    for file in reply.observations.values():
        observations = tensor_file.read(Path(file))
        assert set(observations) == set(CHECKS[mode])
        for plain in observations.values():
            found = [one for one in deserialize(plain) if isinstance(one, Match)]
            after, judged = found
            assert after.quantities.keys() == judged.quantities.keys() != set()
            assert (after.changed == {}, judged.changed == {}) == (True, False)
        findings = evaluate(oracle_worker, file, mode)
        assert {finding.status for finding in findings.values()} == {"passed"}


def evaluate(oracle_worker: OracleWorker, file: str, mode: str) -> dict[str, Finding]:
    """Evaluate the observations of a timed call."""
    return oracle_worker.evaluate(
        Evaluate(implementation="sdpa", case=CASE + mode, checks=CHECKS[mode], observations=[file], policies=Policies())
    )


class Scaling(Recording):
    """The reference with an output that is multiplied by ``factor`` of the number of the call, counted from 1."""

    def __init__(self, factor: Callable[[int], float]) -> None:
        super().__init__()
        self._factor = factor

    def prepare(self, module: Any, case: Case, inputs: Inputs) -> Callable[..., Any]:
        """Return a call that multiplies the output."""
        call = super().prepare(module, case, inputs)

        def scale(**arguments: Any) -> Any:
            output, weights = call(**arguments)
            return output * self._factor(len(self.queries)), weights

        return scale


@pytest.mark.parametrize("mode", ["inference", "train"])
def test_a_call_that_becomes_wrong_fails(
    take_samples: Callable[..., TimedSamples], oracle_worker: OracleWorker, mode: str
) -> None:
    """An implementation that is wrong from its tenth call on fails, because a call after the last sample is checked."""
    file = take_samples({"own": Scaling(lambda number: float(number < 10))}, mode=mode).observations["own"]
    assert evaluate(oracle_worker, file, mode)["forward_parity"].status == "failed"


def test_a_call_that_is_wrong_only_while_it_is_timed_fails(
    take_samples: Callable[..., TimedSamples], oracle_worker: OracleWorker
) -> None:
    """An implementation that is right on the values of the case, and wrong on all other values, fails."""
    given = tensor_file.read(Path(oracle_worker.draw_inputs(DrawInputs(case=CASE + "inference"))))["tensors"]["query"]
    own = Scaling(lambda number: float(torch.equal(own.queries[-1], given)))
    file = take_samples({"own": own}).observations["own"]
    assert evaluate(oracle_worker, file, "inference")["forward_parity"].status == "failed"
    assert torch.equal(own.queries[-1], given)


@pytest.mark.parametrize(("mode", "expected"), [("inference", False), ("train", True)])
def test_the_call_is_made_in_the_gradient_mode_of_the_case(
    take_samples: Callable[..., TimedSamples], mode: str, expected: bool
) -> None:
    """Gradients are enabled in all calls of a case in mode train, and in no call of a case in mode inference."""
    own = Recording()
    take_samples({"own": own}, mode=mode)
    assert set(own.modes) == {expected}
    assert torch.is_grad_enabled()


def test_an_asynchronous_implementation_is_synchronized(take_samples: Callable[..., TimedSamples]) -> None:
    """The implementation's ``synchronize`` is called in every timed call."""
    own = Asynchronous()
    reply = take_samples({"own": own})
    assert own.waits >= len(reply.samples["own"].samples_ns[0]) > 0


def test_the_build_time_is_recorded(take_samples: Callable[..., TimedSamples]) -> None:
    """The samples have the build time ``build_ns`` and the time of the first call ``first_call_ns``."""
    sample = take_samples({"own": Recording()}).samples["own"]
    assert min(*sample.build_ns, *sample.first_call_ns) > 0


@pytest.mark.parametrize("when", ["build", "call", "later"])
def test_an_implementation_that_raises_is_named(take_samples: Callable[..., TimedSamples], when: str) -> None:
    """CallFailed names an implementation that raises when it is built, in its first call, or in a later call.

    If the copy of the baseline raises, CallFailed names the baseline.
    """

    def fail() -> None:
        if when == "call" or len(own.queries) > 10:
            raise ArithmeticError("enough")

    own = Recording(fail)
    if when == "build":
        own.build = lambda reference: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(CallFailed) as raised:
        take_samples({"other": Recording(), "own": own}, baseline="own")
    assert raised.value.name == "own"
    assert isinstance(raised.value.__cause__, ArithmeticError)


@contextlib.contextmanager
def restore_threads(number: int) -> Iterator[None]:
    """Restore torch's number of threads at the end; it must not have been ``number`` at the start."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)
    assert before != number


def test_a_call_that_changes_settings_disturbs_the_process(take_samples: Callable[..., TimedSamples]) -> None:
    """A call that changes torch's number of threads raises ProcessDisturbed, because later calls would use it."""
    with restore_threads(2), pytest.raises(ProcessDisturbed) as raised:
        take_samples({"own": Recording(lambda: torch.set_num_threads(2))})
    assert raised.value.args == (phrase("setting_changed", name="the number of threads", before="1", now="2"),)


class Finalizing(Recording):
    """The reference; ``act`` runs when a result is freed."""

    def prepare(self, module: Any, case: Case, inputs: Inputs) -> Callable[..., Any]:
        """Return a call whose result has a finalizer."""
        del case, inputs

        def call(**arguments: Any) -> Any:
            output, weights = module(**arguments)
            weakref.finalize(output, self.act)
            return output, weights

        return call


def test_a_function_that_the_freeing_of_a_result_sets_is_named(take_samples: Callable[..., TimedSamples]) -> None:
    """If the freeing of a result leaves a profiling function for the calls of others, its implementation is named."""
    own = Finalizing(lambda: sys.setprofile(lambda *_: None))
    try:
        with pytest.raises((CallFailed, ProcessDisturbed)) as raised:
            take_samples({"other": Recording(), "own": own}, baseline="other")
    finally:
        sys.setprofile(None)
    change = (raised.value.__cause__ or raised.value).args[0]
    assert (change.key, change.values["name"]) == ("changed", "Python's profiling function")
    # After a warm-up call, nothing tells whose result was freed.
    assert isinstance(raised.value, ProcessDisturbed) or raised.value.name == "own"


def test_work_when_a_result_is_freed_disturbs_the_process(take_samples: Callable[..., TimedSamples]) -> None:
    """Work in the finalizer of a result is outside of the sample, and slows the next call, of another."""

    def work() -> None:
        end_ns = time.thread_time_ns() + 3_000_000
        while time.thread_time_ns() < end_ns:
            pass

    with pytest.raises(ProcessDisturbed) as raised:
        take_samples({"other": Recording(), "own": Finalizing(work)}, baseline="other")
    change = raised.value.args[0]
    assert (change.key, change.values["name"]) == ("work_while_freed", "own")


@contextlib.contextmanager
def busy_core(core: int, processes: int) -> Iterator[None]:
    """Keep a core busy with so many processes."""
    busy = f"import os; os.sched_setaffinity(0, [{core}])\nwhile True: pass"
    started = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(processes)]
    try:
        yield
    finally:
        for one in started:
            one.kill()
            one.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="threads are bound to a core by Linux")
def test_a_call_that_leaves_threads_running_disturbs_the_process(take_samples: Callable[..., TimedSamples]) -> None:
    """If a thread keeps computing after the call has returned, ProcessDisturbed is raised.

    The thread uses a core that the next call needs. Here it gets the least of it: eight processes want the same core.
    """
    core = min(os.sched_getaffinity(0))
    stop = threading.Event()
    burning: list[threading.Thread] = []

    def burn() -> None:
        os.sched_setaffinity(threading.get_native_id(), [core])
        big = torch.ones(500, 500)
        while not stop.is_set():
            big @ big

    def start() -> None:
        if not burning:
            burning.append(threading.Thread(target=burn, daemon=True))
            burning[0].start()

    try:
        with busy_core(core, processes=8), pytest.raises(ProcessDisturbed) as raised:
            take_samples({"own": Recording(start)})
    finally:
        stop.set()
        burning[0].join()
    assert raised.value.args[0].key == "threads_busy"


@pytest.mark.parametrize(
    ("policies", "mode", "expected"),
    [
        (Policies(capturable=True), "inference", True),
        (Policies(capturable=True), "train", False),
        (Policies(capturable=True, deterministic=False), "inference", False),
        (Policies(), "inference", False),
    ],
)
def test_a_graph_is_captured_only_of_capturable_deterministic_calls_without_gradients(
    policies: Policies, mode: str, expected: bool
) -> None:
    """Calls are captured as CUDA graphs only if they are capturable, deterministic and without gradients."""
    own = Recording()
    own.policies = policies
    case = Case.parse(CASE.replace("/cpu/", "/cuda/") + mode, load_problem_types())
    timing = InterleavedTiming(
        implementations={"own": own}, baseline=None, operator=load_operator("multihead"), case=case, inputs="", seed=1,
        instrument=Instrument(),
    )  # fmt: skip
    assert timing._is_capturable("own") is expected


def test_on_a_cpu_there_are_no_device_columns(take_samples: Callable[..., TimedSamples]) -> None:
    """On a CPU, samples have wall times; the lists of device times and clock readings are empty."""
    (sample,) = take_samples({"own": Recording()}).samples.values()
    assert (sample.method, sample.clock) == ("wall", "")
    assert sample.device_ns == sample.graph_ns == sample.late == sample.clock_before_mhz == ()


class Deferred(tuple[Any, ...]):
    """A tuple that computes its elements when they are read."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        """Compute the elements."""
        return iter((torch.ones(1), None))


def give_own_method() -> torch.Tensor:
    """Return a plain tensor with a method ``clone`` of its own."""
    tensor = torch.zeros(1)
    tensor.clone = lambda: torch.ones(1)  # type: ignore[method-assign]
    return tensor


class Key(str):
    """A name that could compute when somebody looks it up."""

    __slots__ = ()


def give_note(name: str = "note") -> torch.Tensor:
    """Return a plain tensor with an attribute that is no method of tensors."""
    tensor = torch.zeros(1)
    vars(tensor)[name] = "made by hand"
    return tensor


@pytest.mark.parametrize(
    ("result", "fault"),
    [
        ((give_note(), None), None),
        (torch.zeros(1), None),
        (torch.nn.Parameter(torch.zeros(1)), phrase("other_class", kind="Parameter")),
        ((torch.zeros(1, device="meta"), None), phrase("no_memory")),
        ((torch.zeros(1).to_sparse(), None), phrase("no_memory")),
        ((give_own_method(), None), phrase("own_method")),
        ([torch.zeros(1), None], phrase("other_class", kind="list")),
        ((torch.zeros(1), Deferred()), phrase("other_class", kind="Deferred")),
        ((give_note(Key("note")), None), phrase("own_method")),
        (Deferred((None, None)), phrase("lazy_tuple")),
    ],
)
def test_a_result_that_is_computed_when_it_is_read_is_found(result: object, fault: Phrase | None) -> None:
    """Results are plain tensors with memory, in tuples that store them; any other attribute of a tensor is allowed."""
    assert _find_unreal(_read_parts(result)) == fault
