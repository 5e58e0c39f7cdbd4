"""How ranks meet through a store: attempts that fail, leaders that die, hosts that differ. Threads play the ranks."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import Any

import pytest
from pelton._training import _addresses, _rendezvous, _store_meeting
from pelton._training._store_meeting import Guest, follow, lead
from pelton.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument, PeerLost
from torch.distributed import HashStore, PrefixStore, TCPStore  # type: ignore[attr-defined]  # exported on a condition

TOKEN = "0123456789abcdef"
LONG_S = 60.0
HERE = Guest("0" * 16, "boot:1", "alpha")
THERE = Guest("1" * 16, "boot:2", "beta")


def _serve(guests: list[Guest]) -> tuple[str, str]:
    return f"127.0.0.1:{1000 + len(guests)}", TOKEN


def _together(*actions: Callable[[], Any]) -> list[Any]:
    """Runs them at the same time; an error stands in place of its result."""
    with concurrent.futures.ThreadPoolExecutor(len(actions)) as pool:
        futures = [pool.submit(action) for action in actions]
        return [future.exception() or future.result() for future in futures]


def test_all_take_the_leaders_record_again_and_again() -> None:
    store = HashStore()
    for _ in range(3):
        led, *followed = _together(
            lambda: lead(store, 3, LONG_S, _serve),
            lambda: follow(store, 1, 3, LONG_S),
            lambda: follow(store, 2, 3, LONG_S),
        )
        assert led.address == "127.0.0.1:1003"
        assert followed == [led, led]


def test_ranks_that_tried_unequal_numbers_of_times_meet() -> None:
    store = HashStore()
    for _ in range(2):
        with pytest.raises(DeadlineExceeded, match=r"1 of 2 ranks came to the store within 0.01 s; missing: 1"):
            lead(store, 2, 0.01, _serve)
    led, followed = _together(lambda: lead(store, 2, LONG_S, _serve), lambda: follow(store, 1, 2, LONG_S))
    assert followed == led


def test_a_rank_that_gave_up_is_not_counted() -> None:
    store = HashStore()
    with pytest.raises(DeadlineExceeded, match=r"rank 0 has not published its coordinator within 0.01 s: it has not"):
        follow(store, 1, 2, 0.01)
    led, followed = _together(lambda: lead(store, 2, LONG_S, _serve), lambda: follow(store, 1, 2, LONG_S))
    assert followed == led


def test_a_rank_names_those_that_have_not_come() -> None:
    store = HashStore()

    def late() -> None:
        with pytest.raises(DeadlineExceeded, match="missing: 2"):
            follow(store, 1, 3, 0.5)

    led, followed = _together(lambda: lead(store, 3, 5, _serve), late)
    assert followed is None
    assert isinstance(led, DeadlineExceeded)
    assert "missing: 1, 2" in str(led) or "missing: 2" in str(led)


def test_a_rank_that_gave_up_while_another_was_waited_for_may_come_back() -> None:
    store = HashStore()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        led = pool.submit(lead, store, 3, LONG_S, _serve)
        with pytest.raises(DeadlineExceeded, match="missing: 2"):
            while True:  # until the leader has named its epoch: rank 1 answers to it, and gives up
                try:
                    follow(store, 1, 3, 0.3)
                except DeadlineExceeded as error:
                    if "it has not come to the store" not in str(error):
                        raise
        second = pool.submit(follow, store, 2, 3, LONG_S)
        PrefixStore(_store_meeting._prefix(), store).wait(["1/answer/2"])  # has all keys now, one empty
        assert follow(store, 1, 3, LONG_S) == second.result() == led.result()


def test_a_long_wait_fills_no_log(capfd: pytest.CaptureFixture[str]) -> None:
    """PyTorch's store writes a warning for every wait of its own that ends without the key."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with pytest.raises(DeadlineExceeded, match="it has not come to the store"):
        follow(store, 1, 2, 0.5)
    with pytest.raises(DeadlineExceeded, match="missing: 1"):
        lead(store, 2, 0.5, _serve)
    assert capfd.readouterr().err == ""


def test_a_lost_store_is_told() -> None:
    served = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store = TCPStore("127.0.0.1", served.port, is_master=False)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        follower = pool.submit(follow, store, 1, 2, LONG_S)
        served.set("begun", "")
        del served
        with pytest.raises(PeerLost, match="rank 0 has not published its coordinator"):
            follower.result()


def test_a_dead_leaders_word_is_not_waited_for() -> None:
    """As after a change of torchrun's membership: the store lives, rank 0 was killed after it had named itself."""
    store = HashStore()
    PrefixStore(_store_meeting._prefix(), store).set("leader", "dead")
    results: list[Any] = []
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        follower = pool.submit(follow, store, 1, 2, LONG_S)
        results.append(pool.submit(lead, store, 2, LONG_S, _serve).result())
        results.append(follower.result())
    assert results[0] == results[1]


def test_why_rank_0_gives_up_is_told_to_all() -> None:
    store = HashStore()

    def refuse(guests: list[Guest]) -> tuple[str, str]:
        raise FailedPrecondition(f"{len(guests)} are too many")

    results = _together(lambda: lead(store, 2, LONG_S, refuse), lambda: follow(store, 1, 2, LONG_S))
    assert str(results[0]) == "2 are too many"
    assert str(results[1]) == "rank 0 has given up: 2 are too many"


def test_a_malformed_answer_is_refused() -> None:
    store = HashStore()
    PrefixStore(_store_meeting._prefix(), store).set("1/answer/1", '{"word": 5}')
    with pytest.raises(InvalidArgument, match="the store's answer of rank 1 is malformed"):
        lead(store, 2, LONG_S, _serve)


class _AtHost:
    """A store that is reached at a host. Threads: one. Owns: nothing."""

    def __init__(self, host: str) -> None:
        self.host = host


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No variable of the outside counts, and the default route is that of 10.9.8.7."""
    for name in ("MASTER_ADDR", "PELTON_INTERFACE", "PELTON_INSECURE", "PELTON_TLS_CA"):
        monkeypatch.delenv(name, raising=False)
    own = {"localhost": "127.0.0.1", "debian": "127.0.1.1", "storehost": "10.1.2.3", _addresses._FAR_AWAY: "10.9.8.7"}
    monkeypatch.setattr(_addresses, "_own_address", own.get)
    return monkeypatch


def _interface(store_host: str, *guests: Guest) -> str:
    store: Any = _AtHost(store_host)
    return _rendezvous._interface(store, list(guests))


def test_loopback_is_for_ranks_of_one_host_whatever_the_environment_says(plain: pytest.MonkeyPatch) -> None:
    assert _interface("storehost", HERE, HERE) == "127.0.0.1"
    plain.setenv("PELTON_INSECURE", "1")
    plain.setenv("LOCAL_WORLD_SIZE", "2")  # a group of two, on two hosts with two ranks each
    assert _interface("storehost", HERE, THERE) == "10.1.2.3"


@pytest.mark.parametrize("name", ["debian", "localhost", "elsewhere"])
def test_loopback_is_never_for_several_hosts(plain: pytest.MonkeyPatch, name: str) -> None:
    plain.setenv("PELTON_INSECURE", "1")
    assert _interface(name, HERE, THERE) == "10.9.8.7"
    plain.setenv("PELTON_INTERFACE", "eth7")
    assert _interface(name, HERE, THERE) == "eth7"


def test_a_host_without_a_route_is_told_what_to_set(plain: pytest.MonkeyPatch) -> None:
    plain.setattr(_addresses, "_own_address", lambda towards: None)
    plain.setenv("PELTON_INSECURE", "1")
    with pytest.raises(InvalidArgument, match="PELTON_INTERFACE"):
        _interface("storehost", HERE, THERE)


def test_the_token_does_not_leave_the_host_in_clear(plain: pytest.MonkeyPatch) -> None:
    words = r"rank 1 is on another host \(beta\) than rank 0 \(alpha\).*PELTON_TLS_CA.*PELTON_INSECURE=1.*--insecure"
    with pytest.raises(FailedPrecondition, match=words):
        _interface("storehost", HERE, THERE)
    plain.setenv("PELTON_TLS_CA", "ca.pem")
    assert _interface("storehost", HERE, THERE) == "10.1.2.3"


def test_a_launchers_coordinator_elsewhere_gets_no_token_in_clear(plain: pytest.MonkeyPatch) -> None:
    plain.setenv("PELTON_COORDINATOR", "192.0.2.77:4000")  # of RFC 5737: nobody's
    plain.setenv("PELTON_JOB_TOKEN", TOKEN)
    with pytest.raises(FailedPrecondition, match=r"PELTON_COORDINATOR=192.0.2.77:4000.*PELTON_INSECURE=1"):
        _rendezvous.from_launcher(1, 0)
    plain.setenv("PELTON_INSECURE", "1")
    place = _rendezvous.from_launcher(1, 0)
    assert place is not None
    assert place.address == "192.0.2.77:4000"


def test_this_host_knows_its_own_addresses() -> None:
    assert all(map(_addresses.is_here, ("127.0.0.1", "localhost", "[::1]", "127.0.1.1")))
    assert not any(map(_addresses.is_here, ("192.0.2.77", "no.such.host.invalid")))
