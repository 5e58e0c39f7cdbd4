"""What needs a package that Pelton does not bring along says which of Pelton's extras does."""

from __future__ import annotations

import subprocess
import sys

import pytest
from spawn import environment

# Of a module of Pelton's: the package that it needs, and the extra.
NEEDS = {"pelton.lightning": ("lightning", "lightning"), "pelton.accelerate": ("accelerate", "accelerate")}

SCRIPT = """
import sys
import pelton.torch_api
assert {package!r} not in sys.modules, "importing Pelton imports nothing that it does not need"
sys.modules[{package!r}] = None  # as if it were not installed
import {module}
"""


@pytest.mark.parametrize("module", NEEDS)
def test_what_lacks_a_package_names_the_extra(module: str) -> None:
    package, extra = NEEDS[module]
    command = [sys.executable, "-c", SCRIPT.format(package=package, module=module)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ImportError: {module} needs the package {package} ("), done.stderr
    assert last.endswith(f"): pip install 'pelton[{extra}]'")
