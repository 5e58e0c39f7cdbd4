"""What needs a package that Pelton does not bring along says which of Pelton's extras does."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from spawn import environment

ROOT = Path(__file__).resolve().parents[2]
# What needs a package: how its error calls it, the package as it is imported, and the extra.
NEEDS = {
    "import pelton.lightning": ("pelton.lightning", "lightning", "lightning"),
    "import pelton.pytorch_lightning": ("pelton.pytorch_lightning", "pytorch_lightning", "lightning"),
    "import pelton.accelerate": ("pelton.accelerate", "accelerate", "accelerate"),
    "RedisStore([{'host': '127.0.0.1', 'port': 1}])": ("a RedisStore", "redis", "cache"),
    "ClusterStore([Store(), Store()])": ("a ClusterStore of several stores", "xxhash", "cache"),
    "AutotuneService(2)": ("an AutotuneService", "flask", "service"),
    "AutotuneClient('127.0.0.1', 1)": ("an AutotuneClient", "requests", "service"),
    "BayesianOptimizer({'x': IntParam(1, [0, 2])})": ("a BayesianOptimizer", "skopt", "service"),
}
# As they are called where they are installed from; what brings pytorch_lightning is the package lightning.
PROJECTS = {"skopt": "scikit-optimize", "pytorch_lightning": "lightning"}

SCRIPT = """
import json, sys
import pelton
import pelton.torch_api
packages = {packages!r}
loaded = [name for name in packages if name in sys.modules]
from pelton.service import AutotuneClient, AutotuneService
from pelton.service.bayesian_optimizer import BayesianOptimizer, IntParam
from pelton.torch_api.contrib.utils.redis_store import RedisStore
from pelton.torch_api.contrib.utils.store import ClusterStore, Store
loaded_late = [name for name in packages if name in sys.modules]
sys.modules.update(dict.fromkeys(packages))  # as if they were not installed
said = {{}}
for statement in {statements!r}:
    try:
        exec(statement)
    except ImportError as error:
        said[statement] = str(error)
print(json.dumps([loaded, loaded_late, said]))
"""


@functools.cache
def found() -> tuple[list[str], list[str], dict[str, str]]:
    """Which packages importing Pelton has imported, importing what needs them too; and the errors. One process for all,
    because importing torch takes seconds.
    """
    packages = [package for _, package, _ in NEEDS.values()]
    command = [sys.executable, "-c", SCRIPT.format(packages=packages, statements=list(NEEDS))]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    loaded, loaded_late, said = json.loads(done.stdout)
    return loaded, loaded_late, said


def test_importing_pelton_imports_nothing_that_it_does_not_need() -> None:
    loaded, loaded_late, _ = found()
    assert loaded == []
    assert loaded_late == [], "stores and the tuning service import theirs where they are made"


@pytest.mark.parametrize("statement", NEEDS)
def test_what_lacks_a_package_names_the_extra(statement: str) -> None:
    purpose, package, extra = NEEDS[statement]
    text = found()[2][statement]
    assert text.startswith(f"{purpose} needs the package {package} (")
    assert text.endswith(f"): pip install 'pelton[{extra}]'")
    brought = re.search(rf"^{extra} = \[(.*)\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert brought is not None
    assert f'"{PROJECTS.get(package, package)}>=' in brought[1]
