"""Tests of the configuration file of a sweep: what it sets, and what it refuses in one line."""

from pathlib import Path

import pytest

from attnsweep.configuration import ConfigurationError, Machine, read_configuration


def write(folder: Path, text: str) -> Path:
    """Write a configuration file."""
    path = folder / "sweep.toml"
    path.write_text(text)
    return path


def test_keys_are_options_of_the_command(tmp_path: Path) -> None:
    """A list is written as on the command line, or repeated where the option is."""
    path = write(
        tmp_path,
        'kind = "profile"\nimplementations = ["sdpa"]\nresults = "there"\n'
        '[axes]\nlengths = [128, "1:512"]\nbatch = 8\nmask = ["none", "causal"]\ndtype = ["float32", "bfloat16"]\n'
        '[limits]\nminutes = 30\nmemory_limit = "8GiB"\n'
        '[[machines]]\nname = "a100"\nconstraint = "a100"\ncpus = 8\n',
    )
    found = read_configuration(path)
    assert found.list_defaults() == {
        "kind": "profile", "results": "there", "lengths": "128,1:512", "batch": "8", "mask": "none,causal",
        "dtype": ["float32", "bfloat16"], "minutes": "30", "memory_bytes": "8GiB",
    }  # fmt: skip
    assert found.machines == [Machine(name="a100", constraint="a100", cpus=8)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[axis]\n", "unknown key 'axis', did you mean 'axes'?; available: kind, implementations"),
        ("[axes]\nlenghts = 3\n", "unknown key 'axes.lenghts', did you mean 'lengths'?; available: lengths, batch"),
        (
            '[[machines]]\nname = "a"\nconstrain = "b"\n',
            "unknown key 'machines[0].constrain', did you mean 'constraint'?",
        ),
        ("[limits]\nxyz = 1\n", "unknown key 'limits.xyz'; available: minutes, tries"),
        ("[axes]\nlengths = []\n", "axes.lengths is an empty list, so the sweep has no case"),
        ('[limits]\nminutes = "soon"\n', "limits.minutes needs a whole number, got 'soon'"),
        ('kind = "prof"\n', "kind needs 'conform' or 'profile', got 'prof'"),
        ('[[machines]]\nname = "a/b"\n', "machines: a name has letters, digits, - and _ only"),
        ('[[machines]]\nname = "a"\n[[machines]]\nname = "a"\n', "machines: two have the name 'a'"),
        (
            '[[machines]]\nname = "a"\ndevice = "tpu"\n',
            "device needs 'cpu' or 'cuda' or 'mps' or 'xpu', got 'tpu'",
        ),
        ("[[machines]]\n", "machines[0]: the key 'name' is missing"),
        ("[axes.lengths]\na = 1\n", "axes.lengths needs a whole number or a number or text or a list, got {'a': 1}"),
        ('implementations = "sdpa"\n', "implementations needs a list, got 'sdpa'"),
        ('implementations = ["sdpa", 3]\n', "implementations[1] needs text, got 3"),
        ("kind = \n", "is not TOML: Invalid value"),
    ],
)
def test_faults_are_one_line(tmp_path: Path, text: str, message: str) -> None:
    """A typo is named with the nearest key, and a wrong type or value with its place."""
    with pytest.raises(ConfigurationError) as caught:
        read_configuration(write(tmp_path, text))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_parameter_is_named_by_its_key(tmp_path: Path) -> None:
    """A message about a value of the file names the key with its table."""
    found = read_configuration(write(tmp_path, ""))
    names = [found.name_key(one) for one in ("cases", "minutes", "mask", "suite")]
    assert names == ["axes.case", "limits.minutes", "axes.mask", "suite"]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A path without a file is refused."""
    with pytest.raises(
        ConfigurationError, match=r"cannot read .*none\.toml: No such file or directory; name a TOML file"
    ):
        read_configuration(tmp_path / "none.toml")
