"""torch.compile, TorchScript and copies of wrapped models."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pelton.torch_api as bagua
import torch
from torch import nn

from cases.checks import (
    SHAPE,
    assert_same_on_all_ranks,
    batch,
    expected,
    gradients,
    make_mlp,
    raises,
    rank_and_size,
    seeded,
    square_loss,
    wrap,
)
from cases.registry import case


class _Graphs:
    """A backend of torch.compile that counts the graphs that do something. Threads: the test's. Owns: the count."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.count += any(node.op in ("call_function", "call_module", "call_method") for node in graph.graph.nodes)
        return graph.forward


class _Net(nn.Module):
    """A model whose forward pass torch.compile takes as a frame of its own: it passes over those of torch.nn."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 10), nn.Linear(10, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(inputs).tanh())


def _check_gradients(model: Any, parameters_of: Any) -> None:
    """The ranks' mean to within rounding: a compiled graph may add in another order."""
    for step in range(3):
        parameters_of.zero_grad()
        square_loss(model, batch(rank_and_size()[0], step, *SHAPE)).backward()
        wanted = expected(_Net, step)
        for name, gradient in gradients(parameters_of).items():
            torch.testing.assert_close(gradient, wanted[name])
        assert_same_on_all_ranks([p.grad for p in parameters_of.parameters()])


def _make() -> Any:
    torch._dynamo.reset()
    return seeded(rank_and_size()[0], _Net), _Graphs()


@case(2)
def compiled_and_then_wrapped_is_one_graph() -> None:
    model, graphs = _make()
    compiled: Any = torch.compile(model, backend=graphs, fullgraph=True)
    wrap(compiled)
    _check_gradients(compiled, model)
    assert graphs.count == 1, graphs.count


@case(2)
def wrapped_and_then_compiled_is_one_graph() -> None:
    model, graphs = _make()
    compiled: Any = torch.compile(wrap(model), backend=graphs, fullgraph=True)
    _check_gradients(compiled, model)
    assert graphs.count == 1, graphs.count
    assert model.bagua_ddp.bagua_train_step_counter == 3


@case(2)
def compiled_in_place_is_one_graph() -> None:
    model, graphs = _make()
    wrap(model).compile(backend=graphs, fullgraph=True)
    _check_gradients(model, model)
    assert graphs.count == 1, graphs.count
    assert model.bagua_ddp.bagua_train_step_counter == 3


@case(2)
def the_ddp_class_compiles_as_torchs_does() -> None:
    model, graphs = _make()
    wrapped: Any = torch.compile(bagua.data_parallel.DistributedDataParallel(model), backend=graphs)
    _check_gradients(wrapped, model)
    assert graphs.count == 1, graphs.count


@case(2)
def weights_of_a_compiled_model_are_averaged() -> None:
    for name, options in (("decentralized", {"hierarchical": False}), ("local_sgd", {"interval": 1})):
        model, graphs = _make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.with_bagua([optimizer], bagua.algorithms.Algorithm.init(name, **options))
        compiled: Any = torch.compile(model, backend=graphs, fullgraph=True)
        for step in range(3):
            optimizer.zero_grad()
            square_loss(compiled, batch(rank_and_size()[0], step, *SHAPE)).backward()
            optimizer.step()
        assert graphs.count == 1, graphs.count
        assert model.bagua_ddp.statistics()["rounds"] == 3, name


@case(2)
def steps_of_a_compiled_optimizer_are_heard() -> None:
    torch._dynamo.reset()
    for kind in (torch.optim.SGD, torch.optim.Adam):
        model = seeded(rank_and_size()[0], _Net)
        optimizer: Any = kind(model.parameters(), lr=0.1)
        model.with_bagua(optimizer, bagua.algorithms.Algorithm.init("local_sgd", interval=1))
        step: Any = torch.compile(optimizer.step, backend="eager")
        for number in range(3):
            optimizer.zero_grad()
            square_loss(model, batch(rank_and_size()[0], number, *SHAPE)).backward()
            step()
            assert_same_on_all_ranks(list(model.parameters()))
        assert model.bagua_ddp.statistics()["rounds"] == 3, kind


@case(2)
def copies_and_detached_models_are_scripted() -> None:
    model = wrap(seeded(0, make_mlp))
    square_loss(model, batch(rank_and_size()[0], 0, *SHAPE)).backward()
    inputs = batch(0, 1, *SHAPE)
    wanted = model(inputs)
    copies = {
        "deepcopy": copy.deepcopy(model),
        "shallow": copy.copy(model),
        "pickle": pickle.loads(pickle.dumps(model)),
    }
    nested = copy.deepcopy(nn.Sequential(model))
    model.bagua_ddp.detach()
    copies["detached"] = model
    for name, plain in copies.items():
        assert not plain._forward_hooks and not plain._forward_pre_hooks, name
        ours = [attribute for attribute in plain.__dict__ if "bagua" in attribute or attribute == "no_sync"]
        assert not ours, (name, ours)
        assert torch.equal(torch.jit.script(plain)(inputs), wanted), name
    assert torch.equal(torch.jit.script(nested)(inputs), wanted)
    assert torch.equal(torch.jit.trace(wrap(model), inputs)(inputs), wanted)


@case(2)
def a_users_hooks_and_state_stay_in_copies() -> None:
    class Counting(nn.Linear):
        def __getstate__(self) -> dict[str, Any]:
            return {**self.__dict__, "copied": True}

    calls: list[int] = []
    model: Any = Counting(6, 3)
    model.register_forward_hook(lambda *_: calls.append(1))
    clone: Any = copy.deepcopy(wrap(model))
    assert clone.copied and not hasattr(model, "copied")
    clone(batch(0, 0, *SHAPE))
    model(batch(0, 0, *SHAPE))
    assert len(calls) == 2


@case(2)
def training_on_after_the_group_has_ended_is_refused() -> None:
    model = wrap(seeded(0, make_mlp))
    bagua.destroy_process_group()
    with raises(RuntimeError, "not synchronised any more", "the process group was destroyed"):
        model(batch(0, 0, *SHAPE))
    with torch.no_grad():
        model(batch(0, 0, *SHAPE))
    square_loss(copy.deepcopy(model), batch(0, 0, *SHAPE)).backward()
