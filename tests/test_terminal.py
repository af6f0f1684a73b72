"""Tests of what a profile prints, on results that are written out here."""

from dataclasses import replace

import pytest

from attnbench.cli.terminal import print_timings
from attnbench.records.types import Finding, Memory, Result, Timing

CASE = "multihead/B1.L{}.S8.E8.H2/bias/mask=none/regime=plain/seed=0/{}/cpu/{}"
PASSED = (Finding(check="forward_parity", status="passed"),)
QUIET, DISTURBED = 0, 500_000


def result(
    name: str,
    factors: list[float],
    *,
    length: int = 8,
    dtype: str = "float32",
    mode: str = "inference",
    waited: int = QUIET,
    twin: float | None = None,
    others: tuple[str, ...] = ("torch_mha",),
) -> Result:
    """Result with nine calls of so many milliseconds in each process."""  # fmt: skip

    def timing(factors: list[float], twin: Timing | None) -> Timing:
        return Timing(
            samples_ns=tuple((round(1e6 * factor),) * 9 for factor in factors),
            waited_ns=((waited,) * 9,) * len(factors),
            threads=1,
            interleaved_with=others,
            twin=twin,
        )

    own = timing(factors, None if twin is None else timing([twin] * len(factors), None))
    case = CASE.format(length, dtype, mode)
    return Result(run="r", implementation=name, case=case, findings=PASSED, timing=own)


def printed(capsys: pytest.CaptureFixture[str], *results: Result) -> list[str]:
    """Lines that are printed, without blanks at their end."""
    print_timings(results)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_every_ratio_has_the_sign_of_its_state(capsys: pytest.CaptureFixture[str]) -> None:
    """And where a contest is inconclusive there is no ratio at all."""
    lines = printed(
        capsys,
        result("torch_mha", [1] * 7, others=()),
        result("slow", [1.5] * 7),
        result("fast", [0.5] * 7),
        result("alike", [1.001] * 7),
        result("torn", [0.9, 1.1] * 3 + [1.0]),
        result("held_up", [3.0] * 7, waited=DISTURBED),
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
        "− faster, + slower, = same; ? unknown: not enough samples to tell; ! inconclusive: measurement disturbed",
        "inconclusive: held_up, 1 comparison: other work disturbed 7 of 7 processes",
    ]


def test_a_baseline_that_was_held_up_has_its_sign_too(capsys: pytest.CaptureFixture[str]) -> None:
    """Its time is what the machine's other work made of it."""
    lines = printed(capsys, result("torch_mha", [3] * 7, waited=DISTURBED, others=()))
    assert lines[2] == "torch_mha       3.000 (!)"


def test_a_baseline_that_differs_from_itself_leaves_no_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    """The reason is told."""
    lines = printed(capsys, result("torch_mha", [1] * 7, twin=1.2, others=()), result("slow", [1.5] * 7))
    assert lines[3] == "slow            1.500 (!)"
    assert (
        lines[-1]
        == "inconclusive: slow, 1 comparison: A/A control failed: the baseline differs from its copy by 20.0 %"
    )


def test_memory_stands_below_the_times(capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes at the highest point of a call; a dash where they were not measured."""
    lines = printed(
        capsys,
        replace(
            result("torch_mha", [1] * 7, others=()), memory=Memory(peak_bytes=3 << 20, threads=1, method="allocator")
        ),
        result("x", [1] * 7),
    )
    assert lines[4:7] == [
        "forward, float32: peak memory above the inputs",
        "implementation  8",
        "torch_mha       3 MiB",
    ]
    assert lines[7].split() == ["x", "–"]


def test_passes_dtypes_and_lengths_stand_apart(capsys: pytest.CaptureFixture[str]) -> None:
    """A table for each pass and dtype, a column for each length, and a dash where nothing was timed."""
    lines = printed(
        capsys,
        result("torch_mha", [1] * 7, others=()),
        result("torch_mha", [4] * 7, length=16, others=()),
        result("own", [8] * 7, length=16),
        result("torch_mha", [2] * 7, dtype="bfloat16", mode="train", others=()),
    )
    assert lines[:6] == [
        "forward, float32: ms (ratio to the reference)",
        "implementation  8      16",
        "torch_mha       1.000  4.000",
        "own             –      8.000 (2.00+)",
        "forward+backward, bfloat16: ms (ratio to the reference)",
        "implementation  8",
    ]


def test_who_took_no_turns_with_the_baseline_has_no_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    """The time alone."""
    assert (
        printed(capsys, result("torch_mha", [1] * 7), result("own", [2] * 7, others=()))[3] == "own             2.000"
    )


def on_cuda(name: str, factor: float, *, device: bool = True) -> Result:
    """Result on CUDA: 3 ms from end to end, and on the device as many as the factor says."""
    one = result(name, [3] * 7, others=() if name == "torch_mha" else ("torch_mha",))
    assert one.timing is not None
    times_ns = ((round(1e6 * factor),) * 9,) * 7 if device else ()
    timing = replace(one.timing, device_ns=times_ns)
    return replace(one, case=one.case.replace("/cpu/", "/cuda/"), timing=timing)


def test_on_a_device_it_is_told_which_time_stands_there(capsys: pytest.CaptureFixture[str]) -> None:
    """That on the device where there is one, in a table of its own; its ratio is of the same kind."""
    lines = printed(
        capsys,
        on_cuda("torch_mha", 1),
        on_cuda("quick", 0.5),
        on_cuda("elsewhere", 0, device=False),
        result("torch_mha", [2] * 7, others=()),
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
    """Each says what its cases have in common; a decoding step stands at the number of its keys."""
    step = "attention_core/B1.H8.K2.L1.S4096.D64/-/mask=causal_br/regime=plain/seed=0/float32/cpu/inference"
    alone = replace(result("core_sdpa", [1] * 7, others=()), case=step)
    lines = printed(capsys, result("torch_mha", [2] * 7, others=()), alone)
    of = "regime=plain/seed=0: ms (ratio to the reference)"
    assert lines[:-1] == [
        f"forward, float32, multihead/B1.E8.H2/bias/mask=none/{of}",
        "implementation  8",
        "torch_mha       2.000",
        f"forward, float32, attention_core/B1.H8.K2.D64/-/mask=causal_br/{of}",
        "implementation  4096",
        "core_sdpa       1.000",
    ]
