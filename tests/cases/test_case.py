"""Tests of cases: an id describes a case completely, and the message about an invalid id names the fault."""

from itertools import pairwise

import pytest

from attnbench.cases import CALL_MODES, DTYPES, LEVELS, MODES, NESTED, Case, digest, shard
from attnbench.devices import list_device_names
from attnbench.operators.multihead.problem import MultiheadProblem
from attnbench.operators.multihead.suites import LISTS, make_profile_cases

PROBLEMS = {"multihead": MultiheadProblem}
ID = "multihead/B2.L5.S7.E24.H3/bias+batch_first/mask=none/regime=plain/seed=0/float32/cpu/eval"
SMALL = MultiheadProblem(batch=2, queries=5, keys=7, embed_dim=24, num_heads=3, bias=True, batch_first=True)


def case(**changes: object) -> Case:
    """Return the case ``ID`` with some fields of its problem changed."""
    return Case(operator="multihead", problem=SMALL).with_problem(**changes)


# Ids


@pytest.mark.parametrize(
    ("changes", "middle"),
    [
        ({}, "B2.L5.S7.E24.H3/bias+batch_first/mask=none/regime=plain/seed=0"),
        ({"batch": None}, "L5.S7.E24.H3/bias+batch_first/mask=none/regime=plain/seed=0"),
        ({"bias": False, "batch_first": False}, "B2.L5.S7.E24.H3/-/mask=none/regime=plain/seed=0"),
        ({"kdim": 10, "vdim": 14}, "B2.L5.S7.E24.H3.K10.V14/bias+batch_first/mask=none/regime=plain/seed=0"),
        (
            {"dropout": 0.25, "need_weights": True, "mask": "bool2d+pad", "seed": 12},
            "B2.L5.S7.E24.H3/bias+batch_first+need_weights+dropout=0.25/mask=bool2d+pad/regime=plain/seed=12",
        ),
    ],
)
def test_an_id_describes_its_case_completely(changes: dict[str, object], middle: str) -> None:
    """In an id, sizes, flags, mask, regime and seed have a fixed order; flags that are not set are left out."""
    found = case(**changes)
    assert found.id == f"multihead/{middle}/float32/cpu/eval"
    assert Case.parse(found.id, PROBLEMS) == found


@pytest.mark.parametrize("level", LEVELS)
def test_every_case_of_a_suite_is_restored_from_its_id(level: str) -> None:
    """Parsing a case's id gives an equal case, for every level and for the suite perf."""
    cases = [*LISTS.load_suite(level), *make_profile_cases([16, 100])]  # type: ignore[arg-type]
    assert [Case.parse(one.id, PROBLEMS) for one in cases] == cases


def test_common_fields_are_restored() -> None:
    """The dtype, device and mode of a case are in its id, and parsing the id restores them."""
    for dtype in DTYPES:
        for device in list_device_names():
            for mode in MODES:
                one = case().with_fields(dtype=dtype, device=device, mode=mode)
                assert one.id.endswith(f"/{dtype}/{device}/{mode}")
                assert Case.parse(one.id, PROBLEMS) == one


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("/eval", "", "a case id has 9 parts 'operator/sizes/flags/mask=…/regime=…/seed=…/dtype/device/mode', got 8: "),
        ("multihead", "linear", "unknown operator 'linear'; available: multihead"),
        ("float32", "fp8", "unknown dtype 'fp8'; available: float32, float64, bfloat16, float16"),
        ("cpu", "tpu", "unknown device 'tpu'; available: cpu, cuda"),
        ("/eval", "/sleep", "unknown mode 'sleep'; available: inference, eval, train"),
        ("L5", "M5", "unknown size 'M5'; the sizes of MultiheadProblem are B, L, S, E, H, K, V"),
        ("L5", "L", "expected a whole number in 'L'"),
        ("L5", "L-5", "unknown size 'L-5'; the sizes of MultiheadProblem are B, L, S, E, H, K, V"),
        ("L5.", "", "lacks a size: "),
        (
            "bias+",
            "bais+",
            "unknown flag 'bais'; the flags of MultiheadProblem are add_bias_kv, add_zero_attn, average_attn_weights, ",
        ),
        ("bias+", "dropout=much+", "expected a number in 'dropout=much'"),
        ("bias+", "dropout=nan+", "dropout must be at least 0 and less than 1, got nan"),
        ("bias+", "dropout=1+", "dropout must be at least 0 and less than 1, got 1"),
        ("mask=none", "musk=none", "expected 'mask=…', got 'musk=none' in "),
        ("mask=none", "mask=", "expected 'mask=…', got 'mask=' in "),
        ("mask=none", "mask=bool4d", "unknown mask 'bool4d'; available: bool2d, bool3d, causal, empty2d, "),
        (
            "mask=none",
            "mask=bool2d+float2d",
            "mask must be an attn_mask, a key_padding_mask or both in this order, got 'bool2d+float2d'",
        ),
        (
            "mask=none",
            "mask=none+pad",
            "mask must be an attn_mask, a key_padding_mask or both in this order, got 'none+pad'",
        ),
        (
            "regime=plain",
            "regime=wild",
            "unknown regime 'wild'; available: flat, plain, peaked, onehot, huge, identity, uniform, selection, "
            "zeroleak, overflow, minilm0 to minilm5",
        ),
        ("regime=plain", "regime=minilm6", "unknown regime 'minilm6'; available: "),
        ("seed=0", "seed=-1", "expected a whole number in 'seed=-1'"),
        ("seed=0", "seed=zero", "expected a whole number in 'seed=zero'"),
        ("H3", "H5", "embed_dim must be divisible by num_heads, got E24 and H5"),
        ("H3", "H0", "embed_dim and num_heads must be at least 1, got E24 and H0"),
        ("E24", "E0", "embed_dim and num_heads must be at least 1, got E0 and H3"),
        ("bias+", "self_attention+", "as many queries as keys, and neither kdim nor vdim; got L5 and S7"),
        ("bias+", "is_causal+", "is_causal needs a mask whose name contains 'causal', got 'none'"),
    ],
)
def test_the_part_of_an_id_that_cannot_be_read_is_named(old: str, new: str, fault: str) -> None:
    """The message is one line: it names the wrong part, what was needed and what came."""
    assert ID.count(old) == 1
    with pytest.raises(ValueError, match=r".") as raised:
        Case.parse(ID.replace(old, new), PROBLEMS)
    assert fault in str(raised.value)
    assert "\n" not in str(raised.value)


# Seeds


def test_the_same_problem_has_the_same_seed_everywhere() -> None:
    """The seed does not depend on the dtype, the device and the mode of a case."""
    seeds = {
        case().with_fields(dtype=dtype, device=device, mode=mode).seed
        for dtype in DTYPES
        for device in list_device_names()
        for mode in MODES
    }
    assert len(seeds) == 1


def test_different_problems_have_different_seeds() -> None:
    """No two problems of the suites have the same seed."""
    cases = LISTS.load_suite("slow")
    assert len({one.seed for one in cases}) == len({one.problem for one in cases})
    assert case(seed=1).seed != case(seed=0).seed


def test_the_seed_is_the_same_in_every_process() -> None:
    """The seed is a hash that fits into 63 bits, so that any process can draw the inputs of a stored run again."""
    assert case().seed == Case.parse(ID, PROBLEMS).seed == 49_947_256_136_220_623
    assert 0 <= case().seed < 2**63


# Suites


def test_a_level_contains_the_level_before_it() -> None:
    """Each level starts with the cases of the level before it, and adds to them."""
    for lower, higher in pairwise(NESTED):
        before, after = LISTS.load_suite(lower), LISTS.load_suite(higher)
        assert after[: len(before)] == before
        assert len(after) > len(before)


@pytest.mark.parametrize("level", LEVELS)
def test_no_case_is_in_a_suite_twice(level: str) -> None:
    """No two cases of a suite have the same id."""
    ids = [one.id for one in LISTS.load_suite(level)]  # type: ignore[arg-type]
    assert len(set(ids)) == len(ids)


def test_quick_has_every_dtype_mode_and_flag() -> None:
    """The smallest level has every dtype, every constructor and forward argument, and every mode without a compiler."""
    cases = LISTS.load_suite("quick")
    assert {one.dtype for one in cases} == set(DTYPES)
    assert {one.mode for one in cases} == {mode for mode, call_mode in CALL_MODES.items() if call_mode.compiler is None}
    flags = (
        "bias", "add_bias_kv", "add_zero_attn", "batch_first", "self_attention", "need_weights",
        "average_attn_weights", "is_causal", "dropout", "kdim", "vdim", "attention_mask", "padding_mask",
    )  # fmt: skip
    for flag in flags:
        assert {bool(getattr(one.problem, flag)) for one in cases} == {False, True}, flag


def test_the_suite_perf_has_one_case_per_length_and_pass() -> None:
    """For each length there are two cases of self-attention: one with forward only, one with a backward pass."""
    found = [(one.problem.queries, one.problem.keys, one.mode) for one in make_profile_cases([16, 100])]
    assert found == [(16, 16, "inference"), (16, 16, "train"), (100, 100, "inference"), (100, 100, "train")]


def test_a_digest_depends_on_the_cases_of_a_list() -> None:
    """The digest does not depend on the order of the cases, and changes if a case is added or removed."""
    ids = [one.id for one in LISTS.load_suite("core")]
    assert digest(reversed(ids)) == digest(ids)
    assert digest(ids[1:]) != digest(ids)
    assert digest([*ids, "x"]) != digest(ids)
    assert len(digest(ids)) == 12


@pytest.mark.parametrize("count", [1, 2, 3, 7, 40])
def test_shards_are_a_partition(count: int) -> None:
    """Every case is in exactly one shard, and the numbers of cases per shard differ by at most one."""
    cases = LISTS.load_suite("quick")
    parts = [shard(cases, index, count) for index in range(1, count + 1)]
    assert sorted(one.id for part in parts for one in part) == sorted(one.id for one in cases)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
