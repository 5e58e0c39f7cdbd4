"""Linear and logistic regression of data that stay on their ranks, by four decentralized methods.

bfrun -np 4 python -m pelton.compat examples/consensus/regression.py --method exact-diffusion --problem logistic

Diffusion ends near the optimum, the further the longer its steps; the others reach it.
"""

import argparse
from collections.abc import Callable

import bluefog.torch as bf
import torch
from bluefog.common import topology_util

Gradient = Callable[[torch.Tensor], torch.Tensor]
SAMPLES, DIMENSIONS, RIDGE = 50, 5, 1e-1


def problem(name: str) -> Gradient:
    """The gradient of this rank's own loss, which is strongly convex."""
    torch.manual_seed(123 + bf.rank())
    inputs = torch.randn(SAMPLES, DIMENSIONS, dtype=torch.float64)
    truth = torch.ones(DIMENSIONS, dtype=torch.float64)
    targets = inputs @ truth + 0.1 * torch.randn(SAMPLES, dtype=torch.float64)
    signs = targets.sign()

    def linear(w: torch.Tensor) -> torch.Tensor:
        return inputs.T @ (inputs @ w - targets) / SAMPLES

    def logistic(w: torch.Tensor) -> torch.Tensor:
        return RIDGE * w - inputs.T @ (signs * torch.sigmoid(-signs * (inputs @ w))) / SAMPLES

    return {"linear": linear, "logistic": logistic}[name]


def optimum(gradient: Gradient) -> torch.Tensor:
    """By the mean of all ranks' gradients."""
    w = torch.zeros(DIMENSIONS, dtype=torch.float64)
    for _ in range(1000):
        w = w - 0.5 * bf.allreduce(gradient(w))
    return w


def diffusion(gradient: Gradient, rate: float, steps: int) -> torch.Tensor:
    """Adapt, then combine."""
    w = torch.zeros(DIMENSIONS, dtype=torch.float64)
    for _ in range(steps):
        w = bf.neighbor_allreduce(w - rate * gradient(w))
    return w


def exact_diffusion(gradient: Gradient, rate: float, steps: int) -> torch.Tensor:
    """Source: arXiv 1702.05122; weights (I + W) / 2 of a symmetric W."""
    own, sources = topology_util.GetRecvWeights(bf.load_topology(), bf.rank())
    damped = {"self_weight": (1 + own) / 2, "src_weights": {rank: weight / 2 for rank, weight in sources.items()}}
    w = torch.zeros(DIMENSIONS, dtype=torch.float64)
    before = w
    for _ in range(steps):
        psi = w - rate * gradient(w)
        w = bf.neighbor_allreduce(psi + w - before, **damped)
        before = psi
    return w


def gradient_tracking(gradient: Gradient, rate: float, steps: int) -> torch.Tensor:
    """Source: arXiv 1607.03218, its undirected form; the two averages of a step are under way together."""
    w = torch.zeros(DIMENSIONS, dtype=torch.float64)
    last = gradient(w)
    tracked = last
    for _ in range(steps):
        of_w = bf.neighbor_allreduce_nonblocking(w, name="w")
        of_gradient = bf.neighbor_allreduce_nonblocking(tracked, name="gradient")
        w = bf.synchronize(of_w) - rate * tracked
        now = gradient(w)
        tracked = bf.synchronize(of_gradient) + now - last
        last = now
    return w


def push_diging(gradient: Gradient, rate: float, steps: int) -> torch.Tensor:
    """Source: arXiv 1607.03218, algorithm 2: each rank gives equal shares away, on any directed graph."""
    share = 1.0 / (len(bf.out_neighbor_ranks()) + 1)
    edges = {
        "self_weight": share,
        "src_weights": dict.fromkeys(bf.in_neighbor_ranks(), 1.0),
        "dst_weights": dict.fromkeys(bf.out_neighbor_ranks(), share),
        "enable_topo_check": False,
    }
    u = w = torch.zeros(DIMENSIONS, dtype=torch.float64)
    v = torch.ones(1, dtype=torch.float64)
    last = gradient(w)
    tracked = last
    for _ in range(steps):
        both = bf.neighbor_allreduce(torch.cat([u - rate * tracked, v, tracked]), **edges)
        u, v, mixed = both.split([DIMENSIONS, 1, DIMENSIONS])
        w = u / v
        now = gradient(w)
        tracked = mixed + now - last
        last = now
    return w


METHODS = {
    "diffusion": diffusion,
    "exact-diffusion": exact_diffusion,
    "gradient-tracking": gradient_tracking,
    "push-diging": push_diging,
}


def main() -> None:
    """Every method on every problem that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", choices=METHODS, nargs="+", default=["exact-diffusion"])
    parser.add_argument("--problem", choices=["linear", "logistic"], nargs="+", default=["linear"])
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    bf.init()
    for name in options.problem:
        gradient = problem(name)
        best = optimum(gradient)
        for method in options.method:
            is_directed = method == "push-diging"
            graph = topology_util.RingGraph(bf.size(), connect_style=2 if is_directed else 0)
            bf.set_topology(graph, is_weighted=True)
            error = (METHODS[method](gradient, options.rate, options.steps) - best).norm().item()
            print(f"rank {bf.rank()}: {name}, {method}: {error:.1e} from the optimum", flush=True)


if __name__ == "__main__":
    main()
