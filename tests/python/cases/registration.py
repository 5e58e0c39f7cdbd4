"""What is registered and broadcast when a model is wrapped, and what is noticed when it changes after that."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pelton.torch_api as bagua
import torch
from pelton.errors import FailedPrecondition, InvalidArgument, PeltonError
from torch import nn

from cases.checks import (
    assert_same,
    assert_same_on_all_ranks,
    batch,
    gradients,
    local_gradients,
    mean_of,
    raises,
    rank_and_size,
    seeded,
    square_loss,
    wrap,
)
from cases.registry import case

SHAPE = (4, 6)


def _mlp() -> Any:
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3))


def _norm() -> Any:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))


def _names(model: Any) -> list[str]:
    return [name for name, _ in model.bagua_ddp.bagua_build_params()]


def _check_synchronised(model: Any, reference: Any, step: int = 0) -> None:
    rank, size = rank_and_size()
    model.zero_grad()
    square_loss(model, batch(rank, step, *SHAPE)).backward()
    expected = mean_of([local_gradients(reference, batch(r, step, *SHAPE)) for r in range(size)])
    assert_same(gradients(model), expected)


@case(2, 3)
def parameters_and_buffers_become_those_of_rank_0() -> None:
    rank, _ = rank_and_size()
    model = seeded(rank, _norm)
    model.register_buffer("scratch", torch.full((3,), rank), persistent=False)
    for step in range(rank + 1):
        model(batch(rank, step, *SHAPE))  # moves the running statistics, by a number of steps of each rank's own
    keys = list(model.state_dict())
    wrap(model)
    assert list(model.state_dict()) == keys
    assert model[1].num_batches_tracked.item() == 1
    assert model.scratch.tolist() == [0, 0, 0]
    assert_same_on_all_ranks([*model.parameters(), *model.buffers()])


@case(2)
def many_and_large_tensors_are_broadcast() -> None:
    rank, _ = rank_and_size()
    model = nn.ParameterList([torch.full((n,), float(rank)) for n in (1, 0, 7)] * 40)
    model.append(torch.full((9 << 20,), float(rank)))
    model.append(torch.full((3, 2, 5), rank + 0.0).transpose(0, 2))
    wrap(model)
    assert all(not parameter.any() for parameter in model)


@case(2)
def optimizer_state_becomes_that_of_rank_0() -> None:
    rank, _ = rank_and_size()
    model = seeded(rank, _mlp)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5 + rank, betas=(0.1 + rank / 10, 0.999))
    if rank == 0:  # as after loading a checkpoint on rank 0 only
        square_loss(model, batch(0, 0, *SHAPE)).backward()
        optimizer.step()
        optimizer.param_groups[0]["note"] = ("a", [1, 2.5, None], {"x": True})
    wrap(model, [optimizer])
    group = optimizer.param_groups[0]
    assert (group["lr"], group["betas"]) == (0.5, (0.1, 0.999))
    assert group["note"] == ("a", [1, 2.5, None], {"x": True})
    assert len(optimizer.state) == 4
    tensors = [value for p in model.parameters() for _, value in sorted(optimizer.state[p].items())]
    assert_same_on_all_ranks([t for t in tensors if isinstance(t, torch.Tensor)])
    assert float(optimizer.state[model[0].weight]["step"]) == 1.0
    for step in (1, 2):
        optimizer.zero_grad()
        square_loss(model, batch(rank, step, *SHAPE)).backward()
        optimizer.step()
    assert_same_on_all_ranks(list(model.parameters()))


@case(2)
def optimizer_state_that_rank_0_lacks_is_dropped() -> None:
    rank, _ = rank_and_size()
    model = seeded(rank, _mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if rank == 1:
        square_loss(model, batch(0, 0, *SHAPE)).backward()
        optimizer.step()
    wrap(model, [optimizer])
    assert len(optimizer.state) == 0


@case(2)
def ignored_tensors_stay_each_ranks_own() -> None:
    rank, _size = rank_and_size()
    for attribute in ("_bagua_params_and_buffers_to_ignore", "_ddp_params_and_buffers_to_ignore"):
        model = seeded(rank, _norm)
        own_bias = model[0].bias.detach().clone()
        model[1].running_mean.fill_(rank)
        setattr(model, attribute, ["0.bias", "1.running_mean"])
        wrap(model)
        assert _names(model) == ["0.weight", "1.weight", "1.bias"]
        assert model.bagua_ddp.parameters_to_ignore == ["0.bias", "1.running_mean"]
        assert torch.equal(model[0].bias, own_bias)
        assert model[1].running_mean.tolist() == [rank] * 5
        model.zero_grad()
        square_loss(model, batch(rank, 0, *SHAPE)).backward()
        local = local_gradients(copy.deepcopy(model), batch(rank, 0, *SHAPE))
        assert torch.equal(model[0].bias.grad, local["0.bias"])
        assert_same_on_all_ranks([model[0].weight.grad])


@case(2)
def an_ignore_list_that_names_nothing() -> None:
    model = _mlp()
    model._ddp_params_and_buffers_to_ignore = ["0.weigth"]
    with raises(InvalidArgument, "_ddp_params_and_buffers_to_ignore", "0.weigth"):
        wrap(model)


@case(2)
def expert_parameters_stay_each_ranks_own() -> None:
    rank, _ = rank_and_size()
    model = seeded(rank, _mlp)
    for parameter in model[2].parameters():
        parameter.expert = True
    own = model[2].weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    square_loss(model, batch(rank, 0, *SHAPE)).backward()
    optimizer.step()
    momentum = optimizer.state[model[2].weight]["momentum_buffer"].clone()
    own = model[2].weight.detach().clone()
    wrap(model, [optimizer])
    assert _names(model) == ["0.weight", "0.bias"]
    assert torch.equal(model[2].weight, own)
    assert torch.equal(optimizer.state[model[2].weight]["momentum_buffer"], momentum)
    model.zero_grad()
    square_loss(model, batch(rank, 1, *SHAPE)).backward()
    local = local_gradients(copy.deepcopy(model), batch(rank, 1, *SHAPE))
    assert torch.equal(model[2].weight.grad, local["2.weight"])


@case(2)
def a_copy_of_a_wrapped_model_is_a_plain_model() -> None:
    rank, _ = rank_and_size()
    model = wrap(seeded(0, _mlp))
    square_loss(model, batch(rank, 0, *SHAPE)).backward()
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    copies = [
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(stream, weights_only=False),
    ]
    for clone in copies:
        assert not hasattr(clone, "no_sync")
        if rank == 0:  # alone: nothing of it is communicated
            clone.zero_grad()
            square_loss(clone, batch(0, 1, *SHAPE)).backward()
            assert_same(gradients(clone), local_gradients(seeded(0, _mlp), batch(0, 1, *SHAPE)))
    _check_synchronised(wrap(copies[0]), seeded(0, _mlp), 2)
    _check_synchronised(model, seeded(0, _mlp), 3)


@case(2)
def a_cast_after_wrapping_is_noticed() -> None:
    model = wrap(seeded(bagua.get_rank(), _mlp))
    _check_synchronised(model, seeded(0, _mlp))
    rank, size = rank_and_size()
    model.double()
    reference = seeded(0, _mlp).double()
    model.zero_grad()
    square_loss(model, batch(rank, 1, *SHAPE, dtype=torch.float64)).backward()
    per_rank = [local_gradients(reference, batch(r, 1, *SHAPE, dtype=torch.float64)) for r in range(size)]
    assert_same(gradients(model), mean_of(per_rank))
    model.float()
    _check_synchronised(model, reference.float(), 2)


@case(2)
def a_replaced_parameter_is_noticed() -> None:
    rank, _ = rank_and_size()
    model = wrap(seeded(rank, _mlp))
    square_loss(model, batch(rank, 0, *SHAPE)).backward()
    model[2].weight = nn.Parameter(torch.full((3, 10), 1.0 + rank))
    reference = seeded(0, _mlp)
    reference[2].weight = nn.Parameter(torch.ones(3, 10))
    _check_synchronised(model, reference, 1)
    assert_same_on_all_ranks(list(model.parameters()))


@case(2)
def an_added_layer_is_noticed() -> None:
    rank, _ = rank_and_size()
    model = wrap(seeded(rank, _mlp))
    model.append(seeded(rank + 50, lambda: nn.Linear(3, 2)))
    reference = seeded(0, _mlp)
    reference.append(seeded(50, lambda: nn.Linear(3, 2)))
    _check_synchronised(model, reference)
    assert len(_names(model)) == 6


@case(2)
def a_removed_layer_is_noticed() -> None:
    model = wrap(seeded(bagua.get_rank(), _mlp))
    del model[2]
    reference = seeded(0, _mlp)
    del reference[2]
    _check_synchronised(model, reference)
    assert _names(model) == ["0.weight", "0.bias"]


@case(2)
def parameters_frozen_and_thawed_after_wrapping() -> None:
    rank, _ = rank_and_size()
    model = wrap(seeded(rank, _mlp))
    reference = seeded(0, _mlp)
    for frozen in (True, False, True, False):
        for m in (model, reference):
            m[0].requires_grad_(not frozen)
        _check_synchronised(model, reference, 4 + frozen)
    for m in (model, reference):
        m.requires_grad_(False)
    inputs = batch(rank, 9, *SHAPE).requires_grad_()
    square_loss(model, inputs).backward()  # as when a critic is trained through: no parameter takes part
    assert inputs.grad is not None
    for m in (model, reference):
        m.requires_grad_(True)
    _check_synchronised(model, reference, 6)


@case(2)
def a_parameter_frozen_at_wrapping_is_thawed() -> None:
    def make() -> Any:
        model = _mlp()
        model[0].requires_grad_(False)
        return model

    model, reference = wrap(seeded(bagua.get_rank(), make)), seeded(0, make)
    _check_synchronised(model, reference)
    for m in (model, reference):
        m.requires_grad_(True)
    _check_synchronised(model, reference, 1)
    assert len(_names(model)) == 4


@case(2)
def a_change_that_only_one_rank_makes_is_an_error() -> None:
    rank, _ = rank_and_size()
    model = wrap(seeded(rank, _mlp))
    bagua.destroy_process_group()
    bagua.init_process_group(timeout=3)
    wrap(model)
    if rank == 1:
        model[2] = nn.Linear(10, 4)
    with raises(PeltonError):
        square_loss(model, batch(rank, 0, *SHAPE)).backward()


@case(2)
def changes_that_differ_are_an_error_that_names_them() -> None:
    rank, _ = rank_and_size()
    model = wrap(seeded(rank, _mlp))
    model[2] = nn.Linear(10, 4 + rank)
    with raises(InvalidArgument, "2.weight", "[4, 10]", "[5, 10]"):
        square_loss(model, batch(rank, 0, *SHAPE))
    with raises(PeltonError, "registration failed"):
        square_loss(model, batch(rank, 0, *SHAPE))


@case(1, 2)
def the_check_before_each_forward_costs_microseconds() -> None:
    import timeit

    layers = [nn.TransformerEncoderLayer(16, 2, 16, batch_first=True) for _ in range(6)]
    model = wrap(nn.Sequential(*layers))
    inner = model.bagua_ddp
    per_call = min(timeit.repeat(inner.before_forward, number=200, repeat=5)) / 200
    assert per_call < 300e-6, f"{per_call * 1e6:.0f} us"  # 20 us on a quiet machine; this one may be busy


@case(2)
def the_inner_object_has_the_attributes_that_scripts_use() -> None:
    model = seeded(0, _mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.bagua_module_name = "generator" if bagua.get_rank() == 0 else "critic"  # rank 0's counts
    wrap(model, [optimizer])
    inner = model.bagua_ddp
    assert model.bagua_module_name == inner.bagua_module_name == "generator"
    assert model.bagua_optimizers == [optimizer]
    assert type(model.bagua_algorithm).__name__ == "GradientAllReduceAlgorithmImpl"
    assert sorted(n for b in model.bagua_buckets for n in b.tensor_names) == sorted(_names(model))
    assert not hasattr(nn.Linear(1, 1), "bagua_buckets")
    assert bagua.BaguaModule.with_bagua is vars(nn.Module)["with_bagua"]


@case(2)
def the_object_of_an_earlier_wrapping_may_be_held() -> None:
    model, reference = seeded(0, _mlp), seeded(0, _mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    earlier = wrap(model, [optimizer]).bagua_ddp
    with raises(InvalidArgument, "names 'nothing'"):
        model._ddp_params_and_buffers_to_ignore = ["nothing"]
        wrap(model, [optimizer])
    with raises(FailedPrecondition, "wrapped again, which failed", "wrap it again"):
        optimizer.step()
    model._ddp_params_and_buffers_to_ignore = []
    wrap(model, [optimizer])
    _check_synchronised(model, reference)
    optimizer.step()
    assert_same_on_all_ranks(list(model.parameters()))
    with raises(FailedPrecondition, "it was wrapped again; call pelton.wrapping_of"):
        earlier.autotune()
