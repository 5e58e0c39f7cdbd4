"""Re-entrant and other checkpointing: gradients that come from backward passes within backward passes."""

from __future__ import annotations

import pelton.torch_api as bagua
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from cases.checks import (
    SHAPE,
    assert_same,
    batch,
    expected,
    gradients,
    local_gradients,
    make_mlp,
    mean_of,
    rank_and_size,
    run_backward,
    seeded,
    wrap,
)
from cases.registry import case


class _Checkpointed(nn.Module):
    """Every layer recomputed in backward."""

    reentrant = True

    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Linear(6, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.outward = nn.Linear(8, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.inward(inputs).tanh()
        for layer in self.layers:
            hidden = checkpoint(lambda h, layer=layer: layer(h).tanh(), hidden, use_reentrant=self.reentrant)
        return self.outward(hidden)


class _CheckpointedWithoutReentry(_Checkpointed):
    reentrant = False


class _CheckpointedFirst(_Checkpointed):
    """The whole trunk is checkpointed and one parameter unused, so that the last gradient comes from within."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        inputs = inputs.clone().requires_grad_()

        def trunk(x: torch.Tensor) -> torch.Tensor:
            return self.layers[1](self.layers[0](self.inward(x)).tanh())

        return self.outward(checkpoint(trunk, inputs, use_reentrant=True))


@case(2, 3)
def reentrant_checkpointing() -> None:
    model = wrap(seeded(bagua.get_rank(), _Checkpointed))
    run_backward(model)
    assert_same(gradients(model), expected(_Checkpointed))
    model.zero_grad()
    run_backward(model, 1)
    assert_same(gradients(model), expected(_Checkpointed, 1))


@case(2, 3)
def checkpointing_without_reentry() -> None:
    model = wrap(seeded(bagua.get_rank(), _CheckpointedWithoutReentry))
    run_backward(model)
    assert_same(gradients(model), expected(_CheckpointedWithoutReentry))


@case(2)
def reentrant_checkpointing_with_an_unused_parameter() -> None:
    """What backward() leaves is the result, before any optimizer step (gradients may be clipped there)."""
    model = wrap(seeded(bagua.get_rank(), _CheckpointedFirst))
    for step in range(2):
        model.zero_grad()
        run_backward(model, step)
        assert_same(gradients(model), expected(_CheckpointedFirst, step))


class _CheckpointedThroughout(_Checkpointed):
    """Every gradient comes from within a checkpoint, and two layers are unused."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(self.inward, inputs.clone().requires_grad_(), use_reentrant=True)
        hidden = checkpoint(self.layers[0], hidden, use_reentrant=True)
        return checkpoint(self.outward, hidden, use_reentrant=True)


@case(2, 3)
def clipping_after_gradients_that_all_come_from_within_checkpoints() -> None:
    """No gradient belongs to the outermost backward, whose end must be the round's all the same."""
    rank, size = rank_and_size()
    models = model, reference = [seeded(seed, _CheckpointedThroughout) for seed in (rank, 0)]
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in models]
    wrap(model, optimizers[:1])
    for step in range(3):
        model.zero_grad()
        run_backward(model, step)
        wanted = mean_of([local_gradients(reference, batch(r, step, *SHAPE)) for r in range(size)])
        for name, parameter in reference.named_parameters():
            parameter.grad = wanted[name]
        assert_same(gradients(model), wanted)
        norms = [nn.utils.clip_grad_norm_(each.parameters(), 0.01) for each in models]
        assert norms[0] == norms[1] > 0.01, norms
        for optimizer in optimizers:
            optimizer.step()
        assert_same(dict(model.named_parameters()), dict(reference.named_parameters()))
    assert model.bagua_ddp.statistics()["rounds"] == 3


@case(2)
def the_whole_model_within_a_checkpoint() -> None:
    rank, size = rank_and_size()
    model, reference = wrap(seeded(rank, make_mlp)), seeded(0, make_mlp)
    inputs = batch(rank, 0, *SHAPE).requires_grad_()
    for use_reentrant in (True, False):
        model.zero_grad()
        checkpoint(model, inputs, use_reentrant=use_reentrant).square().mean().backward()
        assert_same(gradients(model), mean_of([local_gradients(reference, batch(r, 0, *SHAPE)) for r in range(size)]))
