"""Checkpoints that cannot be saved or loaded: an error on all ranks, and the one before stays."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any
from unittest import mock

import pelton.torch_api as bagua
import torch
from pelton._training.checkpoint import _disk
from pelton.torch_api.checkpoint import load_checkpoint, save_checkpoint
from saving_faults import Faulty

from cases.checks import files_of_at_most, raises, rank_and_size, seeded
from cases.registry import case
from cases.saving import KINDS, Net, Training, assert_same_values, shared_folder


@case(2)
def what_is_wrong_is_told_on_all_ranks() -> None:
    rank, _ = rank_and_size()
    with shared_folder() as folder:
        training = Training(KINDS["gradient_allreduce"], 0)
        with raises(ValueError, "iteration=-1"):
            training.save(-1, folder)
        with raises(ValueError, "rank 0's" if rank == 1 else "rank 1 of the group"):
            training.save(rank, folder)
        with raises(ValueError, "lr_scheduler _Odd" if rank == 1 else "rank 1 of the group: lr_scheduler _Odd"):
            save_checkpoint(1, folder, training.model, None, _Odd() if rank == 1 else training.scheduler)
        assert not any(folder.iterdir())
        save_checkpoint(1, folder, training.model)
        with raises(ValueError, "optimizer: ", "saved without one"):
            training.load(folder)
        apart = folder / str(rank)
        text = "there is no" if rank == 1 else "rank 1 of the group: checkpoints_path: there is no"
        with raises(ValueError, text, "all ranks share"):
            save_checkpoint(2, apart, training.model)
        assert rank == 1 or not any(apart.iterdir())
        for text, said in (
            ('{"format": 9}', "its format is 9; this version reads 1"),
            ("{", "is damaged"),
            ("[]", "is damaged"),
        ):
            bagua.barrier()
            (folder / "iter_0000001" / "pelton_checkpoint.json").write_text(text)
            bagua.barrier()
            with raises(ValueError, "pelton_checkpoint.json", said):
                load_checkpoint(folder, training.model)
        for text, said in (("seven", "says 'seven'"), ("7", "there is no")):
            bagua.barrier()
            (folder / "latest_checkpointed_iteration.txt").write_text(text)
            bagua.barrier()
            with raises(ValueError, said):
                training.load(folder)


class _Odd:
    """A scheduler with an object of its own in its state. Threads: the test's. Owns: nothing."""

    def state_dict(self) -> dict[str, Any]:
        return {"object": self}


class _Evil:
    """What runs when it is unpickled. Threads: the test's. Owns: a path."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@case(2)
def no_code_of_a_files_is_run() -> None:
    rank, _ = rank_and_size()
    with shared_folder() as folder:
        model = seeded(0, Net).with_bagua([], "gradient_allreduce")
        save_checkpoint(1, folder, model)
        for name in ("mp_rank_00_model_states.pt", f"pelton_rank_{rank:05d}_states.pt"):
            path = folder / "iter_0000001" / name
            kept = path.read_bytes()
            bagua.barrier()
            torch.save({"model": _Evil(folder / "evil")}, path)
            bagua.barrier()
            with raises(ValueError, name if name.startswith("mp") else "pelton_rank", "tensors and plain values"):
                load_checkpoint(folder, model)
            assert not (folder / "evil").exists()
            bagua.barrier()
            path.write_bytes(kept)
            bagua.barrier()
        assert load_checkpoint(folder, model) == 1


def _old_and_new(folder: Path) -> tuple[Training, dict[str, Any]]:
    training = Training(KINDS["local_sgd"], 0)
    training.steps(0, 1)
    training.save(1, folder)
    old = training.values()
    training.steps(1, 2)
    return training, old


@case(2)
def a_disk_that_is_full_at_any_moment_leaves_a_whole_checkpoint() -> None:
    """At each operation of each rank: an error on both, and checkpoint 1 is loaded. Only where the very last operation
    fails, which makes the new names outlast a crash, it is checkpoint 2.
    """
    rank, _ = rank_and_size()
    counts = []
    for failing in (0, 1):
        with shared_folder() as folder:
            training, old = _old_and_new(folder)
            new, at = training.values(), 0
            while not _saves_although(training, folder, at if rank == failing else -1):
                loaded = training.load(folder)
                wanted = old if loaded == 1 else new
                assert_same_values(training.values(), wanted, f"after operation {at} of rank {failing} failed")
                if loaded == 2:
                    break
                training.steps(1, 2)
                at += 1
            counts.append(at)
            training.save(3, folder)
            assert training.load(folder) == 3
            assert not [name for name in os.listdir(folder) if "saving" in name or "replaced" in name]
    assert counts[0] > 15, counts
    assert 3 <= counts[1] < 10, counts


@case(2)
def one_of_the_same_number_is_put_back() -> None:
    """The same where checkpoint 1 is to be replaced."""
    rank, _ = rank_and_size()
    with shared_folder() as folder:
        training, old = _old_and_new(folder)
        new, at = training.values(), 0
        while not _saves_although(training, folder, at if rank == 0 else -1, iteration=1):
            assert training.load(folder) == 1
            assert_same_values(training.values(), old, f"after operation {at} failed")
            training.steps(1, 2)
            at += 1
        assert at > 20, at
        assert training.load(folder) == 1
        assert_same_values(training.values(), new, "replaced")


def _saves_although(training: Training, folder: Path, at: int, iteration: int = 2) -> bool:
    """Whether all ranks saved; both say the same."""
    faulty = Faulty(at)
    with mock.patch.object(_disk, "os", faulty), mock.patch("pelton._training.checkpoint._folders.os", faulty):
        try:
            training.save(iteration, folder)
        except (RuntimeError, OSError) as error:
            assert "No space left" in str(error), error
            return False
    return True


@case(2)
def a_limit_of_the_systems_is_told_as_one() -> None:
    """Files of this process may not grow: nothing is simulated."""
    rank, _ = rank_and_size()
    with shared_folder() as folder:
        training, old = _old_and_new(folder)
        limited = files_of_at_most(512) if rank == 1 else contextlib.nullcontext()
        with limited, raises(RuntimeError, "File too large"):
            training.save(2, folder)
        assert training.load(folder) == 1
        assert_same_values(training.values(), old, "after the limit")
        training.save(2, folder)
        assert training.load(folder) == 2
