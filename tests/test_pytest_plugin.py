"""Tests of the pytest plug-in, which adds one test per check and case to a user's pytest run."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from attnbench.cases import Case
from attnbench.checks.catalogue import read_checks
from attnbench.operators.multihead.problem import MultiheadProblem
from time_limits import repeat_with_longer_limits

pytest_plugins = ["pytester"]

PROBLEM = MultiheadProblem(batch=2, queries=5, keys=7, embed_dim=24, num_heads=3, bias=True, batch_first=True)
CASE = Case(operator="multihead", problem=PROBLEM, mode="inference").id
NEEDS_WEIGHTS = (
    Case(operator="multihead", problem=PROBLEM, dtype="float64", mode="inference").with_problem(need_weights=True).id
)
LINK = "https://example.org/1"

KERNELS = """
import os
import time

import torch


def right(q, k, v, *, mask, scale):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)


def wrong(q, k, v, *, mask, scale):
    return right(q, k, v, mask=mask, scale=scale) * 1.01


def exits(q, k, v):
    os._exit(3)


def hangs(q, k, v):
    time.sleep(3600)
"""


def make_id(check: str, case: str = CASE) -> str:
    """Return the end of the id of a conformance test; "=" is replaced, because -k does not accept it."""
    return f"{check}-{case.replace('=', ':')}"


def make_node_id(name: str, check: str) -> str:
    """Return the node id of a test that --attention adds for an implementation in kernels.py."""
    return f"attention::conformance[kernels.py:{name}-{make_id(check)}]"


# Values of the variables that ``pytester`` changes: with these, the runs of all tests share a fork server.
CHANGED = {name: os.environ.get(name) for name in ("HOME", "USERPROFILE", "PYTEST_DEBUG_TEMPROOT", "PY_COLORS")}


@pytest.fixture
def here(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A user's repository with the file kernels.py."""
    for name, value in CHANGED.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    pytester.makepyfile(kernels=KERNELS)
    return pytester


def attention(name: str, *checks: str, cases: tuple[str, ...] = (CASE,)) -> list[str]:
    """Return the pytest options that select an implementation, cases and checks of conformance tests."""
    options = [f"--attention={name}", "--attention-suite=quick"]
    return [*options, *(f"--attention-check={c}" for c in checks), *(f"--attention-case={c}" for c in cases)]


def join_output(result: pytest.RunResult) -> str:
    """Return the lines of standard output and standard error of a pytest run."""
    return "\n".join([*result.outlines, *result.errlines])


# The option --attention


def test_option_adds_one_test_for_each_check_and_case(here: pytest.Pytester) -> None:
    """With two checks and one case, two tests are added to the repository's own test, and all three pass."""
    here.makepyfile(test_own="def test_own(): pass")
    result = here.runpytest("-v", *attention("kernels.py:right", "forward_parity", "inputs_untouched"))
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        [
            "*collected 3 items",
            "test_own.py::test_own PASSED*",
        ]
    )
    added = [line.split()[0] for line in result.outlines if line.startswith("attention::") and " PASSED" in line]
    assert added == [make_node_id("right", "forward_parity"), make_node_id("right", "inputs_untouched")]


def test_all_checks_of_a_case_are_tests(here: pytest.Pytester) -> None:
    """Without --attention-check there is a test for each check that applies to the case, in the order of all checks."""
    result = here.runpytest("--collect-only", "-q", "-m", "attnbench", *attention("kernels.py:right"))
    found = [line.split("-")[1] for line in result.outlines if line.startswith("attention::")]
    assert {"forward_parity", "inputs_untouched"} < set(found)
    assert found == [name for name in read_checks() if name in found]


def test_wrong_implementation_is_explained(here: pytest.Pytester) -> None:
    """A failure has the reason, the requirement, and the command that reproduces it, and no traceback.

    The JUnit file has these lines too.
    """
    result = here.runpytest(*attention("kernels.py:wrong", "forward_parity"), "--junitxml=junit.xml", "-W", "error")
    result.assert_outcomes(failed=1)
    requirement = read_checks()["forward_parity"].requirement
    explained = [
        "*of output*",
        f"  requirement  {requirement}",
        f"  reproduce    attnbench reproduce '{CASE}' --check forward_parity kernels.py:wrong",
    ]
    assert f"_ {make_node_id('wrong', 'forward_parity').partition('::')[2]} _" in result.outlines
    result.stdout.fnmatch_lines(explained, consecutive=True)
    assert [line for line in result.outlines if line.startswith(f"FAILED {make_node_id('wrong', 'forward_parity')}")]
    assert "pytest_plugin.py" not in join_output(result)
    (test,) = ET.parse(here.path / "junit.xml").iter("testcase")
    assert test.get("classname") == "attention"
    assert test.get("name") == make_node_id("wrong", "forward_parity").partition("::")[2]
    (failure,) = test
    pytest.LineMatcher(failure.text.splitlines()).fnmatch_lines(explained, consecutive=True)


def test_tests_are_chosen_by_keyword(here: pytest.Pytester) -> None:
    """-k selects conformance tests by parts of the ids that pytest prints."""
    options = attention("kernels.py:right", "forward_parity", "inputs_untouched", cases=(CASE, NEEDS_WEIGHTS))
    chosen = f"(right-{make_id('forward_parity')}) or (untouched and mask:none and need_weights)"
    result = here.runpytest("--collect-only", "-q", "-k", chosen, *options)
    ids = [make_id("forward_parity"), make_id("inputs_untouched", NEEDS_WEIGHTS)]
    found = [line for line in result.outlines if "::" in line]
    assert found == [f"attention::conformance[kernels.py:right-{one}]" for one in ids]


@pytest.mark.extended
def test_several_processes_share_the_tests(here: pytest.Pytester) -> None:
    """Under xdist, every test runs in one of the two processes; each process starts its own workers."""
    pytest.importorskip("xdist")
    checks = ("forward_parity", "weights_only_on_request", "inputs_untouched", "repeats_itself")
    result = here.runpytest_subprocess("-n2", "-v", *attention("kernels.py:wrong", *checks))
    result.assert_outcomes(passed=3, failed=1)
    assert {line.split("]")[0] for line in result.outlines if line.startswith("[gw")} == {"[gw0", "[gw1"}


def test_a_crash_and_a_time_out_are_failures_of_their_tests(here: pytest.Pytester) -> None:
    """A crash and a time-out fail the test; the reason says how the process ended, or gives the time limit."""
    options = attention("kernels.py:exits", "forward_parity") + attention("kernels.py:hangs", "forward_parity")
    result, limit_s = repeat_with_longer_limits(
        lambda limit_s: here.runpytest(*options, f"--attention-timeout={limit_s}"),
        lambda result: "crashed: the process exited with code 3" in result.outlines,
        first_s=3,
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["crashed: the process exited with code 3", "  reproduce *"])
    result.stdout.fnmatch_lines([f"timeout: no answer within {limit_s} s (--timeout)", "  reproduce *"])


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--attention=sdpaa"], "unknown implementation 'sdpaa'; did you mean 'sdpa'*"),
        (["--attention=missing.py:right"], "no such file: missing.py"),
        (
            ["--attention=sdpa", "--attention-check=forward"],
            "checks: unknown check 'forward'; *available: forward_parity*",
        ),
    ],
)
def test_a_usage_error_is_one_line(here: pytest.Pytester, options: list[str], fault: str) -> None:
    """An unknown implementation, file or check ends pytest with exit code 4 and one line, without a traceback."""
    result = here.runpytest(*options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert result.outlines == []
    (line,) = [line for line in result.errlines if line]
    pytest.LineMatcher([line]).fnmatch_lines([f"ERROR: attnbench: {fault}"])


def test_option_values_are_checked(here: pytest.Pytester) -> None:
    """An invalid suite, time or number of threads is a usage error of pytest."""
    for option in (
        "--attention-suite=quikc",
        "--attention-timeout=0",
        "--attention-timeout=nan",
        "--attention-threads=0",
    ):
        result = here.runpytest(option)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"*error: argument {option.partition('=')[0]}: invalid *"])


def test_cases_that_match_nothing_end_the_collection(here: pytest.Pytester) -> None:
    """If --attention-case matches no case, the collection ends with one line that names the pattern."""
    result = here.runpytest(*attention("sdpa", cases=("*no such*",)))
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*ERROR collecting attention*", "attnbench: cases: '[*]no such[*]' matches none *"])


# The decorator parametrize_conformance


def test_decorator_makes_a_function_one_test_for_each_check_and_case(here: pytest.Pytester) -> None:
    """The decorator takes objects and names; a refused case is skipped, and an expected failure is xfailed.

    If an expected failure passes, its test fails.
    """
    here.makepyfile(
        test_mine=f"""
        from attnbench.pytest_plugin import parametrize_conformance
        from kernels import right, wrong

        CASES = [{CASE!r}, {NEEDS_WEIGHTS!r}]
        EXPECTED = {{("forward_parity", "*inference"): ("1 % off", {LINK!r})}}


        @parametrize_conformance([right, "kernels.py:wrong"], suite="quick", cases=CASES[:1], checks="forward_parity")
        def test_attention(conformance_case, tmp_path):
            conformance_case.check()


        @parametrize_conformance([right, wrong], cases=CASES, checks=["forward_parity"], expected_failures=EXPECTED)
        def test_expected(conformance_case):
            assert conformance_case.name == "forward_parity"
            conformance_case.check()


        class TestFindings:
            @parametrize_conformance("kernels.py:wrong", cases=CASES[0], checks="inputs_untouched")
            def test_finding(self, conformance_case):
                assert conformance_case.finding().status == "passed"


        def test_own():
            pass
        """
    )
    result = here.runpytest("-v", "-rsx")
    # test_attention: right passes and wrong fails. test_expected: right fails, because it passes unexpectedly; wrong is
    # xfailed; both are skipped on the case with need_weights. TestFindings and the ordinary test test_own pass.
    result.assert_outcomes(passed=3, failed=2, xfailed=1, skipped=2)
    ids = {name: f"[kernels.py:{name}-{make_id('forward_parity')}]" for name in ("right", "wrong")}
    finding = f"[kernels.py:wrong-{make_id('inputs_untouched')}]"
    status = {line.split()[0].partition("::")[2]: line.split()[1] for line in result.outlines if " PASSED" in line}
    assert status.keys() == {f"test_attention{ids['right']}", f"TestFindings::test_finding{finding}", "test_own"}
    text = join_output(result)
    assert f"_ test_attention{ids['wrong']} _" in text
    assert f"unexpected pass: expected to fail (1 % off, {LINK}), but passed: remove the entry, or exclude" in text
    assert f"XFAIL test_mine.py::test_expected{ids['wrong']} - 1 % off ({LINK}): " in text
    result.stdout.fnmatch_lines(["SKIPPED [[]2] test_mine.py:*: the kernel takes no need_weights"])
    assert "pytest_plugin.py" not in text
    expected = here.runpytest("--runxfail", "-k", f"test_expected and wrong-{make_id('forward_parity')}")
    expected.assert_outcomes(failed=1, deselected=7)
    expected.stdout.fnmatch_lines([f"expected failure: 1 % off ({LINK}): *of output*"])


@pytest.mark.parametrize(
    ("decorator", "fault"),
    [
        ("parametrize_conformance(['sdpaa'])", "*attnbench: unknown implementation 'sdpaa'; did you mean*"),
        ("parametrize_conformance(['sdpa'], suite='quikc')", "*attnbench: suite: needs one of quick, * got quikc"),
        (
            "parametrize_conformance(['sdpa'], suite='quick', expected_failures={'forward': ('typo', 'link')})",
            "*attnbench: expected failure of sdpa: no check 'forward'; *",
        ),
    ],
    ids=["name", "suite", "expected"],
)
def test_an_invalid_decorator_ends_the_collection(here: pytest.Pytester, decorator: str, fault: str) -> None:
    """A misspelt name or suite, or an expected failure that matches no check, ends the collection with one line."""
    here.makepyfile(
        f"from attnbench.pytest_plugin import parametrize_conformance\n\n\n@{decorator}\n"
        "def test_attention(conformance_case):\n    conformance_case.check()\n"
    )
    result = here.runpytest()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([fault])
    assert "Traceback" not in join_output(result)


def test_decorated_function_must_take_the_case(here: pytest.Pytester) -> None:
    """A function without the argument ``conformance_case`` is an error, because it would check nothing."""
    here.makepyfile(
        "from attnbench.pytest_plugin import parametrize_conformance\n\n\n@parametrize_conformance(['sdpa'])\n"
        "def test_attention():\n    pass\n"
    )
    result = here.runpytest()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(
        ["*test_attention is parametrized by parametrize_conformance: it must take the argument *_case"]
    )


# Pytest runs without conformance tests


def test_plug_in_imports_no_large_package() -> None:
    """Importing the plug-in imports three small parts of attnbench, and no large package such as torch."""
    program = (
        "import attnbench.pytest_plugin, sys; loaded = {m.split('.')[1] for m in sys.modules if 'attnbench.' in m}"
    )
    program += "; print(*sorted(loaded))"
    program += "; print({'torch', 'numpy', 'click', 'pandas', 'msgspec'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "cases devices interface pytest_plugin",
        "set()",
    ]


def test_other_tests_are_not_affected(here: pytest.Pytester) -> None:
    """A repository with strict markers, warnings as errors and its own marker ``attnbench`` passes with the plug-in."""
    here.makeini("[pytest]\naddopts = --strict-markers --strict-config -W error\n")
    here.makepyfile(
        "import pytest\n\n\n@pytest.mark.attnbench\n@pytest.mark.parametrize('x', [1, 2])\ndef test_own(x): pass\n"
    )
    here.runpytest_subprocess().assert_outcomes(passed=2)


def test_it_can_be_disabled(here: pytest.Pytester) -> None:
    """``-p no:attnbench`` disables the plug-in, so that a repository can have its own option --attention."""
    here.makeconftest("def pytest_addoption(parser): parser.addoption('--attention')\n")
    here.makepyfile("def test_own(request): assert request.config.getoption('--attention') == 'mine'\n")
    here.runpytest("-p", "no:attnbench", "--attention=mine").assert_outcomes(passed=1)
