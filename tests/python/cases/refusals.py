"""What is refused when a model is wrapped or trained, and with which words."""

from __future__ import annotations

import gc
from typing import Any, cast

import pelton
import pelton.torch_api as bagua
import torch
from pelton.errors import FailedPrecondition, InvalidArgument, PeltonError, Unsupported
from pelton.torch_api.algorithms import Algorithm, GlobalAlgorithmRegistry
from pelton.torch_api.algorithms.gradient_allreduce import GradientAllReduceAlgorithm
from torch import nn

from cases.checks import batch, raises, rank_and_size, seeded, square_loss, wrap
from cases.registry import case

SHAPE = (4, 6)


def _mlp() -> Any:
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3))


@case(2)
def models_without_trainable_parameters() -> None:
    with raises(InvalidArgument, "ReLU", "no trainable parameter"):
        wrap(nn.ReLU())
    with raises(InvalidArgument, "no trainable parameter"):
        wrap(_mlp().requires_grad_(False))


@case(2)
def arguments_of_the_wrong_kind() -> None:
    model: Any = nn.Linear(6, 3)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    with raises(InvalidArgument, "model", "must be a torch.nn.Module", "is a function"):
        pelton.wrap(cast(Any, _mlp), optimizer)
    with raises(InvalidArgument, "optimizers: must be an optimizer, or several, is a Linear"):
        pelton.wrap(optimizer, model)
    with raises(InvalidArgument, "optimizers", "is a NoneType"):
        model.with_bagua(None, "gradient_allreduce")
    with raises(InvalidArgument, "'qadam'", "2 are given", "q_adam_optimizer="):
        pelton.wrap(model, [optimizer, optimizer], "qadam")


@case(2)
def models_on_mixed_devices() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    with raises(InvalidArgument, "mixed devices", "'0.weight' is on cpu", "'1.weight' on meta"):
        wrap(model)
    with raises(InvalidArgument, "'weight' is on meta"):
        wrap(nn.Linear(2, 2, device="meta"))


@case(2)
def sparse_gradients_of_a_layer() -> None:
    with raises(InvalidArgument, "'0.weight'", "sparse=False"):
        wrap(nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 2)))
    with raises(InvalidArgument, "'weight'", "EmbeddingBag"):
        wrap(nn.EmbeddingBag(5, 3, sparse=True))
    frozen = nn.Sequential(nn.Embedding(5, 3, sparse=True).requires_grad_(False), nn.Linear(3, 2))
    wrap(frozen)


@case(2)
def sparse_gradients_that_come_as_a_surprise() -> None:
    class Lookup(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.ones(5, 3))

        def forward(self, indices: torch.Tensor) -> torch.Tensor:
            return nn.functional.embedding(indices, self.table, sparse=True)

    model = wrap(Lookup())
    with raises(PeltonError, "table", "sparse"):
        model(torch.tensor([1, 2])).sum().backward()


@case(2)
def parameters_without_a_shape() -> None:
    with raises(InvalidArgument, "'weight'", "forward pass"):
        wrap(nn.LazyLinear(3))


@case(2)
def a_group_that_is_not_initialised() -> None:
    bagua.destroy_process_group()
    with raises(RuntimeError, "init_process_group"):
        wrap(_mlp())


@case(2)
def training_after_the_group_has_ended() -> None:
    model = wrap(seeded(0, _mlp))
    bagua.destroy_process_group()
    with raises(FailedPrecondition, "process group was destroyed"):
        model(batch(0, 0, *SHAPE))
    with torch.no_grad():
        model(batch(0, 0, *SHAPE))
    model.eval()(batch(0, 0, *SHAPE))


@case(2)
def models_of_different_shapes() -> None:
    rank, _ = rank_and_size()
    with raises(InvalidArgument, "2.weight", "[3, 10]", "[4, 10]"):
        wrap(nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3 + rank)))


@case(3)
def models_of_different_dtypes() -> None:
    rank, _ = rank_and_size()
    model = _mlp()
    if rank == 2:
        model[2].double()
    with raises(InvalidArgument, "2.weight", "float64", *(() if rank == 2 else ("rank 2",))):
        wrap(model)


@case(2)
def models_with_different_numbers_of_tensors() -> None:
    rank, _ = rank_and_size()
    model = _mlp()
    if rank == 1:
        model.append(nn.Linear(3, 3))
    with raises(InvalidArgument, "3.weight", "6 tensors", "4"):
        wrap(model)


@case(2)
def parameters_that_only_some_ranks_train() -> None:
    rank, _ = rank_and_size()
    model = _mlp()
    if rank == 1:
        model[0].weight.requires_grad_(False)
    with raises(PeltonError, "0."):
        wrap(model)


@case(2)
def a_model_that_only_one_rank_cannot_wrap() -> None:
    rank, _ = rank_and_size()
    model = _mlp() if rank == 0 else _mlp().requires_grad_(False)
    with raises(InvalidArgument, "no trainable parameter", *(("rank 1",) if rank == 0 else ())):
        wrap(model)


@case(2)
def algorithms_that_differ() -> None:
    rank, _ = rank_and_size()
    with raises(PeltonError, "average"):
        wrap(_mlp(), average=rank == 0)


@case(2)
def optimizers_that_cannot_be_served() -> None:
    rank, _ = rank_and_size()
    model = _mlp()
    with raises(ValueError, "LBFGS"):
        wrap(model, [torch.optim.LBFGS(model.parameters())])
    with raises(InvalidArgument, "optimizers[0]", "str"):
        model.with_bagua(["sgd"], GradientAllReduceAlgorithm())
    kind = torch.optim.SGD if rank == 0 else torch.optim.Adam
    with raises(InvalidArgument, "SGD", "Adam"):
        wrap(model, [kind(model.parameters(), lr=0.1)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if rank == 0:
        optimizer.param_groups[0]["decay"] = lambda step: 0.9**step
    with raises(InvalidArgument, "SGD.param_groups[0]['decay']", "function"):
        wrap(model, [optimizer])


@case(2)
def algorithms_that_cannot_be_served() -> None:
    with raises(InvalidArgument, "algorithm='gradient_alreduce'", "gradient_allreduce"):
        _mlp().with_bagua([], "gradient_alreduce")
    with raises(InvalidArgument, "algorithm", "3"):
        _mlp().with_bagua([], 3)
    with raises(Unsupported, "Algorithm"):
        _mlp().with_bagua([], Algorithm())
    with raises(KeyError, "gradient_allreduce"):
        Algorithm.init("gradient_alreduce")
    with raises(ValueError, "registered already"):
        GlobalAlgorithmRegistry.register("gradient_allreduce", GradientAllReduceAlgorithm)
    algorithm = Algorithm.init("gradient_allreduce", average=False)
    assert isinstance(algorithm, GradientAllReduceAlgorithm)
    with raises(InvalidArgument, "process_group"):
        _mlp().with_bagua([], algorithm, "world")


@case(2)
def a_parameter_of_two_models() -> None:
    first = _mlp()
    second = nn.Sequential(first[0], nn.Linear(10, 2))
    wrap(first)
    with raises(InvalidArgument, "'0.weight' is already communicated as '0.weight'", "detach()"):
        wrap(second)


@case(2)
def a_parameter_of_a_model_that_nobody_holds_any_more() -> None:
    """It may be taken over, also where one rank's garbage collector has not been since: all ranks go on, or none."""

    def pretrained() -> Any:
        whole = nn.Sequential(_mlp(), nn.Linear(3, 2))
        wrap(whole)
        return whole[0]

    gc.disable()
    try:
        body = pretrained()
        if rank_and_size()[0] == 0:
            gc.collect()
        wrap(nn.Sequential(body, nn.Linear(3, 4)))
    finally:
        gc.enable()


@case(2)
def expanded_tensors() -> None:
    """Rank 0 would send them, and the others could not take them."""
    scaled = _mlp()
    scaled.scale = nn.Parameter(torch.ones(1).expand(6))
    with raises(InvalidArgument, "'scale' is expanded (shape [6], strides [0])", "clone()"):
        wrap(scaled)
    masked = _mlp()
    masked.register_buffer("mask", torch.ones(3, 1).expand(3, 4))
    with raises(InvalidArgument, "'mask' is expanded", "clone()"):
        wrap(masked)
    placed = _mlp()
    placed.register_buffer("places", torch.arange(5).expand(1, -1))  # as in many language models: nothing is doubled
    wrap(placed)
    empty = _mlp()
    empty.register_buffer("none", torch.empty(0, 1).expand(0, 4))
    wrap(empty)


@case(2)
def a_failed_round_is_told_again_at_the_next_forward() -> None:
    """Nothing goes on silently after an error in backward."""
    rank, _ = rank_and_size()
    bagua.destroy_process_group()
    bagua.init_process_group(timeout=2)
    model = wrap(seeded(0, _mlp))
    if rank == 0:
        with raises(PeltonError):
            square_loss(model, batch(rank, 0, *SHAPE)).backward()
        with raises(PeltonError):
            model(batch(rank, 0, *SHAPE))
    else:
        import time

        time.sleep(4)


@case(2)
def adding_onto_a_gradient_that_is_a_sum_over_ranks() -> None:
    model = wrap(nn.Linear(6, 3), average=False)
    rank, _ = rank_and_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad(set_to_none=True)
        square_loss(model, batch(rank, step, *SHAPE)).backward()
        optimizer.step()
    bagua.barrier()  # who is refused tells the others, whatever they are at
    with raises(FailedPrecondition, "average=False", "zero_grad"):
        square_loss(model, batch(rank, 3, *SHAPE)).backward()
