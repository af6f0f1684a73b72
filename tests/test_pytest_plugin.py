"""The plug-in adds one test for each check and case to a user's pytest run, by an option or a decorator."""

import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from attnbench.cases import Case
from attnbench.checks.catalogue import read_checks
from attnbench.operators.multihead.problem import MultiheadProblem

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
    time.sleep(60)
"""


def make_id(check: str, case: str = CASE) -> str:
    """End of the id of a test, with the characters that -k accepts."""
    return f"{check}-{case.replace('=', ':')}"


def make_node_id(name: str, check: str) -> str:
    """Node id of a test that --attention adds."""
    return f"attention::conformance[kernels.py:{name}-{make_id(check)}]"


@pytest.fixture
def here(pytester: pytest.Pytester) -> pytest.Pytester:
    """A user's repository, with kernels in a file."""
    pytester.makepyfile(kernels=KERNELS)
    return pytester


def attention(name: str, *checks: str, cases: tuple[str, ...] = (CASE,)) -> list[str]:
    """Options that select a few tests of an implementation."""
    options = [f"--attention={name}", "--attention-suite=quick"]
    return [*options, *(f"--attention-check={c}" for c in checks), *(f"--attention-case={c}" for c in cases)]


def join_output(result: pytest.RunResult) -> str:
    """Standard output and standard error of a run."""
    return "\n".join([*result.outlines, *result.errlines])


# The option


def test_option_adds_one_test_for_each_check_and_case(here: pytest.Pytester) -> None:
    """The added tests run beside the repository's own tests, and pass."""
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
    """Without --attention-check there is a test for each check that applies, in the catalogue's order."""
    result = here.runpytest("--collect-only", "-q", "-m", "attnbench", *attention("kernels.py:right"))
    found = [line.split("-")[1] for line in result.outlines if line.startswith("attention::")]
    assert {"forward_parity", "inputs_untouched"} < set(found)
    assert found == [name for name in read_checks() if name in found]


def test_wrong_implementation_is_explained(here: pytest.Pytester) -> None:
    """The failure has the reason, the requirement and the command, and no traceback; the JUnit file has the same."""
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
    """-k accepts parts of an id as they are printed."""
    options = attention("kernels.py:right", "forward_parity", "inputs_untouched", cases=(CASE, NEEDS_WEIGHTS))
    chosen = f"(right-{make_id('forward_parity')}) or (untouched and mask:none and need_weights)"
    result = here.runpytest("--collect-only", "-q", "-k", chosen, *options)
    ids = [make_id("forward_parity"), make_id("inputs_untouched", NEEDS_WEIGHTS)]
    found = [line for line in result.outlines if "::" in line]
    assert found == [f"attention::conformance[kernels.py:right-{one}]" for one in ids]


def test_several_processes_share_the_tests(here: pytest.Pytester) -> None:
    """Under xdist every process collects the same tests, and each has its own oracle worker and candidate workers."""
    pytest.importorskip("xdist")
    checks = ("forward_parity", "weights_only_on_request", "inputs_untouched", "repeats_itself")
    result = here.runpytest_subprocess("-n2", "-v", *attention("kernels.py:wrong", *checks))
    result.assert_outcomes(passed=3, failed=1)
    assert {line.split("]")[0] for line in result.outlines if line.startswith("[gw")} == {"[gw0", "[gw1"}


def test_a_crash_and_a_time_out_are_failures_of_their_tests(here: pytest.Pytester) -> None:
    """The reason says how the process ended, or gives the time limit."""
    options = attention("kernels.py:exits", "forward_parity") + attention("kernels.py:hangs", "forward_parity")
    result = here.runpytest(*options, "--attention-timeout=3")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["crashed: the process exited with code 3", "  reproduce *"])
    result.stdout.fnmatch_lines(["timeout: no answer within 3 s (--timeout)", "  reproduce *"])


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--attention=sdpaa"], "unknown implementation 'sdpaa'; did you mean 'sdpa'*"),
        (["--attention=missing.py:right"], "no such file: missing.py"),
        (["--attention=sdpa", "--attention-check=forward"], "unknown check 'forward'; available: forward_parity*"),
    ],
)
def test_a_usage_error_is_one_line(here: pytest.Pytester, options: list[str], fault: str) -> None:
    """The run does not start: exit code 4, and no traceback."""
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
    """The error names the pattern, in one line."""
    result = here.runpytest(*attention("sdpa", cases=("*no such*",)))
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*ERROR collecting attention*", "attnbench: '[*]no such[*]' matches none of * cases*"])


# The decorator


def test_decorator_makes_a_function_one_test_for_each_check_and_case(here: pytest.Pytester) -> None:
    """Objects and names are checked; refusals are skipped; expected failures are xfailed, and fail where they pass."""
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
    # right passes, and passes unexpectedly; wrong fails, and fails as expected; both refuse the case with need_weights.
    result.assert_outcomes(passed=3, failed=2, xfailed=1, skipped=2)
    ids = {name: f"[kernels.py:{name}-{make_id('forward_parity')}]" for name in ("right", "wrong")}
    finding = f"[kernels.py:wrong-{make_id('inputs_untouched')}]"
    status = {line.split()[0].partition("::")[2]: line.split()[1] for line in result.outlines if " PASSED" in line}
    assert status.keys() == {f"test_attention{ids['right']}", f"TestFindings::test_finding{finding}", "test_own"}
    text = join_output(result)
    assert f"_ test_attention{ids['wrong']} _" in text
    assert f"unexpected pass: expected to fail (1 % off, {LINK}): remove the expectation, or narrow" in text
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
        ("parametrize_conformance(['sdpa'], suite='quikc')", "*attnbench: unknown suite 'quikc'; available: *"),
        (
            "parametrize_conformance(['sdpa'], suite='quick', expected_failures={'forward': ('typo', 'link')})",
            "*attnbench: expected failure of sdpa: no check 'forward'; *",
        ),
    ],
    ids=["name", "suite", "expected"],
)
def test_an_invalid_decorator_ends_the_collection(here: pytest.Pytester, decorator: str, fault: str) -> None:
    """The error is one line, for a misspelt name and for an expected failure that matches no check."""
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
    result.stdout.fnmatch_lines(["*test_attention is parametrized by parametrize_conformance: it has to take *_case"])


# Runs without conformance tests


def test_plug_in_imports_no_large_package() -> None:
    """The plug-in itself imports two small modules of attnbench and no large package."""
    program = "import attnbench.pytest_plugin, sys; print(*sorted(m for m in sys.modules if m.startswith('attnbench')))"
    program += "; print({'torch', 'numpy', 'click', 'rich', 'msgspec'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "attnbench attnbench.cases attnbench.interface attnbench.pytest_plugin",
        "set()",
    ]


def test_other_tests_are_not_affected(here: pytest.Pytester) -> None:
    """Tests with strict markers, warnings as errors and a marker of the same name pass as without the plug-in."""
    here.makeini("[pytest]\naddopts = --strict-markers --strict-config -W error\n")
    here.makepyfile(
        "import pytest\n\n\n@pytest.mark.attnbench\n@pytest.mark.parametrize('x', [1, 2])\ndef test_own(x): pass\n"
    )
    here.runpytest_subprocess().assert_outcomes(passed=2)


def test_it_can_be_disabled(here: pytest.Pytester) -> None:
    """``-p no:attnbench`` disables the plug-in, for a repository whose own options have these names."""
    here.makeconftest("def pytest_addoption(parser): parser.addoption('--attention')\n")
    here.makepyfile("def test_own(request): assert request.config.getoption('--attention') == 'mine'\n")
    here.runpytest("-p", "no:attnbench", "--attention=mine").assert_outcomes(passed=1)
