"""Finds out, before anything runs, which cases one job per world size has to run."""

import pytest
from spawn import want_cases


def pytest_collection_finish(session: pytest.Session) -> None:
    """Every selected test of a case module says so by its parameters."""
    for item in session.items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if "world_size" in parameters:
            own = getattr(item.module, "MODULE", "")  # type: ignore[attr-defined]
            want_cases(parameters["world_size"], parameters.get("module", own))
