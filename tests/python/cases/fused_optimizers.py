"""Fused optimizers of wrapped models: the weights are those of plain steps, bit for bit, wherever gradients lie."""

from __future__ import annotations

from typing import Any

import torch
from pelton.torch_api.algorithms.base import Algorithm
from pelton.torch_api.contrib import fuse_optimizer

from cases.checks import assert_same_on_all_ranks, make_mlp, run_backward, seeded
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


def _check(algorithm: str, *, equal_on_ranks: bool = True) -> None:
    for is_flat in (False, True):
        for sets_to_none in (True, False):
            plain, _ = _trained(algorithm, is_flat, "never", sets_to_none)
            for fuses in ("before", "after", "as it is"):
                fused, optimizer = _trained(algorithm, is_flat, fuses, sets_to_none)
                for (name, one), other in zip(plain.named_parameters(), fused.parameters()):
                    assert torch.equal(one, other), (algorithm, is_flat, fuses, sets_to_none, name)
                expected = STEPS if fuses != "as it is" and not is_flat else 0
                assert optimizer._bagua_fused_count == expected, (is_flat, fuses, optimizer._bagua_fused_count)
                if equal_on_ranks:
                    assert_same_on_all_ranks(list(fused.parameters()))


@case(1, 2, 3)
def gradients_are_communicated() -> None:
    _check("gradient_allreduce")


@case(2)
def encoded_gradients() -> None:
    _check("bytegrad")


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
