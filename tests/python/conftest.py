"""Finds out, before anything runs, which cases one job per world size has to run, and what goes to one worker."""

import pytest
from spawn import want_cases


@pytest.hookimpl(tryfirst=True)  # before the workers' scheduler reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several workers, the cases of a world size stay together, which share a job, and else those of a file."""
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        size = parameters.get("world_size")
        item.add_marker(pytest.mark.xdist_group(item.path.stem if size is None else f"world of {size}"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Every selected test of a case module says so by its parameters."""
    for item in session.items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if "world_size" in parameters:
            want_cases(parameters["world_size"], item.module.MODULE)  # type: ignore[attr-defined]
