"""What the alias packages are made of: their modules are other modules under a second name."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import ExecutionLoader, InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import CodeType, ModuleType

PACKAGES = Path(__file__).resolve().parent / "packages"
COUNTERPARTS = {"bagua": "pelton", "bagua_core": "pelton", "bluefog": "pelton.bluefog"}


def real_package(name: str) -> str | None:
    """Where a package of that name is installed that is not ours; None if there is none.

    A folder without __init__.py is none: a clone of the package's repository lies in one, and Python imports ours.
    """
    elsewhere = [entry for entry in sys.path if Path(entry or ".").resolve() != PACKAGES]
    spec = PathFinder.find_spec(name, elsewhere)
    return None if spec is None else spec.origin


def refusal(name: str) -> str | None:
    """Why there can be no alias package of that name; None if there can."""
    where = real_package(name)
    if where is None:
        return None
    return (
        f"the real {name} is installed ({where}); Pelton's alias of it would hide it. "
        "Uninstall it, or use an environment without it"
    )


class _SecondName(ExecutionLoader):
    """Gives an alias the module that it stands for, and `python -m` that module's code.

    Threads: as importlib. Owns: nothing.
    """

    def __init__(self, counterpart: ModuleSpec) -> None:
        self._counterpart = counterpart
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._counterpart.name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It ran when it was imported under its own name; importlib has put the alias's spec on it meanwhile."""
        module.__spec__ = self._spec

    def is_package(self, fullname: str) -> bool:
        """Whether the counterpart is one."""
        return self._counterpart.submodule_search_locations is not None

    def get_code(self, fullname: str) -> CodeType | None:
        """The counterpart's; None for an extension module."""
        return self._inspected().get_code(self._counterpart.name)

    def get_source(self, fullname: str) -> str | None:
        """The counterpart's; None for an extension module."""
        return self._inspected().get_source(self._counterpart.name)

    def get_filename(self, fullname: str) -> str:
        """Where the counterpart lies."""
        if self._counterpart.origin is None:
            raise ImportError(f"{self._counterpart.name}, which {fullname} stands for, has no file", name=fullname)
        return self._counterpart.origin

    def _inspected(self) -> InspectLoader:
        loader = self._counterpart.loader
        if not isinstance(loader, InspectLoader):
            raise ImportError(f"{self._counterpart.name} tells nobody its code", name=self._counterpart.name)
        return loader


class AliasFinder(MetaPathFinder):
    """Finds `bagua.x` as `pelton.x`. Threads: as importlib. Owns: nothing."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of an alias, or None for names of others.

        Raises:
          ModuleNotFoundError: Pelton has no counterpart of the module.
        """
        package, _, rest = fullname.partition(".")
        if package not in COUNTERPARTS or not rest or _is_own(fullname):
            return None
        counterpart = f"{COUNTERPARTS[package]}.{rest}"
        found = importlib.util.find_spec(counterpart)
        if found is None:
            raise ModuleNotFoundError(f"Pelton has no counterpart of {fullname} (no {counterpart})", name=fullname)
        is_package = found.submodule_search_locations is not None
        return ModuleSpec(fullname, _SecondName(found), origin=found.origin, is_package=is_package)


def _is_own(fullname: str) -> bool:
    """Whether an alias package holds a module itself, because Pelton's own differs: bagua.version."""
    return PACKAGES.joinpath(*fullname.split(".")).with_suffix(".py").is_file()


def install(name: str) -> None:
    """Lets the sub-modules of an alias package be found. Called by the package itself. Idempotent.

    Raises:
      ImportError: the real package is installed too, or Pelton does not offer it yet.
    """
    reason = refusal(name)
    if reason is not None:
        raise ImportError(reason, name=name)
    if importlib.util.find_spec(COUNTERPARTS[name]) is None:
        raise ImportError(f"Pelton does not offer {name} yet (there is no {COUNTERPARTS[name]})", name=name)
    if not any(isinstance(finder, AliasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, AliasFinder())
