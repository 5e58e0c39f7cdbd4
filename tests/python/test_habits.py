"""What PyTorch's users are used to, on wrapped models and beside them; see cases/habits*.py."""

import subprocess
import sys

import pytest
from spawn import case_ids, check_case, environment

MODULE = "cases.habits"

ONLY_IMPORTED = """
import inspect
import torch
import pelton.torch_api

model, inputs = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), torch.randn(2, 4)
expected = model(inputs)
torch.compile(model, backend="eager", fullgraph=True)(inputs).sum().backward()
assert torch.equal(torch.compile(lambda x: model(x).square(), backend="eager", fullgraph=True)(inputs), expected**2)
assert torch.equal(torch.jit.script(model)(inputs), expected)
assert torch.equal(torch.jit.trace(model, inputs)(inputs), expected)
assert torch.equal(torch.export.export(model, (inputs,)).module()(inputs), expected)
assert torch.equal(torch.fx.symbolic_trace(model)(inputs), expected)
assert torch.equal(torch.func.functional_call(model, dict(model.named_parameters()), (inputs,)), expected)
inspect.getmembers(model)

ours = [name for name in dir(torch.nn.Module) if "bagua" in name or name == "no_sync"]
assert ours == ["with_bagua"], ours


class Third(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.no_sync = True  # an attribute of its own


assert Third().no_sync is True
try:
    model.no_sync
except AttributeError as error:
    assert "no_sync" in str(error)
"""


def test_importing_leaves_the_compilers_of_torch_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ONLY_IMPORTED], env=environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_habit(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)
