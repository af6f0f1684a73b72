"""Command lines as a run file stores them, and as they are printed where the run was made."""

from pathlib import Path

import pytest

from attnbench.api.command_line import format_command, name_folders


@pytest.mark.parametrize("given", ["/tmp/somebody/my runs", "../runs", "runs"])
def test_printed_commands_have_the_folders_of_this_report(given: str) -> None:
    """A stored command has no folder that could reveal a user name; the printed command has the folders in use."""
    results, reports = Path(given), Path("/tmp/somebody/page")
    made = format_command(["conform", "--results", str(results), "--reports", "/tmp/somebody/older", "sdpa"])
    stored = f"{made}; {format_command(['report', '--reports', str(reports)])}"
    assert "somebody" not in stored
    printed = name_folders(stored, [results / "machine" / "run.jsonl"], reports)
    quoted = f"'{given}'" if " " in given else given
    assert printed == (
        f"attnbench conform --results {quoted} --reports /tmp/somebody/page sdpa; "
        "attnbench report --reports /tmp/somebody/page"
    )


def test_runs_of_several_folders_have_no_folder() -> None:
    """With runs of two folders, the option for the folder of results stays as it is stored."""
    text = "attnbench report --results older; attnbench report 'a --results b'"
    files = [Path("/tmp/runs/machine/run.jsonl"), Path("/tmp/others/machine/run.jsonl")]
    assert name_folders(text, files, Path("reports")) == text
