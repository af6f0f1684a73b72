"""Command lines as a run file stores them, and as they are printed for whoever typed them."""

from pathlib import Path

import pytest

from attnbench.api.command_line import format_command, restore_folders


@pytest.mark.parametrize("given", ["/tmp/somebody/my runs", "../runs", "runs"])
def test_folders_that_a_stored_command_lacks_are_printed(given: str) -> None:
    """A stored command has no folder that could reveal a user name; the printed command has the folders as given."""
    results, reports = Path(given), Path("/tmp/somebody/page")
    words = ["conform", "--results", str(results), "sdpa"]
    stored = f"{format_command(words)}; {format_command(['report', '--reports', str(reports)])}"
    assert "somebody" not in stored
    printed = restore_folders(stored, [results / "machine" / "run.jsonl"], reports)
    quoted = f"'{given}'" if " " in given else given
    assert printed == (f"attnbench conform --results {quoted} sdpa; attnbench report --reports /tmp/somebody/page")


def test_other_folders_of_a_stored_command_stay() -> None:
    """A folder of another name than that of the runs is not replaced, and neither is the end of a longer word."""
    text = "attnbench report --results older; attnbench report --results runs2"
    assert restore_folders(text, [Path("/tmp/runs/machine/run.jsonl")], Path("reports")) == text
