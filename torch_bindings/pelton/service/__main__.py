"""`python -m pelton.service --world-size N`: the tuning service on its own, on loopback, until it is interrupted."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import threading
from collections.abc import Sequence

from pelton._training import env
from pelton.errors import PeltonError
from pelton.service.autotune_service import AutotuneService, serve


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until SIGINT or SIGTERM; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m pelton.service", description=__doc__)
    parser.add_argument("--world-size", type=int, required=True, help="the number of ranks that will ask")
    parser.add_argument("--port", type=int, help="where to listen (BAGUA_SERVICE_PORT; a free port)")
    options = parser.parse_args(arguments)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    try:
        _serve(options.world_size, options.port, ended)
    except (PeltonError, ImportError) as error:
        sys.stderr.write(f"python -m pelton.service: {error}\n")
        return 1
    return 0


def _serve(world_size: int, port: int | None, ended: threading.Event) -> None:
    """Serves with what the environment says (docs/autotune.md)."""
    wanted = env.get_bagua_service_port() if port is None else port
    service = AutotuneService(
        world_size,
        autotune_level=env.get_autotune_level(),
        max_samples=env.get_autotune_max_samples(),
        sampling_confidence_time_s=env.get_autotune_sampling_confidence_time_s(),
        warmup_time_s=env.get_autotune_warmup_time_s(),
        is_output_autotune_log=env.get_is_output_autotune_log(),
        default_bucket_size=env.get_default_bucket_size(),
    )
    with contextlib.ExitStack() as stack:
        actual = stack.enter_context(serve(service, max(wanted, 0)))
        sys.stdout.write(f"tuning service at 127.0.0.1:{actual}\n")
        sys.stdout.flush()
        ended.wait()


if __name__ == "__main__":
    sys.exit(main())
