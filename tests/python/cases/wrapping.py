"""What a wrapped model does in each of the ways that it can be trained."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pelton.torch_api as bagua
import torch
from pelton.torch_api.algorithms.gradient_allreduce import GradientAllReduceAlgorithm
from pelton.torch_api.algorithms.power_sgd import PowerSGDAlgorithm
from pelton.torch_api.distributed import BaguaModule
from torch import nn

from cases.checks import (
    SHAPE,
    assert_same,
    assert_same_on_all_ranks,
    batch,
    expected,
    gradients,
    local_gradients,
    make_mlp,
    mean,
    mean_of,
    raises,
    rank_and_size,
    run_backward,
    seeded,
    square_loss,
    wrap,
)
from cases.registry import case


@case(2)
def parameters_on_the_root_module() -> None:
    model = wrap(nn.Linear(6, 3))
    assert [name for name, _ in model.bagua_ddp.bagua_build_params()] == ["weight", "bias"]
    model = wrap(seeded(bagua.get_rank(), lambda: nn.Linear(6, 3)))
    run_backward(model)
    assert_same(gradients(model), expected(lambda: nn.Linear(6, 3)))


@case(2)
def the_class_names_what_a_wrapped_model_has() -> None:
    named = make_mlp()
    BaguaModule.bagua_module_name(named, "the net")
    model = wrap(named)
    assert model.bagua_module_name == "the net"
    for name in ("bagua_ddp", "bagua_module_name", "bagua_algorithm", "bagua_optimizers", "bagua_buckets"):
        member = getattr(BaguaModule, name)
        assert member.__get__(model) is getattr(model, name)
    assert not hasattr(nn.Module, "bagua_module_name")


class _Heir(BaguaModule, nn.Linear):
    """As scripts inherit for the sake of the names. Threads: the test's. Owns: its layer."""


@case(2)
def a_class_may_inherit_the_names() -> None:
    model = _Heir(6, 3)
    assert not any(hasattr(model, name) for name in ("bagua_ddp", "bagua_module_name", "bagua_algorithm"))
    assert getattr(model, "bagua_buckets", None) is None
    with raises(AttributeError, "_Heir", "'bagua_ddp'"):
        model.bagua_ddp  # noqa: B018
    wrap(model)
    assert model.bagua_ddp.module is model
    assert not hasattr(copy.deepcopy(model), "bagua_ddp")


@case(2)
def shared_parameters_count_once() -> None:
    def make() -> Any:
        first, second = nn.Linear(6, 6), nn.Linear(6, 6)
        second.weight = first.weight
        return nn.Sequential(first, nn.Tanh(), second)

    model = wrap(seeded(bagua.get_rank(), make))
    assert [name for name, _ in model.bagua_ddp.bagua_build_params()] == ["0.weight", "0.bias", "2.bias"]
    run_backward(model)
    assert_same(gradients(model), expected(make))


@case(2)
def frozen_parameters_are_broadcast_and_left_alone() -> None:
    def make() -> Any:
        model = make_mlp()
        model[0].weight.requires_grad_(False)
        return model

    model = wrap(seeded(bagua.get_rank(), make))
    assert_same_on_all_ranks(list(model.parameters()))
    run_backward(model)
    assert_same(gradients(model), expected(make))
    assert model[0].weight.grad is None


class Branches(nn.Module):
    """Uses only the branches that it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(6, 3) for _ in range(3))
        self.used: tuple[int, ...] = (0, 1, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.branches[i](inputs) for i in self.used]).sum(0)


@case(2, 3)
def a_parameter_unused_on_some_ranks_counts_as_zeros() -> None:
    rank, size = rank_and_size()
    model, reference = wrap(seeded(rank, Branches)), seeded(0, Branches)
    for step in range(3):
        per_rank = []
        for r in range(size):
            reference.used = (0, 2) if r == step % size else (0, 1, 2)
            per_rank.append(local_gradients(reference, batch(r, step, *SHAPE)))
        model.used = (0, 2) if rank == step % size else (0, 1, 2)
        model.zero_grad()
        run_backward(model, step)
        assert_same(gradients(model), mean_of(per_rank))


@case(2)
def a_parameter_unused_on_all_ranks_keeps_its_gradient() -> None:
    rank, _ = rank_and_size()
    model = wrap(seeded(0, Branches))
    model.used = (0, 2)
    run_backward(model)
    weight: Any = model.branches[1].weight
    assert gradients(model)["branches.1.weight"] is None
    model.used = (0, 1, 2)
    run_backward(model, 1)
    before = weight.grad.clone()
    model.used = (2,)
    for step in (2, 3):
        square_loss(model, batch(rank, step, *SHAPE)).backward()
    assert torch.equal(weight.grad, before)
    assert_same_on_all_ranks([p.grad for p in model.parameters() if p.grad is not None])


@case(2)
def weight_decay_does_what_it_does_in_one_process() -> None:
    model, reference = seeded(0, Branches), seeded(0, Branches)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, weight_decay=0.5) for m in (model, reference)]
    wrap(model, optimizers[:1])
    for step in range(3):
        model.used = reference.used = (0, 2) if step != 1 else (0, 1, 2)
        for optimizer in optimizers:
            optimizer.zero_grad()
        inputs = batch(0, step, *SHAPE)  # the same on all ranks: the mean of two equal gradients is exact
        square_loss(model, inputs).backward()
        square_loss(reference, inputs).backward()
        for optimizer in optimizers:
            optimizer.step()
    assert_same(dict(model.named_parameters()), dict(reference.named_parameters()))


@case(2)
def gradients_accumulate_over_synchronised_backwards() -> None:
    model = wrap(seeded(0, make_mlp))
    reference = seeded(0, make_mlp)
    _rank, size = rank_and_size()
    run_backward(model, 0)
    run_backward(model, 1)
    first = mean_of([local_gradients(reference, batch(r, 0, *SHAPE)) for r in range(size)])
    second = [local_gradients(reference, batch(r, 1, *SHAPE)) for r in range(size)]
    expected = mean_of([{n: first[n] + g[n] for n in g} for g in second])
    assert_same(gradients(model), expected)


@case(2)
def a_gradient_that_a_pass_does_not_use_is_not_held_back_by_power_sgd() -> None:
    """Each step's second pass does not use what the first one did. Matrices of rank 1 arrive whole, and at once."""
    model, reference = seeded(0, Branches), seeded(0, Branches)
    model.with_bagua([], PowerSGDAlgorithm(rank=1, start_round=1, min_compression=1))
    for step in range(4):
        inputs = batch(0, step, 1, 6)  # the same on all ranks
        for one in (model, reference):
            one.zero_grad()
            for branch in (0, 1):
                one.used = (branch,)
                square_loss(one, inputs).backward()
        torch.testing.assert_close(gradients(model), gradients(reference))


@case(2)
def nested_no_sync_and_an_error_within() -> None:
    model = wrap(seeded(0, make_mlp))
    try:
        with model.no_sync(), model.no_sync():
            raise KeyError
    except KeyError:
        pass
    assert model.bagua_ddp.require_backward_grad_sync


@case(2)
def two_backward_passes_of_one_graph() -> None:
    rank, size = rank_and_size()
    model, reference = wrap(seeded(0, make_mlp)), seeded(0, make_mlp)
    loss = square_loss(model, batch(rank, 0, *SHAPE))
    loss.backward(retain_graph=True)
    loss.backward()
    once = [local_gradients(reference, batch(r, 0, *SHAPE)) for r in range(size)]
    first = mean_of(once)
    assert_same(gradients(model), mean_of([{n: first[n] + g[n] for n in g} for g in once]))


@case(2)
def two_losses_in_one_step() -> None:
    rank, size = rank_and_size()

    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 2), nn.Linear(6, 3)

        def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            hidden = self.trunk(inputs).tanh()
            return self.left(hidden), self.right(hidden)

    def grads(model: Any, inputs: torch.Tensor) -> list[dict[str, Any]]:
        found = []
        for which in (0, 1):
            model.zero_grad()
            model(inputs)[which].square().mean().backward()
            found.append(gradients(model))
        return found

    model, reference = wrap(seeded(0, TwoHeads)), seeded(0, TwoHeads)
    left, right = model(batch(rank, 0, *SHAPE))
    left.square().mean().backward(retain_graph=True)
    right.square().mean().backward()
    everyones = [grads(reference, batch(r, 0, *SHAPE)) for r in range(size)]
    for name, found in gradients(model).items():
        first = mean([e[0][name] for e in everyones])
        seconds = [e[1][name] for e in everyones]
        if first is not None and seconds[0] is not None:
            seconds = [first + second for second in seconds if second is not None]
        wanted = mean(seconds) if seconds[0] is not None else first
        assert found is not None
        assert wanted is not None
        assert torch.equal(found, wanted), name


class _Fails(torch.autograd.Function):
    """Passes its input on, and raises in backward."""

    @staticmethod
    def forward(_context: Any, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.clone()

    @staticmethod
    def backward(_context: Any, *_gradients: torch.Tensor) -> torch.Tensor:
        raise ValueError("as the test wants it")


@case(2)
def a_backward_that_fails_before_its_first_gradient() -> None:
    """It has reached the model's output, but no round has begun: the next backward is an ordinary one."""
    model = wrap(seeded(bagua.get_rank(), lambda: nn.Sequential(make_mlp(), _Failing())))
    with raises(ValueError, "as the test wants it"):
        run_backward(model)
    model[1].fails = False
    run_backward(model)
    found = {name.removeprefix("0."): gradient for name, gradient in gradients(model).items()}
    assert_same(found, expected(make_mlp))


class _Failing(nn.Module):
    fails = True

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return _Fails.apply(inputs) if self.fails else inputs


@case(2, 3)
def two_models_in_turns() -> None:
    rank, size = rank_and_size()
    models = [wrap(seeded(rank + i, make_mlp)) for i in (0, 1)]
    references = [seeded(i, make_mlp) for i in (0, 1)]
    for step in range(4):
        for i in (0, 1) if step % 2 == 0 else (1, 0):
            models[i].zero_grad()
            run_backward(models[i], 10 * i + step)
            per_rank = [local_gradients(references[i], batch(r, 10 * i + step, *SHAPE)) for r in range(size)]
            assert_same(gradients(models[i]), mean_of(per_rank))


@case(2)
def two_models_in_one_backward() -> None:
    rank, size = rank_and_size()
    first, second = wrap(seeded(rank, lambda: nn.Linear(6, 6))), wrap(seeded(rank + 5, lambda: nn.Linear(6, 2)))
    references = seeded(0, lambda: nn.Linear(6, 6)), seeded(5, lambda: nn.Linear(6, 2))
    for step in range(2):
        first.zero_grad()
        second.zero_grad()
        second(first(batch(rank, step, *SHAPE))).square().mean().backward()
        per_rank = []
        chain = nn.Sequential(*references)
        for r in range(size):
            per_rank.append(local_gradients(chain, batch(r, step, *SHAPE)))
        expected = mean_of(per_rank)
        found = {f"0.{n}": g for n, g in gradients(first).items()}
        found.update({f"1.{n}": g for n, g in gradients(second).items()})
        assert_same(found, expected)


@case(2, 3)
def two_models_in_one_backward_in_another_order_on_each_rank() -> None:
    """Rank 0 would wait for the first model, of which rank 1 launches the rest after it has waited for the second."""
    rank, size = rank_and_size()
    models = [wrap(seeded(rank + i, make_mlp)) for i in (0, 1)]
    references = [seeded(i, make_mlp) for i in (0, 1)]
    for step in range(3):
        losses = []
        for i in (0, 1) if (rank + step) % 2 == 0 else (1, 0):
            models[i].zero_grad()
            losses.append(models[i](batch(rank, 10 * i + step, *SHAPE)).square().mean())
        torch.stack(losses).sum().backward()
        for i in (0, 1):
            per_rank = [local_gradients(references[i], batch(r, 10 * i + step, *SHAPE)) for r in range(size)]
            assert_same(gradients(models[i]), mean_of(per_rank))


@case(1, 2)
def a_model_that_is_collected_while_something_is_traced() -> None:
    """A garbage collection may come at any time, also within the modes of torch.compile."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    model = wrap(seeded(0, make_mlp))
    run_backward(model, 0)
    kept = [parameter.grad for parameter in model.parameters()]
    values = [gradient.clone() for gradient in kept if gradient is not None]
    with FakeTensorMode():
        del model
        gc.collect()
    assert len(values) == len(kept)
    assert all(gradient is not None and torch.equal(gradient, value) for gradient, value in zip(kept, values))


@case(2)
def zero_grad_in_both_ways() -> None:
    _rank, size = rank_and_size()
    model, reference = wrap(seeded(0, make_mlp)), seeded(0, make_mlp)
    for step, to_none in enumerate((True, False, False, True, False)):
        model.zero_grad(set_to_none=to_none)
        run_backward(model, step)
        per_rank = [local_gradients(reference, batch(r, step, *SHAPE)) for r in range(size)]
        assert_same(gradients(model), mean_of(per_rank))


@case(2)
def wrapping_again_begins_anew() -> None:
    rank, size = rank_and_size()
    model = wrap(seeded(rank, make_mlp))
    run_backward(model)
    kept = gradients(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(rank)
    wrap(model, average=False)
    assert_same(gradients(model), kept)
    assert_same_on_all_ranks(list(model.parameters()))
    reference = seeded(0, make_mlp)
    model.zero_grad()
    run_backward(model)
    per_rank = [local_gradients(reference, batch(r, 0, *SHAPE)) for r in range(size)]
    assert_same(gradients(model), mean_of(per_rank, average=False))
    assert model.bagua_ddp.bagua_train_step_counter == 1


@case(2)
def gradients_not_flattened() -> None:

    model = seeded(bagua.get_rank(), make_mlp).with_bagua([], GradientAllReduceAlgorithm(), do_flatten=False)
    run_backward(model)
    assert_same(gradients(model), expected(make_mlp))


@case(2)
def evaluation_and_steps_are_told_apart() -> None:
    model = wrap(seeded(0, make_mlp))
    model.eval()
    with torch.no_grad():
        model(batch(0, 0, *SHAPE))
    assert model.bagua_ddp.bagua_train_step_counter == 0
    model.train()
    run_backward(model)
    with torch.no_grad():
        model(batch(0, 0, *SHAPE))
    assert model.bagua_ddp.bagua_train_step_counter == 1
    assert model.bagua_ddp.statistics()["rounds"] == 1


@case(2)
def a_forward_without_backward_is_harmless() -> None:
    model = wrap(seeded(bagua.get_rank(), make_mlp))
    for _ in range(3):
        model(batch(bagua.get_rank(), 0, *SHAPE))
    run_backward(model)
    assert_same(gradients(model), expected(make_mlp))


@case(2)
def gradients_survive_the_end_of_the_group() -> None:
    model = wrap(seeded(bagua.get_rank(), make_mlp))
    run_backward(model)
    bagua.destroy_process_group()
    assert_same(gradients(model), _expected_alone())


def _expected_alone() -> dict[str, Any]:
    reference, size = seeded(0, make_mlp), bagua.get_world_size()
    return mean_of([local_gradients(reference, batch(r, 0, *SHAPE)) for r in range(size)])


@case(2)
def the_gradient_of_a_large_last_layer_is_not_copied() -> None:
    """It is the first one that a backward pass makes, and is born in shared memory all the same."""
    model = wrap(nn.Sequential(nn.Linear(6, 64), nn.Linear(64, 2048)))
    copied = []
    for step in range(3):
        model.zero_grad()
        run_backward(model, step)
        copied.append(model.bagua_ddp.statistics()["copied_bytes"])
    assert copied[2] - copied[1] < model[1].weight.nbytes, copied
