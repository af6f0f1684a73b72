"""Tests of the study of new input values: its table from stored records, and a small measurement."""

import pytest

from attnbench.processes.oracle_requests import DrawInputs
from attnbench.runner import Limits, Session, list_profile_cases
from research import fresh_values


def test_the_table_shows_shifts() -> None:
    """A shift is the median ratio of pairs of blocks; the last but one column compares it with the reference's."""
    blocks = {
        "new": {name: [2.2e6, 2.2e6] for name in fresh_values.NAMES},
        "same": {name: [2e6 if name == "sdpa" else 2.2e6] * 2 for name in fresh_values.NAMES},
    }
    record = {"case": "multihead/B1/x", "threads": 1, "blocks": blocks, "ours_ns": 2.2e6, "timer_ns": 2e6}
    rows = fresh_values.format_table([record]).splitlines()[2:]
    once = "1.000 [1.000, 1.000]"
    assert rows[0] == f"| B1 | `torch_mha` | 2.2 | {once} | {once} | 1.100 [1.100, 1.100] |"
    assert rows[1] == "| B1 | `sdpa` | 2.2 | 1.100 [1.100, 1.100] | 1.100 [1.100, 1.100] |  |"
    assert len(rows) == len(fresh_values.NAMES)


@pytest.mark.extended
def test_a_small_measurement() -> None:
    """Every implementation has a median for each block of both kinds."""
    with Session(limits=Limits(threads=1)) as session:
        case = list_profile_cases(session, [8], ["forward"], of=("multihead",))[0]
        inputs = session.ask_oracle(DrawInputs(case=case))
        record = fresh_values.measure_process(case, inputs, 1, 0, pairs=2, block_s=0.01)
    assert set(record["blocks"]) == {"new", "same"}
    assert all(set(own) == set(fresh_values.NAMES) for own in record["blocks"].values())
    assert all(len(medians) == 2 for own in record["blocks"].values() for medians in own.values())
    assert record["ours_ns"] > 0
