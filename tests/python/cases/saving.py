"""Checkpoints of whole jobs: what goes on from one goes on as if it had not stopped."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pelton.torch_api as bagua
import torch
from pelton.torch_api.algorithms import GlobalAlgorithmRegistry
from pelton.torch_api.algorithms.decentralized import DecentralizedAlgorithm
from pelton.torch_api.algorithms.diloco import DiLoCoAlgorithm
from pelton.torch_api.algorithms.gradient_allreduce import GradientAllReduceAlgorithm, GradientAllReduceAlgorithmImpl
from pelton.torch_api.algorithms.local_sgd import LocalSGDAlgorithm
from pelton.torch_api.checkpoint import load_checkpoint, save_checkpoint
from pelton.torch_api.data_parallel import DistributedDataParallel
from torch import nn

from cases.checks import batch, raises, rank_and_size, seeded
from cases.programs import ALGORITHMS, Kind, Under
from cases.registry import case

KINDS = {
    **ALGORITHMS,
    "power_sgd": Kind("power_sgd", {"min_compression": 1, "rank": 1}),
    "one bit": Kind("bytegrad", {"hierarchical": False, "codec": "one_bit"}),
    "delayed": Kind("diloco", {"interval": 8, "fragments": 2, "delay": 3}),
    "delayed shares": Kind("push_sum", {"interval": 4, "delay": 2}),
}


class Net(nn.Module):
    """With buffers that each rank has of its own. Threads: the test's. Owns: its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(inputs)
        return found


class Training:
    """A wrapped model with what steps it. Threads: the test's. Owns: them."""

    def __init__(self, kind: Kind, seed: int, make: Callable[[], Any] = Net, group: Any = None) -> None:
        world = Under(kind, group)
        self.model: Any = seeded(seed + rank_and_size()[0], make)
        self.optimizer = world.optimizer(self.model.parameters())
        self.model = world.wrap(self.model, [self.optimizer])
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [3, 6], gamma=0.5)

    def steps(self, begin: int, end: int) -> None:
        rank, _ = rank_and_size()
        for step in range(begin, end):
            self.optimizer.zero_grad()
            torch.manual_seed(100 * step + rank)
            found = self.model(batch(rank, step, 8, 6))
            outputs = found if isinstance(found, tuple) else (found,)
            sum((output.square().mean() for output in outputs), torch.tensor(0.0)).backward()
            self.optimizer.step()
            self.scheduler.step()

    def save(self, iteration: int, folder: Path) -> None:
        save_checkpoint(iteration, folder, self.model, self.optimizer, self.scheduler)

    def load(self, folder: Path, **options: bool) -> int:
        return load_checkpoint(folder, self.model, self.optimizer, self.scheduler, **options)

    def values(self) -> dict[str, Any]:
        """A copy of everything that a step depends on."""
        found: dict[str, Any] = {name: value.clone() for name, value in self.model.state_dict().items()}
        for index, state in self.optimizer.state_dict()["state"].items():
            for name, value in state.items():
                found[f"{index} {name}"] = value.clone() if isinstance(value, torch.Tensor) else value
        found["lr"] = [group["lr"] for group in self.optimizer.param_groups]
        return found


def assert_same_values(found: dict[str, Any], wanted: dict[str, Any], what: str) -> None:
    """Bitwise."""
    assert found.keys() == wanted.keys(), (what, set(found) ^ set(wanted))
    for name, value in wanted.items():
        is_same = torch.equal(found[name], value) if isinstance(value, torch.Tensor) else found[name] == value
        assert is_same, f"{what}: {name} differs"


@contextlib.contextmanager
def shared_folder() -> Iterator[Path]:
    """One that all ranks use, for the time of a case."""
    rank, _ = rank_and_size()
    name: str = bagua.broadcast_object(tempfile.mkdtemp(prefix="pelton-saving-") if rank == 0 else "")
    yield Path(name)
    bagua.barrier()
    if rank == 0:
        shutil.rmtree(name)


def check_goes_on(name: str, make: Callable[[], Any] = Net) -> None:
    with shared_folder() as folder:
        undisturbed = Training(KINDS[name], 0, make)
        undisturbed.steps(0, 5)
        undisturbed.save(5, folder)
        saved = undisturbed.values()
        undisturbed.steps(5, 10)
        undisturbed.model.bagua_ddp.detach()
        resumed = Training(KINDS[name], 70, make)
        resumed.steps(33, 35)  # leaves something that must not stay
        assert resumed.load(folder) == 5
        assert_same_values(resumed.values(), saved, f"{name}, loaded")
        resumed.steps(5, 10)
        assert_same_values(resumed.values(), undisturbed.values(), f"{name}, resumed")
        resumed.model.bagua_ddp.detach()


@case(1, 2, 3)
def every_algorithm_goes_on() -> None:
    """Bit by bit: weights, buffers, optimizer and learning rate of each rank."""
    others = {"async", "async_model_average", "asynchronous_pairs", "asynchronous_push_sum"}
    repeating = set(GlobalAlgorithmRegistry.available_algorithms()) - others
    assert {kind.name for kind in KINDS.values()} >= repeating
    for name in KINDS:
        check_goes_on(name)


@case(2)
def ranks_keep_only_what_differs() -> None:
    """Of gradient allreduce nothing but statistics; of local SGD, between its rounds, weights and momenta."""
    rank, _ = rank_and_size()
    with shared_folder() as folder:
        for name, has_weights in (("gradient_allreduce", False), ("local_sgd", True)):
            training = Training(KINDS[name], 0)
            training.steps(0, 3)
            training.save(3, folder)
            own = torch.load(folder / "iter_0000003" / f"pelton_rank_{rank:05d}_states.pt", weights_only=True)["own"]
            assert (("model", "layers.1.running_mean") in own) == (rank == 1)
            assert (("model", "layers.0.weight") in own) == (has_weights and rank == 1), own.keys()
            training.model.bagua_ddp.detach()


@case(2)
def files_are_baguas() -> None:
    """Names and contents, and a checkpoint of a plain model is loaded as Bagua loads it."""
    with shared_folder() as folder:
        training = Training(KINDS["gradient_allreduce"], 0)
        training.steps(0, 2)
        training.save(12, folder)
        assert (folder / "latest_checkpointed_iteration.txt").read_text() == "12"
        found = torch.load(folder / "iter_0000012" / "mp_rank_00_model_states.pt", weights_only=True)
        assert set(found) == {"iteration", "model", "optimizer", "lr_scheduler"}
        assert found["iteration"] == 12
        other = Training(KINDS["gradient_allreduce"], 50)
        other.model.load_state_dict(found["model"])
        other.optimizer.load_state_dict(found["optimizer"])
        other.scheduler.load_state_dict(found["lr_scheduler"])
        wanted = {name: p.detach() for name, p in training.model.named_parameters()}
        assert_same_values({name: p.detach() for name, p in other.model.named_parameters()}, wanted, "plain")


@case(2)
def several_optimizers_and_wrapped_parts() -> None:
    """Two models that are trained against each other, in one container."""
    rank, _ = rank_and_size()
    with shared_folder() as folder:

        def make(seed: int) -> tuple[Any, list[Any]]:
            parts = nn.ModuleDict({name: seeded(seed + rank, Net) for name in ("one", "two")})
            optimizers = [
                torch.optim.Adam(part.parameters(), lr=0.01 * (i + 1)) for i, part in enumerate(parts.values())
            ]
            for part, optimizer in zip(parts.values(), optimizers):
                part.with_bagua([optimizer], LocalSGDAlgorithm(interval=3))  # type: ignore[operator]
            return parts, optimizers

        def train(parts: Any, optimizers: list[Any], begin: int, end: int) -> None:
            for step in range(begin, end):
                for part, optimizer in zip(parts.values(), optimizers):
                    optimizer.zero_grad()
                    part(batch(rank, step, 8, 6)).square().mean().backward()
                    optimizer.step()

        first, second = make(0), make(30)
        train(*first, 0, 4)
        save_checkpoint(4, folder, first[0], first[1])
        train(*first, 4, 8)
        assert load_checkpoint(folder, second[0], second[1]) == 4
        train(*second, 4, 8)
        assert_same_values(second[0].state_dict(), first[0].state_dict(), "container")
        with raises(ValueError, "optimizer: ", "has 2, 1 are given"):
            load_checkpoint(folder, second[0], second[1][0])


@case(2)
def the_interface_of_torchs_class() -> None:
    """Names begin with "module.", as its state_dict's do."""
    rank, _ = rank_and_size()
    with shared_folder() as folder:
        models = [DistributedDataParallel(seeded(seed + rank, Net), algorithm="decentralized") for seed in (0, 50)]
        models[0](batch(rank, 0, 8, 6)).square().mean().backward()
        save_checkpoint(1, folder, models[0])
        assert load_checkpoint(folder, models[1]) == 1
        assert_same_values(models[1].state_dict(), models[0].state_dict(), "DDP")
        assert all(name.startswith("module.") for name in models[0].state_dict())


@case(2)
def nothing_to_load_is_zero() -> None:
    with shared_folder() as folder:
        assert Training(KINDS["gradient_allreduce"], 0).load(folder / "none") == 0


@case(2)
def a_folder_beside_a_checkpoints_files_stays_when_it_is_saved_again() -> None:
    with shared_folder() as folder:
        model: Any = nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.with_bagua([optimizer], GradientAllReduceAlgorithm())
        save_checkpoint(10, str(folder), model, optimizer)
        if bagua.get_rank() == 0:
            (folder / "iter_0000010" / "tokenizer").mkdir()
            (folder / "iter_0000010" / "tokenizer" / "words").write_text("a b")
        bagua.barrier()
        for iteration in (10, 20, 30):
            save_checkpoint(iteration, str(folder), model, optimizer)
        assert (folder / "iter_0000010" / "tokenizer" / "words").read_text() == "a b"
        assert not [entry.name for entry in folder.iterdir() if entry.name.startswith(".")]
        assert load_checkpoint(str(folder), model, optimizer) == 30


@case(2)
def a_release_is_loaded() -> None:
    rank, _ = rank_and_size()
    with shared_folder() as folder:
        training = Training(KINDS["gradient_allreduce"], 0)
        training.steps(0, 2)
        save_checkpoint(9, folder, training.model)
        bagua.barrier()
        if rank == 0:
            os.rename(folder / "iter_0000009", folder / "release")
            (folder / "latest_checkpointed_iteration.txt").write_text("release\n")
        bagua.barrier()
        other = Training(KINDS["gradient_allreduce"], 50)
        assert other.load(folder) == 0
        assert_same_values(other.model.state_dict(), training.model.state_dict(), "release")


@case(2)
def strict_is_passed_on() -> None:
    rank, _ = rank_and_size()
    with shared_folder() as folder:
        save_checkpoint(1, folder, seeded(rank, Net).with_bagua([], "gradient_allreduce"))
        larger = nn.ModuleDict({"layers": seeded(40 + rank, Net).layers, "more": nn.Linear(2, 2)})
        larger.with_bagua([], "gradient_allreduce")  # type: ignore[operator]
        with raises(RuntimeError, "more.weight"):
            load_checkpoint(folder, larger)
        assert load_checkpoint(folder, larger, strict=False) == 1
        wanted = seeded(0, Net).state_dict()
        found = {name: value for name, value in larger.state_dict().items() if "running" not in name}
        assert torch.equal(found["layers.0.weight"], wanted["layers.0.weight"])


@case(2)
def another_algorithm_begins_anew() -> None:
    """From rank 0's state, and only if it is asked for; on another number of ranks, too."""
    rank, _ = rank_and_size()
    with shared_folder() as folder:
        alone = bagua.new_group([0])
        mine = Training(Kind("local_sgd", {"interval": 3}), 0)
        mine.steps(0, 2)
        saved = mine.values()
        mine.save(2, folder)
        everyones = bagua.broadcast_object({name: value for name, value in saved.items() if name != "lr"})
        mine.model.bagua_ddp.detach()
        other = Training(KINDS["gradient_allreduce"], 40)
        with raises(ValueError, "local_sgd", "gradient_allreduce"):
            other.load(folder)
        assert other.load(folder, algorithm_state=False) == 2
        found = {name: value for name, value in other.values().items() if name != "lr"}
        assert_same_values(found, everyones, "begun anew")
        other.steps(2, 4)
        if rank == 0:
            plain = seeded(3, Net)
            single = plain.with_bagua(torch.optim.SGD(plain.parameters(), 0.1), DiLoCoAlgorithm(interval=3), alone)
            with raises(ValueError, "local_sgd", "diloco"):
                load_checkpoint(folder, single)
            assert load_checkpoint(folder, single, algorithm_state=False) == 2
            single.bagua_ddp.detach()
        bagua.barrier()


@case(2)
def averaging_beside_training_goes_on_after_a_save() -> None:
    """And what was stopped stays so, after loading as well."""
    with shared_folder() as folder:
        training = Training(Kind("async", {"sync_interval_ms": 1}), 0)
        training.steps(0, 3)
        training.save(3, folder)
        before = training.model.bagua_ddp.statistics()["rounds"]
        _until(lambda: training.model.bagua_ddp.statistics()["rounds"] > before + 2)
        training.model.bagua_algorithm.abort(training.model)
        saved = training.values()
        training.save(4, folder)
        assert training.load(folder) == 4
        assert_same_values(training.values(), saved, "async")
        assert not training.model.bagua_ddp._rounds.is_averaging
        training.model.bagua_algorithm.resume(training.model)
        training.steps(3, 6)
        training.model.bagua_algorithm.abort(training.model)


def _until(condition: Callable[[], bool]) -> None:
    """Polls; the job's own limit ends a wait that is in vain."""
    while not condition():
        pass


class _Counting(GradientAllReduceAlgorithmImpl):
    """Written in Python, with something to remember. Threads: the test's. Owns: a count."""

    count = 0

    def registered(self) -> None:  # type: ignore[override]
        return None

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = int(state["count"])


class _CountingAlgorithm(GradientAllReduceAlgorithm):
    """Threads: a value. Owns: its options."""

    def reify(self, process_group: Any) -> GradientAllReduceAlgorithmImpl:
        return _Counting(process_group, self.hierarchical)


@case(2)
def an_algorithm_written_in_python_gets_back_what_it_told() -> None:
    rank, _ = rank_and_size()
    with shared_folder() as folder:
        model = seeded(rank, Net).with_bagua([], _CountingAlgorithm())
        model.bagua_algorithm.count = 5 + rank
        save_checkpoint(1, folder, model)
        other = seeded(9, Net).with_bagua([], _CountingAlgorithm())
        assert load_checkpoint(folder, other) == 1
        assert other.bagua_algorithm.count == 5 + rank


@case(2)
def a_plain_model_needs_no_wrapping() -> None:
    rank, _ = rank_and_size()
    with shared_folder() as folder:
        save_checkpoint(1, folder, seeded(rank, Net))
        other = seeded(20, Net)
        assert load_checkpoint(folder, other) == 1
        assert_same_values(other.state_dict(), seeded(rank, Net).state_dict(), "plain")


@case(2)
def decentralized_ranks_have_weights_of_their_own() -> None:
    """Each rank loads its own, and not rank 0's."""
    rank, _ = rank_and_size()
    with shared_folder() as folder:
        model = seeded(rank, Net).with_bagua([], DecentralizedAlgorithm(hierarchical=False))
        with torch.no_grad():
            model.layers[0].weight.fill_(rank + 1)
        save_checkpoint(1, folder, model)
        with torch.no_grad():
            model.layers[0].weight.fill_(7)
        load_checkpoint(folder, model)
        assert model.layers[0].weight.eq(rank + 1).all()
