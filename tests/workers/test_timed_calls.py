"""Tests of the defences against work outside of the samples, on clocks that the test controls."""

import pytest

from attnbench.processes.candidate_requests import Defence
from attnbench.workers.timed_calls import ProcessDisturbed
from simulated_time import Call, run_calls

MS = 1_000_000
HONEST = Call(work_ns=MS)
# A call of which half of the work is elsewhere, and the phrase that says where; and the defence that finds it.
HIDDEN: list[tuple[str, Call, str, Defence]] = [
    ("another thread works within the sample", Call(work_ns=MS, threads_ns=MS), "calls_busy", "processor"),
    ("a helper process works within the sample", Call(work_ns=MS, descendants_ns=MS), "calls_busy", "processor"),
    ("each call starts a process", Call(work_ns=MS, brief_descendants_ns=9 * MS), "family_busy", "processor"),
    ("work when the inputs are written", Call(work_ns=MS, before_ns=MS), "work_before", "threads"),
    ("work when the result is read", Call(work_ns=MS, after_ns=MS), "work_after", "threads"),
    ("another thread works behind the sample", Call(work_ns=MS, after_by_thread_ns=MS), "work_after", "threads"),
    ("work when the result is freed", Call(work_ns=MS, freeing_ns=MS), "work_while_freed", "threads"),
]
# Calls that do nothing elsewhere, on a machine that may be busy.
UNSUSPICIOUS = {
    "slower": Call(work_ns=20 * MS),
    "faster": Call(work_ns=MS // 20),
    "other processes have the core behind the sample": Call(work_ns=MS, after_by_others_ns=50 * MS),
    "a result that is copied a little longer": Call(work_ns=MS, after_ns=60_000),
    "long calls with some work behind them": Call(work_ns=20 * MS, after_ns=5 * MS),
    "counters that end a little late": Call(work_ns=MS, threads_ns=30_000),
}


@pytest.mark.parametrize(("call", "phrase", "defence"), [pytest.param(*rest, id=name) for name, *rest in HIDDEN])
def test_work_outside_of_the_samples_is_found(call: Call, phrase: str, defence: Defence) -> None:
    """Hidden work disturbs the process, and the phrase names the implementation; without the defence it is not seen."""
    with pytest.raises(ProcessDisturbed) as raised:
        run_calls({"torch_mha": HONEST, "own": call})
    assert raised.value.what.key == phrase
    assert raised.value.what.values.get("name", "own") == "own"
    run_calls({"torch_mha": HONEST, "own": call}, without={defence})


@pytest.mark.parametrize("call", [pytest.param(call, id=name) for name, call in UNSUSPICIOUS.items()])
def test_an_honest_call_is_not_accused(call: Call) -> None:
    """Neither a fast nor a slow call disturbs the process, even if other processes delay it."""
    run_calls({"torch_mha": HONEST, "own": call})
    run_calls({"torch_mha": call, "own": HONEST})
