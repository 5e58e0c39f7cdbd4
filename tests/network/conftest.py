"""Hosts for the tests, or a skip that says why there are none."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

import pytest

from tests.network.hosts import Hosts, NotPermitted
from tests.network.pair import PAIR

MakeHosts = Callable[..., Hosts]


@pytest.fixture
def make_hosts() -> Iterator[MakeHosts]:
    """Makes two hosts; takes what Hosts takes after their number."""
    if not os.path.exists(PAIR):
        pytest.skip("wire_pair is not built: bazel build //benchmarks/point_to_point:wire_pair")
    with contextlib.ExitStack() as made:

        def make(rate: str | None = None, delay_s: float = 0) -> Hosts:
            try:
                return made.enter_context(Hosts(2, rate=rate, delay_s=delay_s))
            except (NotPermitted, FileNotFoundError) as reason:
                pytest.skip(f"network namespaces are not permitted here: {reason}")

        yield make
