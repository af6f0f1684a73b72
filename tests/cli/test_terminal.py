"""Tests of the tables that ``profile`` prints, with made-up results."""

import json
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest

from attnbench.cli.recording import write_json
from attnbench.cli.terminal import print_timings
from attnbench.records.types import Finding, Memory, Result, Timing

CASE = "multihead/B1.L{}.S8.E8.H2/bias/mask=none/regime=plain/seed=0/{}/cpu/{}"
PASSED = (Finding(check="forward_parity", status="passed"),)
QUIET, DISTURBED = 0, 500_000


def make_result(
    name: str,
    factors: list[float],
    *,
    length: int = 8,
    dtype: str = "float32",
    mode: str = "inference",
    waited: int = QUIET,
    control: float | None = None,
    others: tuple[str, ...] = ("torch_mha",),
) -> Result:
    """Make a result with one process per factor; each of the nine calls of a process takes that many milliseconds.

    ``control`` is the time of a call of the baseline's copy, in milliseconds, for the A/A control.
    """

    def make_timing(factors: list[float], control: Timing | None) -> Timing:
        return Timing(
            samples_ns=tuple((round(1e6 * factor),) * 9 for factor in factors),
            waited_ns=((waited,) * 9,) * len(factors),
            threads=1,
            interleaved_with=others,
            twin=control,
        )

    own = make_timing(factors, None if control is None else make_timing([control] * len(factors), None))
    case = CASE.format(length, dtype, mode)
    return Result(run="r", implementation=name, case=case, findings=PASSED, timing=own)


def print_lines(capsys: pytest.CaptureFixture[str], *results: Result) -> list[str]:
    """Print the timings of results, and return the lines without trailing spaces."""
    print_timings(results)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_every_ratio_has_the_sign_of_its_state(capsys: pytest.CaptureFixture[str]) -> None:
    """A ratio is followed by the sign of its speed verdict; an inconclusive verdict has a sign and no ratio."""
    lines = print_lines(
        capsys,
        make_result("torch_mha", [1] * 7, others=()),
        make_result("slow", [1.5] * 7),
        make_result("fast", [0.5] * 7),
        make_result("alike", [1.001] * 7),
        make_result("torn", [0.9, 1.1] * 3 + [1.0]),
        make_result("held_up", [3.0] * 7, waited=DISTURBED),
    )
    assert lines == [
        "forward, float32: ms (ratio to the reference)",
        "implementation  8",
        "torch_mha       1.000",
        "slow            1.500 (1.50+)",
        "fast            0.500 (0.50−)",
        "alike           1.001 (1.00=)",
        "torn            1.000 (1.00?)",
        "held_up         3.000 (!)",
        "− faster, + slower, = same; ? unknown: not enough samples to tell, try more processes (--processes 30); "
        "! inconclusive: measurement disturbed, try again while nothing else runs",
        "inconclusive: held_up, 1 comparison: other work disturbed 7 of 7 processes",
    ]


def give_fixed_values(result: Result) -> Result:
    """Return the result of an implementation with the policy ``fixed_values``."""
    assert result.timing
    return replace(result, timing=replace(result.timing, values="fixed"))


def test_times_with_equal_input_values_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    """A time whose calls had the same input values has a mark, which is explained; other tables have neither."""
    reference, quick = make_result("torch_mha", [1] * 7, others=()), make_result("quick", [0.5] * 7)
    lines = print_lines(capsys, reference, give_fixed_values(quick))
    assert lines[3] == "quick           0.500* (0.50−)"
    assert lines[-1].startswith("* every timed call had the same input values (policy fixed_values)")
    assert "*" not in "".join(print_lines(capsys, reference, quick))


def test_the_json_file_names_implementations_with_equal_input_values() -> None:
    """``--json`` lists the implementations whose timed calls all had the same input values."""
    results = [make_result("torch_mha", [1], others=()), give_fixed_values(make_result("quick", [0.5]))]
    recorded: Any = SimpleNamespace(list_results=lambda: results, run=None)
    file = StringIO()
    write_json(recorded, file)
    assert json.loads(file.getvalue())["fixed_values"] == ["quick"]


def test_a_disturbed_baseline_has_the_sign_of_inconclusive(capsys: pytest.CaptureFixture[str]) -> None:
    """If the measurement of the baseline was disturbed, its time has the sign "!" of inconclusive."""
    lines = print_lines(capsys, make_result("torch_mha", [3] * 7, waited=DISTURBED, others=()))
    assert lines[2] == "torch_mha       3.000 (!)"


def test_a_baseline_that_differs_from_itself_leaves_no_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    """If the baseline and its copy differ by 20 %, no ratio is printed, and the last line gives the reason."""
    lines = print_lines(
        capsys, make_result("torch_mha", [1] * 7, control=1.2, others=()), make_result("slow", [1.5] * 7)
    )
    assert lines[3] == "slow            1.500 (!)"
    assert (
        lines[-1]
        == "inconclusive: slow, 1 comparison: A/A control failed: the baseline differs from its copy by 20.0 %"
    )


def test_memory_is_printed_below_the_times(capsys: pytest.CaptureFixture[str]) -> None:
    """Below the times is a table of the peak memory of a call; a dash means that it was not measured."""
    lines = print_lines(
        capsys,
        replace(
            make_result("torch_mha", [1] * 7, others=()),
            memory=Memory(peak_bytes=3 << 20, threads=1, method="allocator"),
        ),
        make_result("x", [1] * 7),
    )
    assert lines[4:7] == [
        "forward, float32: peak memory above the inputs",
        "implementation  8",
        "torch_mha       3 MiB",
    ]
    assert lines[7].split() == ["x", "–"]


def test_passes_and_dtypes_have_tables_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    """There is a table for each pass and dtype, with a column per length; a dash means that nothing was timed."""
    lines = print_lines(
        capsys,
        make_result("torch_mha", [1] * 7, others=()),
        make_result("torch_mha", [4] * 7, length=16, others=()),
        make_result("own", [8] * 7, length=16),
        make_result("torch_mha", [2] * 7, dtype="bfloat16", mode="train", others=()),
    )
    assert lines[:6] == [
        "forward, float32: ms (ratio to the reference)",
        "implementation  8      16:8",
        "torch_mha       1.000  4.000",
        "own             –      8.000 (2.00+)",
        "forward+backward, bfloat16: ms (ratio to the reference)",
        "implementation  8",
    ]


def test_a_time_not_interleaved_with_the_baseline_has_no_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    """An implementation whose calls were not interleaved with those of the baseline has a time and no ratio."""
    lines = print_lines(capsys, make_result("torch_mha", [1] * 7), make_result("own", [2] * 7, others=()))
    assert lines[3] == "own             2.000"


def make_cuda_result(name: str, factor: float, *, device: bool = True) -> Result:
    """Make a result on CUDA with 3 ms from end to end and, if ``device``, ``factor`` ms of device time."""
    one = make_result(name, [3] * 7, others=() if name == "torch_mha" else ("torch_mha",))
    assert one.timing is not None
    times_ns = ((round(1e6 * factor),) * 9,) * 7 if device else ()
    timing = replace(one.timing, device_ns=times_ns)
    return replace(one, case=one.case.replace("/cpu/", "/cuda/"), timing=timing)


def test_a_table_of_a_device_names_its_clock(capsys: pytest.CaptureFixture[str]) -> None:
    """Device times and end-to-end times are in separate tables; the title names the kind of time.

    A result on CUDA without device times is in the table of end-to-end times.
    """
    lines = print_lines(
        capsys,
        make_cuda_result("torch_mha", 1),
        make_cuda_result("quick", 0.5),
        make_cuda_result("elsewhere", 0, device=False),
        make_result("torch_mha", [2] * 7, others=()),
    )
    assert lines[:-1] == [
        "forward, float32, cuda, device time: ms (ratio to the reference)",
        "implementation  8",
        "torch_mha       1.000",
        "quick           0.500 (0.50−)",
        "forward, float32, cuda, end-to-end time: ms (ratio to the reference)",
        "implementation  8",
        "elsewhere       3.000 (1.00=)",
        "forward, float32: ms (ratio to the reference)",
        "implementation  8",
        "torch_mha       2.000",
    ]


def test_cases_of_several_forms_have_tables_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Cases of different operators or sizes have separate tables; the title gives what their case ids have in common.

    A decoding step (one query) is listed at its number of keys.
    """
    step = "attention_core/B1.H8.K2.L1.S4096.D64/-/mask=causal_br/regime=plain/seed=0/float32/cpu/inference"
    alone = replace(make_result("core_sdpa", [1] * 7, others=()), case=step)
    lines = print_lines(capsys, make_result("torch_mha", [2] * 7, others=()), alone)
    of = "regime=plain/seed=0: ms (ratio to the reference)"
    assert lines[:-1] == [
        f"forward, float32, multihead/B1.E8.H2/bias/mask=none/{of}",
        "implementation  8",
        "torch_mha       2.000",
        f"forward, float32, attention_core/B1.H8.K2.D64/-/mask=causal_br/{of}",
        "implementation  1:4096",
        "core_sdpa       1.000",
    ]
