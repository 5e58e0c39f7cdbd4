"""What PyTorch offers beside the plain loop: each works as under DDP, or is refused on every rank. The rows of the
table of habits in docs/python.md.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, cast

import pelton.torch_api as bagua
import torch
import torch.distributed.device_mesh
from pelton.errors import InvalidArgument
from pelton.torch_api.algorithms import Algorithm
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler

from cases.checks import assert_same_on_all_ranks, batch, raises, rank_and_size
from cases.programs import (
    ALGORITHMS,
    BY_GRADIENTS,
    EVERY,
    STEPS,
    Net,
    OnRank,
    World,
    assert_as_ddp,
    assert_refused,
    assert_same_under,
    of_output,
    plain,
    training,
    under,
    weights_of,
)
from cases.registry import case
from cases.torch_world import as_joining_leaves_it, beside_gloo, torch_world
from cases.user_algorithms import Centralized, Written


@case(2)
def clipped_gradients_schedulers_and_closures() -> None:
    def habit(world: World) -> Any:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        wrapped = world.wrap(model, [optimizer])
        for step in range(STEPS):

            def closure(step: int = step) -> torch.Tensor:
                optimizer.zero_grad(set_to_none=step % 2 == 0)
                loss = of_output(wrapped, world.batch(step))
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
                return loss

            optimizer.step(closure)
            scheduler.step()
        return model

    assert_as_ddp(habit)


@case(2)
def automatic_mixed_precision() -> None:
    def habit(world: World) -> Any:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.grad_scaler.GradScaler("cpu", init_scale=2.0**10)
        wrapped = world.wrap(model, [optimizer])
        for step in range(STEPS):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = wrapped(world.batch(step)).float().square().mean()
            if step == 2:
                loss = loss * float("inf")  # is skipped
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
        return model

    assert_as_ddp(habit, alone=False)  # bfloat16 rounds each rank's batch by itself


@case(2)
def a_scaler_that_skips_a_step_on_one_rank() -> None:
    """Each rank's scaler looks at its own gradients where those are not averaged: all ranks count the step still."""

    def habit_of(last: int, meets_every_other_step: bool) -> Callable[[World], Any]:
        def habit(world: World) -> Any:
            model = Net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.grad_scaler.GradScaler("cpu", init_scale=2.0**10)
            wrapped = world.wrap(model, [optimizer])
            for step in range(last):
                optimizer.zero_grad()
                loss = of_output(wrapped, world.batch(step))
                if step in (1, last - 1) and bagua.get_rank() == 1:
                    loss = loss * float("inf")  # is skipped
                before = [parameter.detach().clone() for parameter in model.parameters()]
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                assert any(not torch.equal(*pair) for pair in zip(before, model.parameters())) or bagua.get_rank() == 1
                if meets_every_other_step and step % 2 == 1:
                    assert_same_on_all_ranks(list(model.parameters()))
            assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())
            return model

        return habit

    for name in ("local_sgd", "diloco", "low_precision_decentralized", "decentralized"):
        for last in (4, 5):
            under(name, habit_of(last, name in ("local_sgd", "diloco")))
            bagua.barrier()


@case(2)
def recomputed_activations() -> None:
    def habit_of(use_reentrant: bool) -> Callable[[World], Any]:
        class Recomputing(Net):
            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                hidden = checkpoint(self.first, inputs.requires_grad_(), use_reentrant=use_reentrant)
                return self.second(hidden.tanh())

        return lambda world: training(world, Recomputing())

    for use_reentrant in (False, True):
        assert_as_ddp(habit_of(use_reentrant))
        assert_same_under(EVERY, habit_of(use_reentrant), plain)


@case(2)
def a_penalty_on_gradients() -> None:
    def penalised(wrapped: Any, inputs: torch.Tensor) -> torch.Tensor:
        inputs = inputs.requires_grad_()
        outputs = wrapped(inputs)
        (slope,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
        return outputs.square().mean() + slope.square().mean()

    def habit(world: World) -> Any:
        return training(world, Net(), loss=penalised)

    assert_as_ddp(habit, alone=False)  # its sum goes over the batch
    assert_same_under(("decentralized", "local_sgd"), habit, habit)


@case(2)
def two_models_against_each_other() -> None:
    def habit(world: World) -> Any:
        generator, critic = nn.Linear(6, 6), Net()
        optimizers = [world.optimizer(model.parameters()) for model in (generator, critic)]
        make: Any = world.wrap(generator, optimizers[:1])
        judge: Any = world.wrap(critic, optimizers[1:])
        for step in range(STEPS):
            optimizers[1].zero_grad()
            real, noise = world.batch(2 * step), world.batch(2 * step + 1)
            (judge(make(noise).detach()).square().mean() - judge(real).square().mean()).backward()
            optimizers[1].step()
            critic.requires_grad_(False)
            optimizers[0].zero_grad()
            judge(make(noise)).square().mean().backward()
            optimizers[0].step()
            critic.requires_grad_(True)
        return generator, critic

    assert_as_ddp(habit, exactly=False)
    assert_same_under(("decentralized", "local_sgd", "diloco"), habit, habit)


@case(2)
def averaged_copies_and_parametrizations() -> None:
    def habit(world: World) -> Any:
        model: Any = Net()
        nn.utils.parametrizations.weight_norm(model.first)
        average = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )
        optimizer = world.optimizer(model.parameters())
        wrapped = world.wrap(model, [optimizer])
        for step in range(STEPS):
            if step == 2 and not hasattr(wrapped, "device_ids"):  # under DDP a new parameter is never communicated
                average = torch.optim.swa_utils.AveragedModel(wrapped)
            optimizer.zero_grad()
            of_output(wrapped, world.batch(step)).backward()
            optimizer.step()
            average.update_parameters(model)
        assert not average.module._forward_pre_hooks
        return model

    assert_as_ddp(habit)
    assert_same_under(("decentralized", "local_sgd"), habit, habit)


@case(2)
def a_model_made_on_the_meta_device() -> None:
    def habit(world: World) -> Any:
        with torch.device("meta"):
            model = Net()
        model = model.to_empty(device="cpu")
        for layer in (model.first, model.second):
            layer.reset_parameters()
        return training(world, model)

    assert_as_ddp(habit)
    assert_refused(
        ("gradient_allreduce",), lambda world: training(world, Net().to("meta")), "'first.weight' is on meta"
    )


@case(2)
def wrapping_under_a_default_device() -> None:
    def habit(world: World) -> Any:
        model = Net()
        optimizer = world.optimizer(model.parameters())
        with torch.device("meta"):
            wrapped = world.wrap(model, [optimizer])
        for step in range(STEPS):
            optimizer.zero_grad()
            inputs = world.batch(step)
            with torch.device("meta"):
                of_output(wrapped, inputs).backward()
                optimizer.step()
        return model

    assert_same_under(EVERY, habit, plain)
    bagua.destroy_process_group()
    with torch.device("meta"):
        bagua.init_process_group()
        bagua.barrier()


@case(2)
def lbfgs() -> None:
    def habit_of(is_given: bool) -> Callable[[World], Any]:
        def habit(world: World) -> Any:
            model = Net()
            optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
            wrapped = world.wrap(model, [optimizer] if is_given else [])
            for step in range(2):

                def closure(step: int = step) -> torch.Tensor:
                    optimizer.zero_grad()
                    loss = of_output(wrapped, world.batch(step))
                    loss.backward()
                    return loss

                optimizer.step(closure)
            return model

        return habit

    assert_as_ddp(habit_of(False), exactly=False, alone=False)
    assert_refused(("gradient_allreduce", "local_sgd"), habit_of(True), "LBFGS keeps state")


@case(2)
def sparse_embeddings() -> None:
    def habit(world: World) -> Any:
        model: Any = nn.Sequential(nn.Embedding(5, 6, sparse=True), Net())
        world.wrap(model, [world.optimizer(model.parameters())])
        return model

    assert_refused(EVERY, habit, "'0.weight' has sparse gradients", "sparse=False")


@case(2)
def batches_from_worker_processes() -> None:
    def habit(world: World) -> Any:
        model = Net()
        optimizer = world.optimizer(model.parameters())
        wrapped = world.wrap(model, [optimizer])
        inputs = [world.batch(step) for step in range(STEPS)]
        for rows in torch.utils.data.DataLoader(inputs, batch_size=None, num_workers=2):  # type: ignore[arg-type]
            optimizer.zero_grad()
            of_output(wrapped, rows).backward()
            optimizer.step()
        return model

    assert_as_ddp(habit)
    assert_same_under(("decentralized", "local_sgd"), habit, plain)


@case(2)
def sharded_models() -> None:
    mesh_of = torch.distributed.device_mesh.init_device_mesh

    def sharded(world: World) -> Any:
        model = Net()
        fully_shard(model, mesh=mesh_of("cpu", (rank_and_size()[1],)))
        world.wrap(model, [world.optimizer(model.parameters())])
        return model

    def parallel(world: World) -> Any:
        model = Net()
        parallelize_module(model, mesh_of("cpu", (rank_and_size()[1],)), {"second": ColwiseParallel()})
        world.wrap(model, [world.optimizer(model.parameters())])
        return model

    def sharded_later(world: World) -> Any:
        model = Net()
        world.wrap(model, [world.optimizer(model.parameters())])
        fully_shard(model, mesh=mesh_of("cpu", (rank_and_size()[1],)))
        model(world.batch(0))
        return model

    def in_flat_shards(world: World) -> Any:
        model = Net()
        world.wrap(FullyShardedDataParallel(model, device_id=torch.device("cpu")), [])
        return model

    names = ("gradient_allreduce", "local_sgd")
    with torch_world("cpu:pelton"):
        assert_refused(names, in_flat_shards, "'the model' is a FullyShardedDataParallel")
        assert_refused(names, sharded, "'first.weight' is a DTensor", "fully_shard")
        assert_refused(names, parallel, "'second.weight' is a DTensor", "parallelize_module")
        assert_refused(names, sharded_later, "'the model' is a FSDPNet")


@case(2)
def torchs_ddp_around_or_within_is_refused_where_both_average_gradients() -> None:
    def around(world: World) -> Any:
        model = Net()
        world.wrap(model, [world.optimizer(model.parameters())])
        of_output(DistributedDataParallel(nn.Sequential(model, nn.Tanh()), process_group=gloo), world.batch(0))
        return model

    def within(world: World) -> Any:
        model = nn.Sequential(DistributedDataParallel(Net(), process_group=gloo))
        world.wrap(model, [world.optimizer(model.parameters())])
        return model

    names = (*BY_GRADIENTS, "qadam")
    with beside_gloo() as gloo:
        assert_refused(
            names, around, "around it averages the gradient of 'first.weight'", "call the wrapped model itself"
        )
        assert_refused(
            names, within, "averages the gradient of '0.module.first.weight' already", "wrap the plain model"
        )


@case(2)
def torchs_ddp_beside_a_wrapped_part_and_around_averaged_weights() -> None:
    """The reducers share nothing, or one of the two averages weights."""

    def beside(world: World) -> Any:
        model = Net()
        whole = nn.Sequential(model, nn.Linear(3, 2))
        ignored = [f"0.{name}" for name, _ in model.named_parameters()]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(whole, ignored)
        return trained(world, model, whole)

    def around(world: World) -> Any:
        model = Net()
        return trained(world, model, model)

    def trained(world: World, model: Any, whole: Any) -> Any:
        optimizer = world.optimizer(whole.parameters())
        world.wrap(model, [optimizer])
        outer = DistributedDataParallel(whole, process_group=gloo)
        for step in range(4):
            optimizer.zero_grad()
            of_output(outer, world.batch(step)).backward()
            optimizer.step()
        model.bagua_ddp.detach()
        return whole

    with beside_gloo() as gloo:
        for name, habit in (("gradient_allreduce", beside), ("local_sgd", around)):
            assert_same_on_all_ranks(under(name, habit))


@case(2)
def synchronised_batch_norm() -> None:
    def habit(world: World) -> Any:
        model: Any = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)))
        world.wrap(model, [world.optimizer(model.parameters())])
        return model

    assert_refused(("gradient_allreduce", "local_sgd"), habit, "'1' is a SyncBatchNorm", "torch_distributed=False")
    with as_joining_leaves_it():
        assert len(under("gradient_allreduce", habit)) == 4


@case(2)
def a_sampler_that_is_told_neither_rank_nor_world_size() -> None:
    items = list(batch(0, 0, 24, 6))

    def habit(world: World) -> Any:
        model = Net()
        optimizer = world.optimizer(model.parameters())
        wrapped = world.wrap(model, [optimizer])
        sampler: Any = DistributedSampler(items, seed=3)  # type: ignore[arg-type]
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for inputs in DataLoader(items, 4, sampler=sampler):  # type: ignore[arg-type]
                optimizer.zero_grad()
                of_output(wrapped, inputs).backward()
                optimizer.step()
        assert len(sampler) == 12
        return model

    def everything(world: World) -> Any:
        """What the two shares of each step are together, as the sampler deals them out: in turns."""
        model = Net()
        optimizer = world.optimizer(model.parameters())
        for epoch in range(2):
            order = torch.randperm(24, generator=torch.Generator().manual_seed(3 + epoch)).tolist()
            for begin in range(0, 24, 8):
                optimizer.zero_grad()
                of_output(model, torch.stack([items[i] for i in order[begin : begin + 8]])).backward()
                optimizer.step()
        return model

    with as_joining_leaves_it():
        ours = under("gradient_allreduce", habit)
    with beside_gloo() as gloo:
        theirs = weights_of(habit, OnRank(lambda model, _: DistributedDataParallel(model, process_group=gloo)))
    for mine, wanted, alone in zip(ours, theirs, weights_of(everything, World()), strict=True):
        assert torch.equal(mine, wanted)
        torch.testing.assert_close(mine, alone)


class _FailsOnRankOne(Net):
    def named_parameters(self, *arguments: Any, **options: Any) -> Any:
        if rank_and_size()[0] == 1:
            raise KeyError("a bug of the model's")
        return super().named_parameters(*arguments, **options)


@case(2)
def an_exception_of_the_models_while_it_is_wrapped() -> None:
    model: Any = _FailsOnRankOne()
    kind, text = (KeyError, "bug") if rank_and_size()[0] == 1 else (InvalidArgument, "rank 1 of the group: KeyError")
    with raises(kind, text):
        model.with_bagua([], "gradient_allreduce")
    bagua.barrier()


@case(2)
def functional_calls_with_tensors_of_the_callers() -> None:
    rank, _ = rank_and_size()
    for name in ("gradient_allreduce", "decentralized", "local_sgd"):
        model: Any = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.with_bagua([optimizer], Algorithm.init(name, **ALGORITHMS[name].options))
        for make in (lambda p: (p.detach() + rank).requires_grad_(), lambda p: nn.Parameter(p.detach() + rank)):
            weights = {key: make(parameter) for key, parameter in model.named_parameters()}
            before = {key: weight.detach().clone() for key, weight in weights.items()}
            for _ in range(2):
                torch.func.functional_call(model, weights, (batch(rank, 0, 4, 6),)).square().mean().backward()
            for key, weight in weights.items():
                assert torch.equal(weight, before[key]), f"{name}: {key} was written to"
                assert weight.grad is not None
        assert model.bagua_ddp.statistics()["rounds"] == 0
        found = torch.func.grad(
            lambda w, model=model: torch.func.functional_call(model, w, (batch(rank, 0, 4, 6),)).square().mean()
        )({key: parameter.detach() for key, parameter in model.named_parameters()})
        assert set(found) == set(weights)
        bagua.barrier()


@case(2)
def fast_weights() -> None:
    def habit(world: World) -> Any:
        model = Net()
        optimizer = world.optimizer(model.parameters())
        wrapped: Any = world.wrap(model, [optimizer])
        called = getattr(wrapped, "module", wrapped)
        for step in range(STEPS):
            optimizer.zero_grad()
            slow: dict[str, torch.Tensor] = dict(model.named_parameters())
            inner = torch.func.functional_call(called, slow, (world.batch(2 * step),)).square().mean()
            slopes = torch.autograd.grad(inner, list(slow.values()), create_graph=True)
            fast = {key: weight - 0.1 * slope for (key, weight), slope in zip(slow.items(), slopes)}
            torch.func.functional_call(called, fast, (world.batch(2 * step + 1),)).square().mean().backward()
            optimizer.step()
        return model

    assert_same_under(("gradient_allreduce", "decentralized", "local_sgd"), habit, habit)
    under("gradient_allreduce", habit)
    for weight in under("gradient_allreduce", habit):
        assert_same_on_all_ranks([weight])


@case(2)
def models_that_torch_jit_has_made() -> None:
    def habit_of(make: Callable[[nn.Module], Any]) -> Callable[[World], Any]:
        return lambda world: training(world, make(Net()))

    makers: tuple[Callable[[nn.Module], Any], ...] = (
        torch.jit.script,
        lambda model: torch.jit.trace(model, torch.zeros(4, 6)),
        lambda model: nn.Sequential(torch.jit.script(model)),
        lambda model: nn.Sequential(_loaded(torch.jit.script(model))),
    )
    for make in makers:
        assert_as_ddp(habit_of(make), exactly=False)  # what is compiled rounds in its own way
        for name in ("decentralized", "local_sgd"):
            torch.testing.assert_close(under(name, habit_of(make)), under(name, plain))


def _loaded(scripted: Any) -> Any:
    """Its parameters are no nn.Parameter."""
    file = io.BytesIO()
    torch.jit.save(scripted, file)
    file.seek(0)
    return torch.jit.load(file)


@case(2)
def a_loaded_part_is_trained_by_algorithms_in_python_and_may_change() -> None:
    model = nn.Sequential(_loaded(torch.jit.script(Net())), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped: Any = cast(Any, model).with_bagua([optimizer], Written(Centralized))
    assert len(wrapped.bagua_ddp.bagua_build_params()) == 6
    for step in range(4):
        if step == 2:
            model[1] = nn.Linear(3, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.zero_grad()
        of_output(wrapped, batch(bagua.get_rank(), step, 4, 6)).backward()
        optimizer.step()
        assert_same_on_all_ranks(list(model.parameters()))


@case(2)
def gradients_whose_memory_is_given_to_other_processes() -> None:
    """`share_memory_()` gives the storage of a gradient other memory, as a queue of torch.multiprocessing does."""

    def share_gradients(model: nn.Module) -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.share_memory_()

    def habit_of(share: Callable[[nn.Module], Any], set_to_none: bool, width: int = 6) -> Callable[[World], Any]:
        def habit(world: World) -> Any:
            model = nn.Sequential(nn.Linear(6, width), nn.Linear(width, width))
            optimizer = world.optimizer(model.parameters())
            wrapped = world.wrap(model, [optimizer])
            for step in range(STEPS):
                optimizer.zero_grad(set_to_none=set_to_none)
                of_output(wrapped, world.batch(step)).backward()
                if step % 2 == 1:
                    share(model)
                optimizer.step()
            return model

        return habit

    for set_to_none in (True, False):
        for share in (share_gradients, nn.Module.share_memory):
            assert_same_under(EVERY, habit_of(share, set_to_none), habit_of(lambda _: None, set_to_none))
        large = habit_of(share_gradients, set_to_none, 1024)  # a segment of its own, where it is born
        assert_same_under(BY_GRADIENTS, large, habit_of(lambda _: None, set_to_none, 1024))


@case(2)
def a_gradient_that_is_given_other_memory_while_it_is_communicated() -> None:
    def habit(world: World) -> Any:
        first, second = nn.Linear(6, 1024), nn.Linear(1024, 1024)
        model = nn.Sequential(first, second, nn.Linear(1024, 3))
        wrapped = world.wrap(model, [world.optimizer(model.parameters())])
        of_output(wrapped, world.batch(0)).backward()
        before = [parameter.detach().clone() for parameter in model.parameters()]

        def share(_: torch.Tensor) -> None:
            if second.weight.grad is not None:
                second.weight.grad.share_memory_()

        first.weight.register_post_accumulate_grad_hook(share)
        model.zero_grad()
        try:
            of_output(wrapped, world.batch(1)).backward()
        finally:
            assert all(map(torch.equal, model.parameters(), before))
        return model

    assert_refused(("gradient_allreduce",), habit, "'1.weight' was given other memory", ends_job=True)
