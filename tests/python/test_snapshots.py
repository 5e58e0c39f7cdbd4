"""What is in a snapshot that is copied beside training, and from when on it counts; see cases/snapshots.py."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pelton import _C
from pelton._training import _before_writes
from pelton._training.checkpoint._copying import _can_be_lent
from spawn import case_ids, check_case

MODULE = "cases.snapshots"


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_snapshots(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)


def _shared(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.share_memory_()  # type: ignore[no-any-return,no-untyped-call]


def _copied_while(tensor: torch.Tensor, moves: Callable[[torch.Tensor], object]) -> torch.Tensor:
    target = torch.zeros(tensor.nbytes, dtype=torch.uint8)
    copies = _C.TensorCopies()
    copies.begin([(tensor, 0)], target)
    moves(tensor)
    assert copies.finish(60) is None
    return target.view(tensor.dtype)


def test_a_tensors_memory_stays_until_it_is_copied() -> None:
    """Handed to another process, given back, or another tensor's: it would end the process, or be somebody else's."""
    count = 1 << 24
    for moves in (
        _shared,
        lambda tensor: tensor.untyped_storage().resize_(0),
        lambda tensor: setattr(tensor, "data", torch.empty(0, dtype=torch.int32)),
    ):
        for _ in range(2):  # the second finds what the first has left
            tensor = torch.arange(count, dtype=torch.int32)
            assert torch.equal(_copied_while(tensor, moves), torch.arange(count, dtype=torch.int32))
    kept = torch.arange(count, dtype=torch.int32)
    for _ in range(3):
        assert torch.equal(_copied_while(kept, lambda _: None), kept)


def test_what_does_not_say_where_its_bytes_are_is_copied_at_once() -> None:
    class Wrapped(torch.Tensor):
        """Its values are another tensor's."""

        @classmethod
        def __torch_dispatch__(  # type: ignore[override]
            cls, function: Any, types: Any, arguments: Any = (), named: Any = None
        ) -> Any:
            raise AssertionError(function)

    count = 1 << 16
    assert _can_be_lent(torch.zeros(count))
    assert _can_be_lent(torch.nn.Parameter(torch.zeros(count)))
    assert not _can_be_lent(torch.Tensor._make_wrapper_subclass(Wrapped, (count,)))
    assert not _can_be_lent(torch.zeros(count, dtype=torch.complex64).conj())
    assert not _can_be_lent(torch._neg_view(torch.zeros(count)))
    assert not _can_be_lent(_shared(torch.zeros(count)))
    assert not _can_be_lent(torch.zeros(count, 2)[:, 0])


def test_nobody_writes_before_the_reader_has_ended() -> None:
    """Whichever thread is the first to let it through."""
    begins, ends = threading.Event(), threading.Event()
    seen = []

    class Slow:
        is_done = False

        def finish(self) -> None:
            begins.set()
            assert ends.wait(60)
            _before_writes.settle()  # what is told of the end may settle as well
            seen.append("ended")

    def write(name: str) -> None:
        _before_writes.settle()
        seen.append(name)

    _before_writes.add(Slow())
    threads = [threading.Thread(target=write, args=("first",))]
    threads[0].start()
    assert begins.wait(60)
    threads.append(threading.Thread(target=write, args=("second",)))
    threads[1].start()
    threads[1].join(0.2)
    assert seen == []
    ends.set()
    for thread in threads:
        thread.join()
    assert seen[0] == "ended" and sorted(seen[1:]) == ["first", "second"]
    _before_writes.settle()
