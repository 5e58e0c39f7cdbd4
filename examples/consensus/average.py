"""Average consensus: every rank ends with the mean of all ranks' numbers, and talks to its neighbors alone.

bfrun -np 4 python -m pelton.compat examples/consensus/average.py --topology ring --style one-peer
"""

import argparse

import bluefog.torch as bf
import torch
from bluefog.common import topology_util

TOPOLOGIES = {
    "expo2": topology_util.ExponentialTwoGraph,
    "expo3": lambda size: topology_util.ExponentialGraph(size, base=3),
    "ring": topology_util.RingGraph,
    "mesh": topology_util.MeshGrid2DGraph,
    "star": topology_util.StarGraph,
    "full": topology_util.FullyConnectedGraph,
}


def static(x: torch.Tensor, rounds: int) -> torch.Tensor:
    """Every neighbor in every round, by the topology's weights, which keep the mean."""
    for _ in range(rounds):
        x = bf.neighbor_allreduce(x)
    return x


def one_peer(x: torch.Tensor, rounds: int) -> torch.Tensor:
    """One neighbor after the other. Each rank gives half away and keeps half, which keeps the sum; the number that
    travels along tells each rank how much it has.
    """
    with_count = torch.cat([x, torch.ones(1, dtype=x.dtype)])
    turns = topology_util.GetDynamicOnePeerSendRecvRanks(bf.load_topology(), bf.rank())
    for _ in range(rounds):
        send, receive = next(turns)
        share = 0.5 if send else 1.0
        with_count = bf.neighbor_allreduce(
            with_count,
            self_weight=share,
            src_weights=dict.fromkeys(receive, 1.0),
            dst_weights=dict.fromkeys(send, share),
        )
    return with_count[:-1] / with_count[-1]


def push_sum(x: torch.Tensor, rounds: int) -> torch.Tensor:
    """Without waiting for anybody: each rank gives equal shares to its neighbors' windows, and to itself. The number p,
    which goes with them, is shared out in the same way.
    """
    bf.turn_on_win_ops_with_associated_p()
    bf.win_create(x, name="x", zero_init=True)
    share = 1.0 / (len(bf.out_neighbor_ranks()) + 1)
    shares = dict.fromkeys(bf.out_neighbor_ranks(), share)
    for _ in range(rounds):
        bf.win_accumulate(x, name="x", self_weight=share, dst_weights=shares, require_mutex=True)
        bf.win_update_then_collect(name="x")
        bf.barrier()  # not needed for the mean, but a rank that runs ahead only gives away what it has
    bf.win_update_then_collect(name="x")
    x = x / bf.win_associated_p(name="x")
    bf.barrier()
    bf.win_free(name="x")
    bf.turn_off_win_ops_with_associated_p()
    return x


STYLES = {"static": static, "one-peer": one_peer, "push-sum": push_sum}


def main() -> None:
    """Every style over every topology that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topology", choices=TOPOLOGIES, nargs="+", default=["expo2"])
    parser.add_argument("--style", choices=STYLES, nargs="+", default=["static"])
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    bf.init()
    for topology in options.topology:
        bf.set_topology(TOPOLOGIES[topology](bf.size()), is_weighted=True)
        for style in options.style:
            torch.manual_seed(bf.rank())
            x = torch.randn(1000, dtype=torch.float64)
            mean = bf.allreduce(x)
            error = (STYLES[style](x.clone(), options.rounds) - mean).abs().max().item()
            print(f"rank {bf.rank()}: {topology}, {style}: {error:.1e} from the mean", flush=True)


if __name__ == "__main__":
    main()
