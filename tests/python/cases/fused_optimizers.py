"""Fused optimizers of wrapped models: the weights are those of plain steps, bit for bit, wherever gradients lie."""

from __future__ import annotations

import copy
from typing import Any

import pelton
import torch
from pelton.torch_api.algorithms.base import Algorithm
from pelton.torch_api.contrib import fuse_optimizer

from cases.checks import (
    SHAPE,
    assert_same_on_all_ranks,
    batch,
    make_mlp,
    rank_and_size,
    run_backward,
    seeded,
    square_loss,
)
from cases.registry import case

STEPS = 9  # more than local SGD takes between rounds


def _trained(
    algorithm: str, is_flat: bool, fuses: str, sets_to_none: bool, kind: Any = torch.optim.AdamW
) -> tuple[Any, Any]:
    """A model and its optimizer after some steps.

    Args:
      algorithm: by name.
      is_flat: whether gradients lie in the model's buckets one after the other.
      fuses: when the optimizer is fused: "never", "before" or "after" wrapping, or "as it is", without do_flatten.
      sets_to_none: whether gradients are dropped after each step.
      kind: the optimizer's class.
    """
    model = seeded(0, make_mlp)
    optimizer = kind(model.parameters(), lr=0.01)
    if fuses in ("before", "as it is"):
        optimizer = fuse_optimizer(optimizer, do_flatten=fuses == "before")
    model = model.with_bagua([optimizer], Algorithm.init(algorithm), do_flatten=is_flat)
    if fuses == "after":
        optimizer = fuse_optimizer(optimizer)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=sets_to_none)
        run_backward(model, step)
        (optimizer.step if fuses == "never" else optimizer.fuse_step)()
    return model, optimizer


def _check(algorithm: str, *, equal_on_ranks: bool = True, gradients_lie_flat: bool = False) -> None:
    for is_flat in (False, True):
        for sets_to_none in (True, False):
            plain, _ = _trained(algorithm, is_flat, "never", sets_to_none)
            for fuses in ("before", "after", "as it is"):
                fused, optimizer = _trained(algorithm, is_flat, fuses, sets_to_none)
                for (name, one), other in zip(plain.named_parameters(), fused.parameters()):
                    assert torch.equal(one, other), (algorithm, is_flat, fuses, sets_to_none, name)
                is_fused = fuses != "as it is" and (not is_flat or gradients_lie_flat)
                expected = STEPS if is_fused else 0
                assert optimizer._bagua_fused_count == expected, (is_flat, fuses, optimizer._bagua_fused_count)
                if equal_on_ranks:
                    assert_same_on_all_ranks(list(fused.parameters()))


@case(1, 2, 3)
def gradients_are_communicated() -> None:
    _check("gradient_allreduce", gradients_lie_flat=True)


def _trained_with_flat_buckets(fuses: bool) -> tuple[Any, Any]:
    """Two groups whose parameters alternate in the bucket; steps alternate, a state is loaded, buckets change."""
    model = seeded(0, make_mlp)
    weights = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    groups: list[dict[str, Any]] = [{"params": weights}, {"params": others, "weight_decay": 0.3}]
    optimizer: Any = torch.optim.AdamW(groups, lr=0.01)
    optimizer = fuse_optimizer(optimizer) if fuses else optimizer
    model = model.with_bagua([optimizer], Algorithm.init("gradient_allreduce"))
    scaler = torch.amp.grad_scaler.GradScaler("cpu", init_scale=8.0)
    for step in range(4 * STEPS):
        optimizer.zero_grad(set_to_none=step % 5 != 0)
        if step == 6:
            pelton.autotune(model)
        if step % 4 == 3:
            scaler.scale(square_loss(model, batch(rank_and_size()[0], step, *SHAPE))).backward()
            optimizer.fuse_step(grad_scaler=scaler) if fuses else scaler.step(optimizer)
            scaler.update()
        else:
            run_backward(model, step)
            is_fused = fuses and step % 3 != 1
            (optimizer.fuse_step if is_fused else optimizer.step)()
        if step == 2 * STEPS:
            state = copy.deepcopy(optimizer.state_dict())
            optimizer.load_state_dict(state)
    return model, optimizer


@case(2)
def weights_and_gradients_lie_flat_together() -> None:
    plain, plain_optimizer = _trained_with_flat_buckets(False)
    fused, optimizer = _trained_with_flat_buckets(True)
    for (name, one), other in zip(plain.named_parameters(), fused.parameters()):
        assert torch.equal(one, other), name
    for one, other in zip(plain_optimizer.state.values(), optimizer.state.values()):
        for key, value in one.items():
            assert torch.equal(value, other[key]), key
    assert_same_on_all_ranks(list(fused.parameters()))


@case(2)
def one_pass_goes_over_a_buckets_memory() -> None:
    """The weights of a bucket lie as far apart as their gradients in it."""
    model = seeded(0, make_mlp)
    optimizer = fuse_optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    model = model.with_bagua([optimizer], Algorithm.init("gradient_allreduce"))
    for step in range(3):
        optimizer.zero_grad()
        run_backward(model, step)
        optimizer.fuse_step()
    ((gradients, slots),) = model.bagua_ddp.flat_buckets()
    parameters = dict(model.named_parameters())
    assert len(slots) == len(parameters)
    distances = {parameters[name].data_ptr() - begin * 4 for name, begin in slots}
    assert len(distances) == 1, "all in one flat memory"
    for name, begin in slots:
        gradient = parameters[name].grad
        assert gradient.data_ptr() == gradients.data_ptr() + begin * 4
        assert torch.equal(gradients[begin : begin + gradient.numel()], gradient.flatten())
    assert optimizer._bagua_fused_count == 3


@case(2)
def encoded_gradients() -> None:
    _check("bytegrad", gradients_lie_flat=True)


@case(2)
def weights_are_averaged() -> None:
    _check("decentralized", equal_on_ranks=False)


@case(2)
def weights_are_averaged_after_steps() -> None:
    _check("local_sgd", equal_on_ranks=False)
    _check("low_precision_decentralized", equal_on_ranks=False)


@case(2)
def under_torchs_own_wrapper() -> None:
    """Gradients in its buckets stay there."""
    for is_view in (True, False):
        nets = []
        for fuses in (False, True):
            net = seeded(0, make_mlp)
            optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
            if fuses:
                optimizer = fuse_optimizer(optimizer)
            if not torch.distributed.is_initialized():
                torch.distributed.init_process_group("pelton")
            wrapped = torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=is_view)
            for step in range(STEPS):
                optimizer.zero_grad()
                run_backward(wrapped, step)
                (optimizer.fuse_step if fuses else optimizer.step)()  # type: ignore[attr-defined]
            nets.append(net)
        torch.distributed.destroy_process_group()
        for one, other in zip(nets[0].parameters(), nets[1].parameters()):
            assert torch.equal(one, other)
