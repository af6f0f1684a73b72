"""Facts of a newer version in a run file: they are kept as unknown, and everything else of the record is read."""

from pathlib import Path

import msgspec
import pytest

from attnbench.records.outcome_facts import Crashed, ExcludedFromTiming, UnknownFact
from attnbench.records.run_file import read_run
from attnbench.records.types import Completion, Result
from attnbench.records.unknown_facts import decode_tolerantly
from attnbench.refusals import NeedsDevice, OtherRefusal
from attnbench.words.findings import describe_fact

DATA = Path(__file__).parents[1] / "data"
NEW = {"type": "FactOfTomorrow", "count": 3}
RESULT = {"record": "result", "run": "r", "implementation": "a", "case": "c"}
KNOWN = {"type": "Crashed", "how": "closed"}


def decode(**fields: object) -> Result:
    """Decode a result with these fields."""
    return decode_tolerantly(msgspec.json.encode(RESULT | {"findings": []} | fields), msgspec.json.Decoder(Result))


@pytest.mark.parametrize("fact", [NEW, {"type": "Crashed", "how": "by lightning"}, {"type": "Crashed"}, {"type": 3}])
def test_an_unknown_fact_keeps_its_finding(fact: dict[str, object]) -> None:
    """A fact with an unknown tag, or with other fields than this version knows, is unknown; its neighbours are not."""
    made = decode(findings=[{"check": "x", "status": "failed", "facts": [KNOWN, fact], "warnings": [fact, "text"]}])
    unknown = UnknownFact(name=str(fact["type"]))
    (finding,) = made.findings
    assert finding.facts == (Crashed(how="closed"), unknown)
    assert finding.warnings == (unknown, "text")
    assert describe_fact(unknown).startswith("unknown fact")


def test_a_fact_with_an_unknown_fact_inside_is_unknown() -> None:
    """An untimed call whose fault is unknown is itself of an unknown reason; a text stays."""
    inside = {"type": "ExcludedFromTiming", "fault": NEW}
    assert decode(untimed=inside).untimed == UnknownFact(name="ExcludedFromTiming")
    assert decode(untimed=inside | {"fault": KNOWN}).untimed == ExcludedFromTiming(fault=Crashed(how="closed"))
    assert decode(untimed="not_run: long").untimed == "not_run: long"


def test_an_unknown_refusal_keeps_its_cases() -> None:
    """A completion keeps the positions of cases that are refused for an unknown reason."""
    stored = {
        "run": "r", "implementation": "a", "suite": "core", "list_digest": "d", "listed": 5,
        "refusals": [[{"type": "NeedsDevice", "devices": ["cuda"]}, [0]], [NEW, [1, 2]]], "no_answer": NEW,
    }  # fmt: skip
    made = decode_tolerantly(msgspec.json.encode(stored), msgspec.json.Decoder(Completion))
    assert made.refusals == ((NeedsDevice(devices=("cuda",)), (0,)), (OtherRefusal(text=""), (1, 2)))
    assert made.no_answer == UnknownFact(name="FactOfTomorrow")


def test_other_faults_of_a_record_are_faults() -> None:
    """A record that is wrong in another way is not read."""
    with pytest.raises(msgspec.ValidationError):
        decode(implementation=3)


def test_a_run_file_with_an_unknown_fact_is_read(tmp_path: Path) -> None:
    """The result is read, and no problem is reported."""
    lines = (DATA / "run-schema-6.jsonl").read_text().splitlines()
    place, line = next((place, msgspec.json.decode(line)) for place, line in enumerate(lines) if '"result"' in line)
    line["findings"] = [{"check": "forward_parity", "status": "failed", "facts": [NEW]}]
    line["timing"] = line["memory"] = None
    lines[place] = msgspec.json.encode(line).decode()
    file = tmp_path / "run.jsonl"
    file.write_text("\n".join(lines) + "\n")
    stored = read_run(file)
    assert stored.problems == ()
    assert stored.results[0].findings[0].facts == (UnknownFact(name="FactOfTomorrow"),)
