"""The calls that Bagua's seven examples make of it and of torch.distributed, in their order, on tiny data.

Each case is called after the example. They are written anew; what is left out is what Pelton does not offer yet
(`bagua.contrib`) and what only a GPU does.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pelton.torch_api
import torch
import torch.distributed as dist
from pelton.compat.aliases import PACKAGES
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, RandomSampler
from torch.utils.data.distributed import DistributedSampler

from cases.checks import assert_same
from cases.registry import case

_STANDINS = Path(__file__).resolve().parents[1] / "standins"
_ALGORITHMS = ("gradient_allreduce", "bytegrad", "decentralized", "low_precision_decentralized", "qadam", "async")
_LOCKSTEP = ("gradient_allreduce", "bytegrad", "qadam")  # ranks hold the same weights after every step


def _begin() -> Any:
    """What the examples import and call first."""
    for folder in (str(PACKAGES), str(_STANDINS)):
        if folder not in sys.path:
            sys.path.append(folder)
    bagua = importlib.import_module("bagua.torch_api")
    assert bagua is pelton.torch_api
    bagua.destroy_process_group()  # that of the test harness
    assert bagua.get_local_rank() < bagua.get_local_size()  # the device to be set, before anything else
    bagua.init_process_group()
    return bagua


def _algorithm(name: str, model: nn.Module, optimizer: Any, warmup_steps: int = 2) -> tuple[Any, Any]:
    """By its module and class, as all examples choose it."""
    modules = {"low_precision_decentralized": "decentralized", "qadam": "q_adam", "async": "async_model_average"}
    module: Any = importlib.import_module(f"bagua.torch_api.algorithms.{modules.get(name, name)}")
    if name == "qadam":
        optimizer = module.QAdamOptimizer(model.parameters(), lr=1e-3, warmup_steps=warmup_steps)
        return module.QAdamAlgorithm(optimizer), optimizer
    if name == "async":
        return module.AsyncModelAverageAlgorithm(sync_interval_ms=20), optimizer
    classes = {
        "gradient_allreduce": "GradientAllReduceAlgorithm",
        "bytegrad": "ByteGradAlgorithm",
        "decentralized": "DecentralizedAlgorithm",
        "low_precision_decentralized": "LowPrecisionDecentralizedAlgorithm",
    }
    return getattr(module, classes[name])(), optimizer


def _net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 5, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.1), nn.Flatten(), nn.Linear(144, 10)
    )


def _first_on_each_host(bagua: Any, load: Callable[[], Any], **options: Any) -> Any:
    """The download by one rank of each host: the others wait in a barrier of torch's."""
    if bagua.get_local_rank() == 0:
        data = load()
        dist.barrier(**options)
        return data
    dist.barrier(**options)
    return load()


def _epoch(model: nn.Module, loader: Any, optimizer: Any, steps: int = 3) -> None:
    model.train()
    for _, (images, labels) in zip(range(steps), loader):
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def _evaluate(model: nn.Module, loader: Any) -> float:
    model.eval()
    with torch.no_grad():
        return sum(functional.cross_entropy(model(images), labels).item() for images, labels in loader)


def _check_lockstep(name: str, model: nn.Module) -> None:
    weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    assert weights.isfinite().all()
    if name in _LOCKSTEP:
        everyones = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
        dist.all_gather(everyones, weights)
        assert_same({"weights": everyones[0]}, {"weights": weights})


@case(2, 4)
def communication_primitives() -> None:
    bagua = _begin()
    rank, size = bagua.get_rank(), bagua.get_world_size()
    comm = bagua.communication._get_default_group().get_global_communicator()
    for ours, theirs in _primitives(bagua, comm, rank, size):
        assert torch.equal(ours, theirs), (ours, theirs)


def _primitives(bagua: Any, comm: Any, rank: int, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Each operation by Bagua's name and by torch's: what both have made of the same tensors."""
    ours, theirs = torch.zeros(4), torch.zeros(4)
    if rank == 0:
        tensor = torch.rand(4)
        dist.send(tensor, 1)
        bagua.send(tensor, 1, comm=comm)
    elif rank == 1:
        dist.recv(theirs, 0)
        bagua.recv(ours, 0, comm=comm)
    yield ours, theirs
    ours, theirs = torch.full((4,), float(rank)), torch.full((4,), float(rank))
    dist.broadcast(theirs, 0)
    bagua.broadcast(ours, 0, comm=comm)
    yield ours, theirs
    sent, theirs = torch.rand(4), torch.zeros(4)
    summed, own = sent.clone(), sent.clone()
    dist.all_reduce(summed)
    bagua.allreduce(own, ours, comm=comm)
    yield ours, summed
    bagua.allreduce_inplace(own, comm=comm)
    yield own, summed
    summed, own = sent.clone(), sent.clone()
    dist.reduce(summed, 1)
    bagua.reduce(own, ours, dst=1, comm=comm)
    bagua.reduce_inplace(own, dst=1, comm=comm)
    if rank == 1:
        yield ours, summed
        yield own, summed
    parts = [torch.zeros(4) for _ in range(size)]
    dist.all_gather(parts, sent)
    gathered = torch.zeros(4 * size)
    bagua.allgather(sent, gathered, comm=comm)
    yield gathered, torch.cat(parts)
    chunks = [torch.rand(4) for _ in range(size)]
    dist.reduce_scatter(theirs, chunks)
    bagua.reduce_scatter(torch.cat(chunks), ours, comm=comm)
    yield ours, theirs
    dist.all_to_all(parts, chunks)
    bagua.alltoall(torch.cat(chunks), gathered, comm=comm)
    yield gathered, torch.cat(parts)
    counts, offsets = [2] * size, [2 * i for i in range(size + 1)]  # one entry more than there are ranks
    sent, ours, theirs = torch.arange(2.0 * size), torch.zeros(2 * size), torch.zeros(2 * size)
    dist.all_to_all_single(theirs, sent, counts, counts)
    bagua.alltoall_v(sent, counts, offsets, ours, counts, offsets, comm=comm)
    yield ours, theirs
    bagua.alltoall_v_inplace(sent, counts, offsets)
    yield sent, theirs


@case(2)
def mnist() -> None:
    for name in _ALGORITHMS:
        bagua = _begin()
        datasets: Any = importlib.import_module("torchvision").datasets
        data = _first_on_each_host(bagua, lambda: datasets.MNIST("../data", train=True, download=True))  # noqa: B023
        sampler: Any = DistributedSampler(data, num_replicas=bagua.get_world_size(), rank=bagua.get_rank())
        loader = DataLoader(data, 16, sampler=sampler, num_workers=int(name == "bytegrad"))
        tests = DataLoader(datasets.MNIST("../data", train=False), 32)
        model: Any = _net()
        algorithm, optimizer = _algorithm(name, model, torch.optim.Adadelta(model.parameters(), lr=1.0))
        model = model.with_bagua([optimizer], algorithm, do_flatten=True)
        scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
        for _ in range(2):
            if name == "async":
                model.bagua_algorithm.resume(model)
            _epoch(model, loader, optimizer)
            if name == "async":
                model.bagua_algorithm.abort(model)
            _evaluate(model, tests)
            scheduler.step()
        _check_lockstep(name, model)


@case(2)
def imagenet() -> None:
    bagua = _begin()
    torchvision: Any = importlib.import_module("torchvision")
    assert bagua.get_world_size() > 1
    model: Any = torchvision.models.__dict__["resnet18"]()
    algorithm, optimizer = _algorithm("qadam", model, None)
    scaler = torch.amp.GradScaler("cpu", enabled=False)  # type: ignore[attr-defined]
    model = model.with_bagua([optimizer], algorithm)
    data = torchvision.datasets.ImageFolder("train", torchvision.transforms.Compose([]))
    sampler: Any = DistributedSampler(data)  # how many and which, torch.distributed tells
    assert (sampler.num_replicas, sampler.rank) == (bagua.get_world_size(), bagua.get_rank())
    loader = DataLoader(data, 8, shuffle=False, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        model.train()
        for images, labels in loader:
            with torch.autocast("cpu", enabled=False):
                loss = functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        _evaluate(model, DataLoader(torchvision.datasets.ImageFolder("val"), 32))
    if bagua.get_rank() == 0:
        assert {"state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}
    _check_lockstep("qadam", model)


@case(2)
def squad() -> None:
    bagua = _begin()
    for _ in ("the pretrained model", "the features"):  # rank 0 first, the others find them in a cache
        if bagua.get_rank() != 0:
            dist.barrier()
        if bagua.get_rank() == 0:
            dist.barrier()
    data = [(torch.randn(6), i % 3) for i in range(32)]
    sampler: DistributedSampler[Any] = DistributedSampler(
        data,  # type: ignore[arg-type]
        num_replicas=bagua.get_world_size(),
        rank=bagua.get_rank(),
    )
    model: Any = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    first, *others = model.parameters()
    groups: list[dict[str, Any]] = [{"params": [first], "weight_decay": 0.1}, {"params": others}]
    algorithm, optimizer = _algorithm("bytegrad", model, torch.optim.AdamW(groups, lr=1e-3))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    model = model.with_bagua([optimizer], algorithm)
    model.zero_grad()
    for inputs, labels in DataLoader(data, 4, sampler=sampler):  # type: ignore[arg-type]
        model.train()
        functional.cross_entropy(model(inputs), labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        model.zero_grad()
    if bagua.get_rank() == 0:
        _evaluate(model, DataLoader(data, 8, sampler=RandomSampler(data)))  # type: ignore[arg-type]
    _check_lockstep("bytegrad", model)


@case(2)
def elastic_training() -> None:
    bagua = _begin()
    datasets: Any = importlib.import_module("torchvision").datasets
    devices = {"device_ids": [bagua.get_local_rank()]} if torch.cuda.is_available() else {}
    data = _first_on_each_host(bagua, lambda: datasets.MNIST("../data", train=True, download=True), **devices)
    sampler: Any = DistributedSampler(data, num_replicas=bagua.get_world_size(), rank=bagua.get_rank())
    model: Any = _net()
    algorithm, optimizer = _algorithm("gradient_allreduce", model, torch.optim.Adadelta(model.parameters()))
    kept = {"model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict()}
    model.load_state_dict(kept["model_state_dict"])
    optimizer.load_state_dict(kept["optimizer_state_dict"])
    model = model.with_bagua([optimizer], algorithm)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    _epoch(model, DataLoader(data, 16, sampler=sampler), optimizer)
    _evaluate(model, DataLoader(datasets.MNIST("../data", train=False), 32))
    scheduler.step()
    _check_lockstep("gradient_allreduce", model)


@case(2)
def synthetic_benchmark() -> None:
    for name in _ALGORITHMS:
        bagua = _begin()
        torch.manual_seed(bagua.get_rank())
        model: Any = importlib.import_module("torchvision").models.resnet50()
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01 * bagua.get_world_size())
        algorithm, optimizer = _algorithm(name, model, optimizer)
        model = model.with_bagua([optimizer], algorithm, do_flatten=True)
        images, labels = torch.randn(4, 3, 24, 24), torch.randint(0, 1000, (4,))
        _epoch(model, [(images, labels)] * 5, optimizer, steps=5)
        if name == "async":
            model.bagua_algorithm.abort(model)
        _check_lockstep(name, model)


class _Experts(nn.Module):
    """As the example's net, smaller: experts between two dense layers. Threads: the test's. Owns: its layers."""

    def __init__(self, bagua: Any) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.Conv2d(1, 4, 5, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(144, 16))
        self.fc2 = bagua.moe.MoE(16, nn.Linear(16, 16), 2, 2)
        self.fc3 = nn.Linear(16, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        mixed, _, _ = self.fc2(self.before(images).relu())
        return functional.log_softmax(self.fc3(mixed), dim=1)


@case(2)
def moe_mnist() -> None:
    """With each algorithm that the example offers, evaluation on all ranks, and the checkpoint at its end."""
    with tempfile.TemporaryDirectory() as own:
        for name in _ALGORITHMS:
            bagua = _begin()
            folder = bagua.broadcast_object(own)
            assert importlib.import_module("bagua.torch_api.model_parallel.moe").MoE is bagua.moe.MoE
            assert importlib.import_module("bagua.torch_api.moe") is bagua.moe
            assert importlib.import_module("bagua.torch_api.checkpoint") is bagua.checkpoint
            datasets: Any = importlib.import_module("torchvision").datasets
            data = _first_on_each_host(bagua, lambda: datasets.MNIST("../data", train=True, download=True))  # noqa: B023
            sampler: Any = DistributedSampler(data, num_replicas=bagua.get_world_size(), rank=bagua.get_rank())
            loader = DataLoader(data, 16, sampler=sampler)
            tests = DataLoader(datasets.MNIST("../data", train=False), 32)
            model: Any = _Experts(bagua)
            algorithm, optimizer = _algorithm(name, model, torch.optim.Adadelta(model.parameters(), lr=1.0))
            model = model.with_bagua([optimizer], algorithm)
            scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
            _epoch(model, loader, optimizer)
            _evaluate(model, tests)
            scheduler.step()
            if name == "async":
                model.bagua_algorithm.abort(model)
            before = {key: value.clone() for key, value in model.state_dict().items()}
            bagua.checkpoint.save_checkpoint(1000, folder, model, optimizer, scheduler)
            assert bagua.checkpoint.load_checkpoint(folder, model, optimizer, scheduler) == 1000
            assert_same(model.state_dict(), before)
            _evaluate(model, tests)
            assert model.fc2.bagua_moe.experts.bagua_experts[0].weight.isfinite().all()
            bagua.barrier()
