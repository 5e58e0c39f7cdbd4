"""A rank of test_accelerate.py: `accelerate_main.py FOLDER`. Prints a line for each check that holds; errors end it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pelton
import pelton.torch_api as bagua
import pytest
import torch
from accelerate.state import AcceleratorState
from accelerate.utils import DataLoaderConfiguration, DDPCommunicationHookType, DistributedDataParallelKwargs
from pelton._training import _session
from pelton._training.checkpoint._beside import FILE
from pelton.accelerate import _INSTEAD, Accelerator
from pelton.errors import FailedPrecondition, InvalidArgument, Unsupported
from pelton.torch_api.data_parallel import DistributedDataParallel
from torch import nn
from torch.distributed.algorithms.join import Join

STEPS = 8


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def batch(rank: int, step: int) -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * rank + step))


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def by_wrap(algorithm: str, every: int) -> torch.Tensor:
    model, optimizer = make()
    model = pelton.wrap(model, optimizer, algorithm)
    for step in range(STEPS):
        is_last = (step + 1) % every == 0
        machinery: Any = model.bagua_ddp
        machinery.require_backward_grad_sync = is_last
        (model(batch(pelton.rank(), step)).square().sum() / every).backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
    return weights(model)


def by_accelerate(algorithm: str, every: int) -> torch.Tensor:
    accelerator = Accelerator(algorithm=algorithm, cpu=True, gradient_accumulation_steps=every)
    assert accelerator.num_processes == 2
    model, optimizer = accelerator.prepare(*make())
    for step in range(STEPS):
        with accelerator.accumulate(model):
            accelerator.backward(model(batch(accelerator.process_index, step)).square().sum())
            optimizer.step()
            optimizer.zero_grad()
    return weights(model)


def check(algorithm: str, every: int) -> None:
    mine = by_accelerate(algorithm, every)
    assert torch.equal(mine, by_wrap(algorithm, every))
    first = mine.clone()
    bagua.broadcast(first, src=0)
    assert torch.equal(mine, first), "the ranks differ"


def check_wrapped_before() -> None:
    """A model that has been wrapped keeps its algorithm."""
    accelerator = Accelerator(algorithm="bytegrad", cpu=True)
    model, optimizer = make()
    pelton.wrap(model, optimizer, "gradient_allreduce")
    machinery: Any = model.bagua_ddp
    prepared, optimizer = accelerator.prepare(model, optimizer)
    assert prepared is model and model.bagua_ddp is machinery
    for step in range(STEPS):
        accelerator.backward(model(batch(accelerator.process_index, step)).square().sum())
        optimizer.step()
        optimizer.zero_grad()
    assert torch.equal(weights(model), by_wrap("gradient_allreduce", 1))


def check_own_class() -> None:
    """A model in Pelton's class of torch's name is a wrapped one."""
    accelerator = Accelerator(algorithm="bytegrad", cpu=True)
    model, optimizer = make()
    wrapped = DistributedDataParallel(model, optimizers=[optimizer])
    machinery: Any = wrapped.inner
    prepared, optimizer = accelerator.prepare(wrapped, optimizer)
    assert prepared is wrapped and wrapped.inner is machinery
    assert accelerator.unwrap_model(prepared) is model
    for step in range(STEPS):
        with accelerator.accumulate(prepared):
            accelerator.backward(prepared(batch(accelerator.process_index, step)).square().sum())
            optimizer.step()
            optimizer.zero_grad()
    assert torch.equal(weights(model), by_wrap("gradient_allreduce", 1))


# How the environment says that this process is one of two.
OF_TWO: list[dict[str, str]] = [
    {"RANK": "0", "WORLD_SIZE": "2"},
    {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"},
    {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"},
]


def check_alone() -> None:
    """Accelerate without `cpu=True` and without GPUs: each rank would train by itself, and nobody would say so."""
    if torch.cuda.is_available():
        return
    for variables in OF_TWO:
        with pytest.MonkeyPatch.context() as environment:
            for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
                environment.delenv(name)
            for name, value in variables.items():
                environment.setenv(name, value)
            with pytest.raises(FailedPrecondition, match=r"2 processes were started, .* Pass cpu=True"):
                Accelerator()
        AcceleratorState._reset_state(reset_partial_state=True)


def check_hooks() -> None:
    """Each hook of torch's DistributedDataParallel is refused, with what does its work."""
    for hook in set(DDPCommunicationHookType) - {DDPCommunicationHookType.NO}:
        handler = DistributedDataParallelKwargs(comm_hook=hook)
        with pytest.raises(Unsupported, match="Leave the hook out") as refused:
            Accelerator(cpu=True, kwargs_handlers=[handler])
        assert str(refused.value).endswith(f"give Accelerator {_INSTEAD[hook.value]}")
    for instead in set(_INSTEAD.values()):
        arguments = eval(f"dict({instead})")
        pelton.algorithm(arguments["algorithm"], **arguments.get("algorithm_options", {}))
    handler = DistributedDataParallelKwargs(find_unused_parameters=True)
    Accelerator(cpu=True, kwargs_handlers=[handler])


def check_trigger() -> None:
    """As Accelerate's text shows it, and with the backward passes inside `no_sync`, too: the sum is averaged."""
    accelerator = Accelerator(cpu=True)
    for is_inside in (False, True):
        model, optimizer = accelerator.prepare(*make())
        with accelerator.no_sync(model):
            losses = [model(batch(accelerator.process_index, step)).square().sum() for step in range(2)]
            if is_inside:
                accelerator.backward(losses[0])
                with accelerator.trigger_sync_in_backward(model):
                    accelerator.backward(losses[1])
                assert not model.bagua_ddp.require_backward_grad_sync, "as before"
        if not is_inside:
            accelerator.backward(losses[0])
            with accelerator.trigger_sync_in_backward(model):
                accelerator.backward(losses[1])
        optimizer.step()
        plain, plain_optimizer = make()
        sum(plain(batch(rank, step)).square().sum() / 2 for rank in range(2) for step in range(2)).backward()
        plain_optimizer.step()
        torch.testing.assert_close(weights(model), weights(plain))
    with accelerator.trigger_sync_in_backward(make()[0]):
        pass  # one that is not prepared


def check_evaluation() -> None:
    """A model that could be trained, and is not, comes without an optimizer."""
    model, _ = make()
    with pytest.raises(InvalidArgument, match=r"without an optimizer .* prepare_model\(model, evaluation_mode=True\)"):
        Accelerator(cpu=True).prepare(model)
    with pytest.raises(InvalidArgument, match=r"Sequential would be trained by .*, not by 'local_sgd'"):
        Accelerator(cpu=True, algorithm="local_sgd").prepare_model(model)
    assert Accelerator(cpu=True).prepare_model(model, evaluation_mode=True) is model


def check_uneven() -> None:
    """What cannot be evened out is refused; with even batches the context does nothing."""
    accelerator, (model, optimizer, _) = prepared("gradient_allreduce")
    with pytest.raises(Unsupported, match="equally many batches"), accelerator.join_uneven_inputs([model], False):
        pass
    with pytest.raises(Unsupported, match="equally many batches"):
        joinable: Any = DistributedDataParallel(make()[0])
        Join([joinable])
    with accelerator.join_uneven_inputs([model]):
        accelerator.backward(model(batch(accelerator.process_index, 0)).square().sum())
        optimizer.step()
    uneven = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(even_batches=False))
    with pytest.raises(Unsupported, match="equally many batches"), uneven.join_uneven_inputs([model]):
        pass


def prepared(algorithm: str, **options: Any) -> tuple[Accelerator, tuple[Any, Any, Any]]:
    accelerator = Accelerator(algorithm=algorithm, algorithm_options=options, cpu=True)
    model, optimizer = make()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    return accelerator, accelerator.prepare(model, optimizer, scheduler)


def go_on(accelerator: Accelerator, parts: tuple[Any, Any, Any], first: int) -> torch.Tensor:
    model, optimizer, scheduler = parts
    for step in range(first, first + 5):
        accelerator.backward(model(batch(accelerator.process_index, step)).square().sum())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return weights(model)


def check_resumed() -> None:
    """Bit by bit where ranks run apart, or hold back what messages dropped; each after five steps, which end none of
    `local_sgd`'s intervals.
    """
    tried: dict[str, dict[str, Any]] = {
        "local_sgd": {"interval": 3},
        "bytegrad": {"codec": "one_bit", "error_feedback": True},
        "decentralized": {},
    }
    for algorithm, options in tried.items():
        folder = str(Path(sys.argv[1]) / algorithm)
        accelerator, parts = prepared(algorithm, **options)
        go_on(accelerator, parts, 0)
        accelerator.save_state(folder)
        wanted = go_on(accelerator, parts, 5)
        accelerator, parts = prepared(algorithm, **options)
        accelerator.load_state(folder)
        assert torch.equal(go_on(accelerator, parts, 5), wanted), algorithm

    accelerator, parts = prepared("gradient_allreduce")
    folder = str(Path(sys.argv[1]) / "local_sgd")
    with pytest.raises(InvalidArgument, match="local_sgd"):
        accelerator.load_state(folder)
    accelerator.load_state(folder, algorithm_state=False)
    mine = go_on(accelerator, parts, 5)
    first = mine.clone()
    bagua.broadcast(first, src=0)
    assert torch.equal(mine, first), "all ranks have begun at rank 0's state"


def check_missing(saved: Path) -> None:
    """A folder that has come to some hosts without the ranks' file, or that each host has written for itself."""
    accelerator, _ = prepared("local_sgd", interval=3)
    if accelerator.process_index == 1:
        saved = Path(shutil.copytree(saved, saved.with_name("without"), ignore=shutil.ignore_patterns(FILE)))
    with pytest.raises(InvalidArgument, match=rf"{FILE}: rank {accelerator.process_index} .* and other ranks"):
        accelerator.load_state(str(saved))
    accelerator.project_configuration.save_on_each_node = True
    accelerator.save_state(str(saved.with_name("one host")))
    with pytest.MonkeyPatch.context() as session, pytest.raises(Unsupported, match="save_on_each_node=True"):
        session.setattr(_session.current(), "hosts", [0, 1])
        accelerator.save_state(str(saved.with_name("each host")))


if __name__ == "__main__":
    check_alone()
    check_evaluation()
    check_hooks()
    check_uneven()
    teacher = Accelerator(cpu=True).prepare(make()[0].requires_grad_(False))
    assert "bagua_ddp" not in teacher.__dict__, "a frozen model needs no communication"
    print("refused", flush=True)
    check("gradient_allreduce", 1)
    print("trained", flush=True)
    check("bytegrad", 2)
    print("accumulated", flush=True)
    check_trigger()
    print("triggered", flush=True)
    check_wrapped_before()
    print("wrapped before", flush=True)
    check_own_class()
    print("own class", flush=True)
    check_resumed()
    check_missing(Path(sys.argv[1]) / "local_sgd")
    print("resumed", flush=True)
