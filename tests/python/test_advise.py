# SPDX-License-Identifier: Apache-2.0
"""python -m ringcast.sglang advise."""

import json

import needs
import pytest

if needs.torch is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

from ringcast.sglang import __main__ as command
from ringcast.sglang import advise

pytestmark = pytest.mark.alike

RATES = advise.Rates({"sha256": 6e-10, "xxh3": 6e-11}, 4e-11, 6e-11, cpus=2)


@pytest.fixture(autouse=True)
def rates(monkeypatch):
    monkeypatch.setattr(advise, "measure", lambda: RATES)


def test_the_map_is_the_rules_decision_for_each_cell(capsys):
    assert (
        command.main(["advise", "--format", "json", "--tp", "2", "--tp", "4", "--size", "10000000"])
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["cpus"] == 2
    assert [(cell["ranks"], cell["way"]) for cell in found["cells"]] == [(2, "hash"), (4, "hash")]
    for cell in found["cells"]:
        cost = advise.costs(RATES, cell["ranks"], cell["nbytes"])
        assert cell["way"] == advise.best(cost, ("local", "hash", "share"))
        assert cell["ms"] == pytest.approx({way: seconds * 1e3 for way, seconds in cost.items()})


def test_the_table_has_a_line_for_each_size_and_a_value_made_for_all_is_shared(capsys):
    assert command.main(["advise", "--tp", "4", "--seconds", "0.01"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("10 MB" in line and "share (0." in line for line in lines)
    assert sum(" MB" in line or " kB" in line or " GB" in line for line in lines) == 11
    assert command.main(["advise", "--size", "10000", "--tp", "2"]) == 0
    assert "local" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize("bad", [["--tp", "0"], ["--size", "-1"], ["--seconds", "-1"]])
def test_what_makes_no_map_is_refused(bad, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(["advise", *bad])
    assert ended.value.code == 2 and bad[0] in capsys.readouterr().err
