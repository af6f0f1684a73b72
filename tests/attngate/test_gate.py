"""Tests of ``attnbench gate``: what it finds between commits of a scratch repository, and what it leaves behind."""

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from attnbench.api.revisions import PREFIX
from attngate import gating
from attngate.command import command
from scratch_repository import Repository

FORM = "multihead/B2.L6.S6.E24.H3/bias+batch_first+self_attention/mask={}/regime=plain/seed=0/float32/cpu/train"
PLAIN, MASKED = FORM.format("none"), FORM.format("bool3d")
# One short call; without times, no test needs a quiet machine.
SMALL = ("--lengths", "16", "--passes", "forward", "--fail-on", "wrong,bigger")
DETACHED = "torch.cat([self.in_proj_bias[: 2 * width], self.in_proj_bias[2 * width :].detach()])"
SWAPPED = "mask.unflatten(0, (heads, batch)).transpose(0, 1)"
LARGER = "kept = torch.empty_like(q)\n        output = F.scaled_dot_product_attention(q, k, v, mask) + 0 * kept.numel()"

Gate = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A scratch repository, which is the current folder; two cases stand for the suite ``core``."""
    made = Repository(tmp_path / "scratch")
    monkeypatch.chdir(made.folder)
    whole = gating.make_conform_job
    monkeypatch.setattr(gating, "make_conform_job", lambda job: replace(whole(job), cases=(PLAIN, MASKED)))
    return made


@pytest.fixture
def gate(repository: Repository, tmp_path: Path) -> Gate:
    """Run a gate in the repository, and return its exit code, its outcome and what it printed."""

    def run(base: str, *words: str) -> tuple[int, dict[str, Any], str]:
        file = tmp_path / "outcome.json"
        files = ("--results", str(tmp_path / "results"), "--json", str(file))
        done = CliRunner().invoke(
            command, ["mine.py", "--base", base, *SMALL, *files, *words], standalone_mode=False, catch_exceptions=False
        )
        assert repository.git("worktree", "list").count("\n") == 0
        assert not [*Path(tempfile.gettempdir()).glob(f"{PREFIX}*/*{repository.git('rev-parse', base)[:12]}*")]
        return done.return_value, json.loads(file.read_text()), done.output

    return run


def list_changes(outcome: dict[str, Any], verdict: str) -> list[tuple[str, str]]:
    """Return the aspect and the mask of each change with a verdict."""
    own = (one for one in outcome["changes"] if one["verdict"] == verdict)
    return [(one["aspect"], one["case"].partition("mask=")[2].partition("/")[0]) for one in own]


@pytest.mark.extended
def test_a_lost_gradient_is_wrong_and_its_repair_is_mended(repository: Repository, gate: Gate) -> None:
    """A bias whose values have no gradient is found on a case without a mask; its repair is no fault."""
    first = repository.git("rev-parse", "HEAD")
    broken = repository.change("self.in_proj_bias\n", f"{DETACHED}\n")
    code, outcome, told = gate(first)
    assert (code, outcome["outcome"], outcome["worse"]["bigger"]) == (1, "worse", 0)
    assert ("parameter_gradients", "none") in list_changes(outcome, "wrong")
    assert "To see the first failure again: attnbench reproduce" in told
    assert outcome["base"]["commit"] == first
    repository.git("checkout", "-q", first)
    code, outcome, told = gate(broken)
    assert (code, outcome["outcome"], outcome["worse"]) == (0, "holds", {"wrong": 0, "slower": 0, "bigger": 0})
    assert ("parameter_gradients", "none") in list_changes(outcome, "mended")
    assert "that failed in the base" in told


@pytest.mark.extended
def test_swapped_heads_and_sequences_of_a_mask_are_wrong(repository: Repository, gate: Gate, tmp_path: Path) -> None:
    """A fault that only a mask for each head shows is found, although no timed case has a mask."""
    repository.change("mask.unflatten(0, (batch, heads))", SWAPPED)
    markdown = tmp_path / "comment.md"
    code, outcome, _ = gate("HEAD~1", "--markdown", str(markdown))
    wrong = list_changes(outcome, "wrong")
    assert (code, {mask for _, mask in wrong}) == (1, {"bool3d"})
    assert ("forward_parity", "bool3d") in wrong
    text = markdown.read_text("utf-8")
    assert text.startswith("### attnbench gate: the change is worse: `HEAD~1 (")
    assert "#### Became wrong" in text


@pytest.mark.extended
def test_another_tensor_is_bigger_and_a_refactoring_holds(repository: Repository, gate: Gate) -> None:
    """One more tensor of the call is bigger; a base that was checked before is not checked again."""
    first = repository.git("rev-parse", "HEAD")
    repository.change("output = F.scaled_dot_product_attention(q, k, v, mask)", LARGER)
    code, outcome, _ = gate(first)
    assert (code, outcome["worse"]["wrong"]) == (1, 0)
    assert ("peak_bytes", "none") in list_changes(outcome, "bigger")
    code, outcome, _ = gate(first, "--bigger", "1MiB")
    assert (code, outcome["outcome"], outcome["kept"]) == (0, "holds", ["mine.py:Attend"])
    assert ("peak_bytes", "none") in list_changes(outcome, "tolerated")
    repository.change("return self.out_proj(output", "joined = output\n        return self.out_proj(joined")
    code, outcome, told = gate(first)
    assert (code, outcome["worse"]) == (0, {"wrong": 0, "slower": 0, "bigger": 0})
    assert outcome["changes"] == []
    assert outcome["compared"] > 0
    assert f" on {outcome['compared']} cases, nothing of wrong, bigger was found" in told
