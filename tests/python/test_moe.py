"""Mixtures of experts: the gates against loops over tokens, here; layers on several ranks, see cases/moe.py."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from moe_reference import Routes, gumbel, top1, top2
from pelton._training._parameters import select
from pelton.errors import FailedPrecondition, InvalidArgument
from pelton.torch_api.model_parallel.moe import MoE, is_moe_param
from pelton.torch_api.model_parallel.moe.sharded_moe import (
    TopKGate,
    gumbel_rsample,
    multiplicative_jitter,
    top1gating,
    top2gating,
)
from spawn import case_ids, check_case
from torch import nn

MODULE = "cases.moe"
CPU = torch.device("cpu")
SIZES = {"tokens": st.integers(1, 24), "experts": st.integers(1, 7), "seed": st.integers(0, 2**31)}
FACTORS = st.sampled_from([0.25, 0.5, 1.0, 1.3, 2.0, 4.0])


@pytest.mark.parametrize(("world_size", "name"), sorted(case_ids(MODULE)))
def test_moe(world_size: int, name: str) -> None:
    check_case(MODULE, world_size, name)


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("policy", [None, "Jitter", "RSample"])
def test_no_value_is_looked_at_on_the_way(k: int, policy: str | None) -> None:
    """Tensors of the device "meta" have no values: whoever asked for one, for which a GPU's stream would have to be
    waited for, would get an error here. The exchange between ranks is in cases/gpu.py.
    """
    options: dict[str, Any] = {"min_capacity": 2, "noisy_gate_policy": policy, "average_expert_gradients": True}
    layer = MoE(6, nn.Linear(6, 6), 3, k=k, **options).to("meta")
    inputs = torch.empty(4, 5, 6, device="meta", requires_grad=True)
    for used in (None, torch.empty(20, device="meta")):
        output, l_aux, counts = layer(inputs, used)
        (output.sum() + l_aux).backward()
        gradients = [inputs.grad, *(parameter.grad for parameter in layer.parameters())]
        assert all(tensor is not None and tensor.is_meta for tensor in [output, l_aux, counts, *gradients])


def _drawn(tokens: int, experts: int, seed: int) -> torch.Tensor:
    return torch.randn(tokens, experts, generator=torch.Generator().manual_seed(seed))


def _used(tokens: int, seed: int, masks: bool) -> list[int] | None:
    if not masks:
        return None
    return torch.randint(0, 2, (tokens,), generator=torch.Generator().manual_seed(seed)).tolist()


def _check(found: Any, wanted: Routes, shape: torch.Size, logits: torch.Tensor, plain: torch.Tensor) -> None:
    """Weights, places, counts, the loss, and the gradient of both with random factors."""
    l_aux, combine, dispatch, counts = found
    dense = wanted.dense(*shape)
    assert combine.shape == dense.shape
    torch.testing.assert_close(combine, dense, rtol=1e-5, atol=1e-7)
    assert torch.equal(dispatch, dense.bool())
    assert counts.tolist() == wanted.counts
    torch.testing.assert_close(l_aux, wanted.l_aux, rtol=1e-5, atol=1e-7)
    factors = torch.randn(dense.shape)
    (ours,) = torch.autograd.grad((combine * factors).sum() + l_aux, logits)
    (theirs,) = torch.autograd.grad((dense * factors).sum() + wanted.l_aux, plain)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@settings(deadline=None, max_examples=60)
@given(factor=FACTORS, least=st.integers(0, 6), masks=st.booleans(), noise=st.booleans(), **SIZES)
def test_one_choice(tokens: int, experts: int, seed: int, factor: float, least: int, masks: bool, noise: bool) -> None:
    logits = _drawn(tokens, experts, seed).requires_grad_()
    plain = logits.detach().clone().requires_grad_()
    used, policy = _used(tokens, seed, masks), "RSample" if noise else None
    given_used = None if used is None else torch.tensor(used)
    if tokens < least:
        with pytest.raises(InvalidArgument, match=f"{tokens} tokens are less than min_capacity={least}"):
            top1gating(logits, factor, least, given_used, policy)
        return
    torch.manual_seed(seed)
    found = top1gating(logits, factor, least, given_used, policy)
    torch.manual_seed(seed)
    _check(found, top1(plain, factor, least, used, policy), logits.shape, logits, plain)


@settings(deadline=None, max_examples=60)
@given(factor=FACTORS, masks=st.booleans(), **SIZES)
def test_two_choices(tokens: int, experts: int, seed: int, factor: float, masks: bool) -> None:
    logits = _drawn(tokens, experts, seed).requires_grad_()
    plain = logits.detach().clone().requires_grad_()
    used = _used(tokens, seed, masks)
    torch.manual_seed(seed)
    found = top2gating(logits, factor, None if used is None else torch.tensor(used))
    torch.manual_seed(seed)
    _check(found, top2(plain, factor, used), logits.shape, logits, plain)


@pytest.mark.parametrize("policy", [None, "None", "Jitter", "RSample"])
@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("training", [True, False])
def test_a_gate_applies_its_policy_in_training_alone(policy: str | None, k: int, training: bool) -> None:
    torch.manual_seed(3)
    gate = TopKGate(6, 4, k, 1.5, 0.5, 2, policy).train(training)
    tokens = torch.randn(9, 6)
    torch.manual_seed(8)
    found = gate(tokens)
    torch.manual_seed(8)
    blur = torch.distributions.Uniform(torch.tensor(0.99), torch.tensor(1.01))
    scaled = tokens * blur.rsample(tokens.shape) if policy == "Jitter" and training else tokens
    plain = (scaled @ gate.wg.weight.T).detach()
    factor = 1.5 if training else 0.5
    noise = policy if policy == "RSample" and training else None
    wanted = top1(plain, factor, 2, None, noise) if k == 1 else top2(plain, factor, None)
    torch.testing.assert_close(found[1], wanted.dense(9, 4), rtol=1e-5, atol=1e-7)
    assert found[3].tolist() == wanted.counts


@given(seed=st.integers(0, 2**31), epsilon=st.sampled_from([0.01, 0.2]))
def test_random_numbers_are_those_of_torchs_distributions(seed: int, epsilon: float) -> None:
    torch.manual_seed(seed)
    ours = gumbel_rsample((5, 3), CPU), multiplicative_jitter(torch.ones(4, 2), CPU, epsilon)
    torch.manual_seed(seed)
    blur = torch.distributions.Uniform(torch.tensor(1 - epsilon), torch.tensor(1 + epsilon))
    theirs = gumbel((5, 3)), blur.rsample((4, 2))
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[1], theirs[1])
    untouched = torch.ones(2)
    assert multiplicative_jitter(untouched, CPU, 0) is untouched


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="k=3: must be 1 or 2"):
        MoE(8, nn.Linear(8, 8), k=3)
    with pytest.raises(ValueError, match="noisy_gate_policy='Loud'"):
        MoE(8, nn.Linear(8, 8), noisy_gate_policy="Loud")
    with pytest.raises(ValueError, match="must be of the size that it takes"):
        MoE(8, nn.Linear(8, 4))(torch.randn(6, 8))


def _experts(model: nn.Module) -> list[str]:
    named = [*model.named_parameters(), *model.named_buffers()]
    return [name for name, tensor in named if is_moe_param(tensor)]


def test_an_experts_tensors_stay_marked() -> None:
    """Whatever replaces them: else a wrapping would average them."""
    layer: Any = MoE(8, nn.Sequential(nn.Linear(8, 8), nn.BatchNorm2d(1)), num_local_experts=2)
    marked = _experts(layer)
    assert len(marked) == 2 * (2 + 2 + 3)
    assert all(name.startswith("bagua_moe.experts.bagua_experts.") for name in marked)
    assert not is_moe_param(layer.bagua_moe.gate.wg.weight)
    others = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer).double()]
    others.append(copy.deepcopy(layer).to("meta").to_empty(device="cpu"))
    assigned = MoE(8, nn.Sequential(nn.Linear(8, 8), nn.BatchNorm2d(1)), num_local_experts=2)
    assigned.load_state_dict(layer.state_dict(), assign=True)
    for other in [*others, assigned]:
        assert _experts(other) == marked


def test_what_is_put_into_an_expert_is_an_experts() -> None:
    """After the layer was made, by what people put into layers: a wrapping would average it else."""
    layer: Any = MoE(8, nn.Linear(8, 8), num_local_experts=3)
    normed, adapted, replaced = layer.bagua_moe.experts.bagua_experts
    nn.utils.parametrizations.weight_norm(normed)
    adapted.adapter = nn.Sequential(nn.Linear(8, 2), nn.BatchNorm1d(2))
    replaced.weight = nn.Parameter(torch.ones(8, 8), requires_grad=False)
    selected = select(layer)
    assert [name for name, _ in selected.all] == ["bagua_moe.gate.wg.weight"]
    below = [*layer.bagua_moe.experts.parameters(), *layer.bagua_moe.experts.buffers()]
    assert selected.left_out == {id(tensor) for tensor in below}
    assert all(is_moe_param(tensor) for tensor in below)
    assert not is_moe_param(layer.bagua_moe.gate.wg.weight)


def test_a_layer_can_be_copied_and_pickled_after_a_pass() -> None:
    layer = MoE(8, nn.Linear(8, 8))
    _, l_aux, _ = layer(torch.randn(6, 8))
    assert l_aux.requires_grad
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert other.bagua_moe.l_aux is None
        torch.manual_seed(0)
        wanted = layer(torch.ones(6, 8))[0]
        torch.manual_seed(0)
        assert torch.equal(other(torch.ones(6, 8))[0], wanted)


def test_the_gate_stays_in_float32() -> None:
    layer: Any = MoE(8, nn.Linear(8, 8)).to(torch.bfloat16)
    assert layer.bagua_moe.gate.wg.weight.dtype == torch.float32
    output, l_aux, _ = layer(torch.randn(6, 8, dtype=torch.bfloat16))
    assert (output.dtype, l_aux.dtype) == (torch.bfloat16, torch.float32)


def test_a_layer_of_several_ranks_needs_the_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    layer = MoE(8, nn.Linear(8, 8))
    assert layer.num_experts == 2
    with pytest.raises(FailedPrecondition, match=r"experts are on 2 ranks.*init_process_group"):
        layer(torch.randn(6, 8))
