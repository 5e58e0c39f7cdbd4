"""examples/consensus/digits.py under the alias package: every optimizer of BlueFog's learns as well as allreduce."""

from __future__ import annotations

import re
import sys

from spawn import HERE, run

SCRIPT = HERE.parents[1] / "examples" / "consensus" / "digits.py"
WAYS = (
    "gradient_allreduce",
    "allreduce",
    "neighbor",
    "neighbor+atc",
    "neighbor+dynamic",
    "neighbor+atc+dynamic",
    "neighbor+switch",
    "neighbor+atc+switch",
    "hierarchical+atc",
    "win_put",
    "win_put+dynamic",
    "pull_get",
    "push_sum",
    "push_sum+dynamic",
)
# Of 540 images. Those over windows do not repeat from run to run: on a busy machine ranks are many steps apart, and so
# old is what they average with.
MOST_BELOW = 0.005
MOST_BELOW_WITHOUT_WAITING = 0.03
_LINE = re.compile(r"^\[rank (\d)\] rank \1: (\S+): accuracy \S+, mean of the ranks' (\S+)$", re.MULTILINE)


def test_every_optimizer_learns_as_well_as_allreduce() -> None:
    command = [sys.executable, "-m", "pelton_run.bfrun", "-np", "4", sys.executable, "-m", "pelton.compat"]
    outcome = run([*command, str(SCRIPT), *WAYS], 600, {"BLUEFOG_NODES_PER_MACHINE": "2"})
    assert outcome.code == 0, outcome.errors
    assert "there is no timeline" not in outcome.errors + outcome.output  # nobody asked for one
    reached = {way: float(mean) for _, way, mean in _LINE.findall(outcome.output)}
    assert sorted(reached) == sorted(WAYS), outcome.output
    aim = reached["gradient_allreduce"]
    assert aim > 0.97
    for way, mean in reached.items():
        waits = way.split("+")[0] not in ("win_put", "pull_get")
        assert mean >= aim - (MOST_BELOW if waits else MOST_BELOW_WITHOUT_WAITING), reached
