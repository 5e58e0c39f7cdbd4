"""What programs of PyTorch do around BlueFog's optimizers and windows: checkpoints, negated views, compilers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pelton.bluefog.torch as bf
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from cases.bluefog_operations import raises
from cases.registry import case

STEPS = 6
INTERVAL = 2
Run = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def _loss_backward(run: Run, net: nn.Module, inputs: torch.Tensor) -> None:
    run(net, inputs).square().mean().backward()


def _trained(
    make: Callable[..., Any],
    run: Run,
    passes: int,
    backward: Callable[[Run, nn.Module, torch.Tensor], None] = _loss_backward,
) -> torch.Tensor:
    """A rank's weights after steps of `passes` calls of `backward` each; every second forward pass communicates."""
    torch.manual_seed(bf.rank())
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    optimizer = make(torch.optim.SGD(net.parameters(), lr=0.1), net, num_steps_per_communication=INTERVAL)
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(passes):
            generator = torch.Generator().manual_seed(1000 * bf.rank() + 10 * step + part)
            inputs = torch.randn(5, 4, generator=generator, dtype=torch.float64)
            backward(run, net, inputs)
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()])


def _recomputed(net: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = checkpoint(net, inputs, use_reentrant=False)
    return result


def _recomputed_by_a_backward_pass_of_its_own(net: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = checkpoint(net, inputs.requires_grad_(), use_reentrant=True)
    return result


@case(2, 3)
def a_pass_that_is_computed_again_counts_once() -> None:
    """A checkpoint around the whole model calls it within the backward pass, too."""
    bf.init(bf.RingGraph)
    kinds = (
        bf.DistributedAdaptWithCombineOptimizer,
        bf.DistributedAdaptThenCombineOptimizer,
        bf.DistributedGradientAllreduceOptimizer,
    )
    for make in kinds:
        for passes in (1, INTERVAL):
            plain = _trained(make, _plainly, passes)
            for run in (_recomputed, _recomputed_by_a_backward_pass_of_its_own):
                assert torch.equal(_trained(make, run, passes), plain), (make.__name__, passes, run.__name__)


def _beside_an_ordinary_pass(run: Run, net: nn.Module, inputs: torch.Tensor) -> None:
    net(inputs * 2).square().mean().backward()
    _loss_backward(run, net, inputs)


def _after_a_pass_that_is_dropped(run: Run, net: nn.Module, inputs: torch.Tensor) -> None:
    net(inputs * 2)
    _loss_backward(run, net, inputs)


def _within_another(run: Run, net: nn.Module, inputs: torch.Tensor) -> None:
    def whole(given: torch.Tensor) -> torch.Tensor:
        return run(net, given * 2)

    if run is not _plainly:
        result: Any = checkpoint(whole, inputs.requires_grad_(), use_reentrant=run is not _recomputed)
    else:
        result = whole(inputs)
    result.square().mean().backward()


def _with_a_penalty_on_gradients(run: Run, net: nn.Module, inputs: torch.Tensor) -> None:
    """Walks the graph twice."""
    result = run(net, inputs.requires_grad_())
    (slope,) = torch.autograd.grad(result.square().sum(), inputs, create_graph=True)
    (result.square().mean() + slope.square().sum()).backward()


def _plainly(net: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = net(inputs)
    return result


@case(2)
def passes_around_one_that_is_computed_again_count_as_they_are() -> None:
    bf.init(bf.RingGraph)
    make = bf.DistributedAdaptWithCombineOptimizer
    for backward in (_beside_an_ordinary_pass, _after_a_pass_that_is_dropped, _within_another):
        plain = _trained(make, _plainly, 1, backward)
        for run in (_recomputed, _recomputed_by_a_backward_pass_of_its_own):
            again = _trained(make, run, 1, backward)
            assert torch.allclose(again, plain, rtol=0, atol=1e-12), (backward.__name__, run.__name__)
    plain = _trained(make, _plainly, 1, _with_a_penalty_on_gradients)  # which a reentrant checkpoint has not
    assert torch.allclose(_trained(make, _recomputed, 1, _with_a_penalty_on_gradients), plain, rtol=0, atol=1e-12)


@case(2, 3)
def a_view_that_negates_is_put_as_it_reads() -> None:
    """`x.conj().imag` is such a view: its memory has the value with the other sign. One of several elements has others
    between them, so that it is copied in any case.
    """
    bf.init(bf.RingGraph)
    window = torch.zeros(1, dtype=torch.float64)
    assert bf.win_create(window, "negated", zero_init=True)
    value = torch.tensor([2j], dtype=torch.complex128).conj().imag
    assert value.is_neg()
    assert value.is_contiguous()
    bf.win_put(value, "negated", self_weight=0.5)
    bf.win_accumulate(value, "negated")
    bf.barrier()
    sources = len(bf.in_neighbor_ranks())
    assert bf.win_update_then_collect("negated").item() == -3.0 * sources
    assert value.item() == -1.0, "its own weight scales what it reads as"
    bf.barrier()
    assert bf.win_free("negated")


@case(2)
def a_step_within_a_compiled_function_runs_as_it_is() -> None:
    bf.init(bf.RingGraph)
    torch.manual_seed(bf.rank())
    net = nn.Linear(3, 1).double()
    optimizer: Any = bf.DistributedWinPutOptimizer(torch.optim.SGD(net.parameters(), lr=0.0), net)
    optimizer.force_barrier = True
    mean = bf.allreduce(net.weight.detach())

    def step() -> None:
        optimizer.step()

    net(torch.ones(2, 3, dtype=torch.float64)).sum().backward()
    torch.compile(step, backend="eager")()
    assert torch.allclose(net.weight, mean)
    bf.barrier()
    optimizer.unregister_window()


@case(1)
def what_is_no_tensor_or_name_is_an_error_with_the_name_of_the_call() -> None:
    bf.init(bf.RingGraph)
    bf.set_machine_topology(bf.RingGraph(1))
    window = torch.zeros(3)
    bf.win_create(window, "window")
    calls: dict[str, tuple[Callable[[Any], object], ...]] = {
        "allreduce": (bf.allreduce, bf.allreduce_, bf.allreduce_nonblocking, bf.allreduce_nonblocking_),
        "broadcast": (
            lambda value: bf.broadcast(value, 0),
            lambda value: bf.broadcast_(value, 0),
            lambda value: bf.broadcast_nonblocking(value, 0),
            lambda value: bf.broadcast_nonblocking_(value, 0),
        ),
        "allgather": (bf.allgather, bf.allgather_nonblocking),
        "neighbor_allreduce": (bf.neighbor_allreduce, bf.neighbor_allreduce_nonblocking),
        "neighbor_allgather": (bf.neighbor_allgather, bf.neighbor_allgather_nonblocking),
        "hierarchical_neighbor_allreduce": (
            bf.hierarchical_neighbor_allreduce,
            bf.hierarchical_neighbor_allreduce_nonblocking,
        ),
        "win_create": (lambda value: bf.win_create(value, "other"),),
        "win_put": (lambda value: bf.win_put(value, "window"), lambda value: bf.win_put_nonblocking(value, "window")),
        "win_accumulate": (lambda value: bf.win_accumulate(value, "window"),),
    }
    for name, ways in calls.items():
        for way in ways:
            for value in (3.0, None, [1.0], np.zeros(3, np.float32)):
                text = f"^{name}: tensor is of type {type(value).__name__}; must be a torch.Tensor"
                raises(TypeError, text, partial(way, value))
    for broadcast in (bf.broadcast, bf.broadcast_, bf.broadcast_nonblocking, bf.broadcast_nonblocking_):
        text = "^broadcast: root_rank='0' is of type str; must be a rank"
        raises(TypeError, text, partial(broadcast, window, root_rank="0"))  # type: ignore[arg-type]
    optimizer = torch.optim.SGD([window], lr=0.1)
    text = "^broadcast_optimizer_state: root_rank=None is of type NoneType; must be a rank"
    raises(TypeError, text, lambda: bf.broadcast_optimizer_state(optimizer, root_rank=None))  # type: ignore[arg-type]
    text = "^optimizer is of type float; must be a torch.optim.Optimizer"
    raises(TypeError, text, lambda: bf.broadcast_optimizer_state(3.0, root_rank=0))  # type: ignore[arg-type]
    raises(TypeError, "^allreduce: name=7: must be a string", lambda: bf.allreduce(window, name=7))  # type: ignore[arg-type]
    raises(TypeError, "^win_create: name=7: must be a string", lambda: bf.win_create(window, 7))  # type: ignore[arg-type]
    assert bf.get_current_created_window_names() == ["window"]
    bf.shutdown()


@case(2)
def a_pass_too_many_is_warned_of_at_the_line_that_called_the_model() -> None:
    bf.init(bf.RingGraph)
    net = nn.Linear(2, 1)
    optimizer = bf.DistributedAdaptWithCombineOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net)
    net(torch.ones(1, 2))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        net(torch.ones(1, 2))
    (warning,) = told
    assert "Unexpected behavior" in str(warning.message) and warning.filename == __file__, warning
    optimizer.step()
    bf.shutdown()
