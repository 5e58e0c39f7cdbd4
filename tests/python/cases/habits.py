"""torch.compile, TorchScript and copies of wrapped models."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pelton.torch_api as bagua
import torch
from torch import nn

from cases.checks import (
    SHAPE,
    assert_same,
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
from cases.torch_world import beside_gloo


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


class _CompiledInPart(nn.Module):
    """Only what it begins with is compiled, by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.begin, self.end = _Net(), nn.Linear(3, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.end(self.begin(inputs).relu())


class _Around(nn.Module):
    """A model of which only a part is wrapped, while all of it is compiled."""

    def __init__(self, make_part: Callable[[], Any]) -> None:
        super().__init__()
        self.part, self.end = make_part(), nn.Linear(3, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.end(self.part(inputs).relu())


def _in_part(model: Any, **options: Any) -> Any:
    getattr(model, "module", model).begin.compile(**options)  # DDP keeps the model by this name
    return model


def _in_place(model: Any, **options: Any) -> Any:
    model.compile(**options)
    return model


@dataclass(frozen=True)
class _Trained:
    """Threads: a value. Owns: copies of the weights."""

    graphs: int
    breaks: int
    weights: dict[str, torch.Tensor] = field(repr=False)


def _train(make: Any, build: Callable[[Any, _Graphs], Any]) -> _Trained:
    """Some steps of what `build` makes of a model."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    rank, _ = rank_and_size()
    model, graphs = seeded(rank, make), _Graphs()
    trained = build(model, graphs)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        optimizer.zero_grad()
        square_loss(trained, batch(rank, step, *SHAPE)).backward()
        optimizer.step()
    assert_same_on_all_ranks(list(model.parameters()))
    breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
    names = (name.replace("_orig_mod.", "") for name, _ in model.named_parameters())
    return _Trained(graphs.count, breaks, dict(zip(names, map(torch.clone, model.parameters()))))


def _check_compiled(make: Any, compiled: Callable[..., Any], wraps_first: bool, gloo: Any) -> None:
    """A model that is compiled before or after it is wrapped, beside DDP of torch's."""

    def build(wrapping: Any, **options: bool) -> Callable[[Any, _Graphs], Any]:
        if wraps_first:
            return lambda model, graphs: compiled(wrapping(model), backend=graphs, **options)
        return lambda model, graphs: wrapping(compiled(model, backend=graphs, **options))

    plain = _train(make, lambda model, _: wrap(model))
    ddp = _train(make, build(lambda model: nn.parallel.DistributedDataParallel(model, process_group=gloo)))
    by_class = _train(make, build(bagua.data_parallel.DistributedDataParallel))
    by_method = _train(make, build(wrap, fullgraph=True))
    assert (by_method.graphs, by_method.breaks) == (1, 0), by_method
    assert by_class.graphs == 1 and by_class.breaks <= ddp.breaks, (by_class, ddp)
    for trained in (ddp, by_class, by_method):
        assert_same(trained.weights, plain.weights)


@case(2)
def compiling_breaks_no_more_graphs_than_under_ddp() -> None:
    ways: list[tuple[Any, Callable[..., Any]]] = [
        (make_mlp, torch.compile),
        (_Net, torch.compile),
        (_Net, _in_place),
        (_CompiledInPart, _in_part),
    ]
    with beside_gloo() as gloo:
        for make, compiled in ways:
            for wraps_first in (False, True):
                _check_compiled(make, compiled, wraps_first, gloo)


@case(2)
def a_wrapped_part_of_a_compiled_model_breaks_the_graph_once() -> None:
    """DDP there breaks it three times (PyTorch 2.11)."""

    def wrap_part(model: Any) -> Any:
        model.end.requires_grad_(False)
        nn.init.constant_(model.end.weight, 0.1)
        nn.init.zeros_(model.end.bias)
        wrap(model.part)
        return model

    for make_part in (make_mlp, _Net):
        make = functools.partial(_Around, make_part)
        plain = _train(make, lambda model, _: wrap_part(model))
        trained = _train(make, lambda model, graphs: torch.compile(wrap_part(model), backend=graphs))
        assert (trained.graphs, trained.breaks) == (2, 1), trained
        assert_same(trained.weights, plain.weights)


@case(2)
def a_model_of_torchs_class_that_is_wrapped_behind_the_compilers_back_breaks_once() -> None:
    def build(model: Any, graphs: Any) -> Any:
        compiled = torch.compile(model, backend=graphs)
        wrap(model)
        return compiled

    for make, breaks in ((make_mlp, 1), (_Net, 0)):
        trained = _train(make, build)
        assert (trained.graphs, trained.breaks) == (1, breaks), trained
        assert_same(trained.weights, _train(make, lambda model, _: wrap(model)).weights)


@case(2)
def a_forward_pass_of_torchs_class_is_shown_to_the_compiler_only_while_it_is_wrapped() -> None:
    def others(inputs: torch.Tensor) -> torch.Tensor:
        return inputs

    model = make_mlp()
    wrap(model)
    assert "forward" in model.__dict__ and "forward" not in copy.deepcopy(model).__dict__
    model.bagua_ddp.detach()
    assert "forward" not in model.__dict__
    model.forward = others
    wrap(model).bagua_ddp.detach()
    assert model.forward is others, "what is put there by others stays"
    assert "forward" not in wrap(_Net()).__dict__, "the compiler begins at an own class's by itself"


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
