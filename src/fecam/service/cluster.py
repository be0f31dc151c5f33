"""A service on a cluster of Ray: replicas that answer, wherever there is room, and one writer.

The writer is where the file is. A replica that dies is replaced, and fetches the model; a writer
that dies is replaced, and opens the file again, in which is all that was acknowledged.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from fastapi import FastAPI

from fecam.distributed.cluster import connect, require_ray
from fecam.errors import ClusterError, MissingPackageError, SettingsError
from fecam.service import logs
from fecam.service.app import create_app
from fecam.service.engine import EASY, Engine
from fecam.service.replica import Replica
from fecam.service.run import BUSY, GRACE, listen, url_of
from fecam.service.settings import ServiceSettings
from fecam.service.tokens import TokenFile
from fecam.service.writer import Writer

ANSWERS, WRITES = "fecam", "fecam-writer"
"""Two applications of Ray Serve, so that the first can be ended before the second."""
ENVIRONMENT = {
    # Only the proxies listen. Ray can let each replica do so, at every address of its machine.
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",
    "RAY_SERVE_ENABLE_HA_PROXY": "0",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "0",
    # Nothing here keeps the event loop waiting, so it need not have a thread of its own.
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
}
LIFE: dict[str, Any] = {
    "health_check_period_s": 1.0,
    "health_check_timeout_s": float(BUSY),
    "graceful_shutdown_wait_loop_s": 0.1,
    "graceful_shutdown_timeout_s": float(GRACE),
}


class Writing:
    """The writer as Ray keeps it."""

    def __init__(self, settings: ServiceSettings) -> None:
        logs.set_up(settings)
        self._writer = Writer(settings)

    async def ask(self, verb: str, *given: Any, **named: Any) -> Any:
        """As `Writer.ask`."""
        return await self._writer.ask(verb, *given, **named)

    async def __del__(self) -> None:
        await self._writer.close()


def answering(settings: ServiceSettings) -> FastAPI:
    """The application of a replica: the same as anywhere, with another engine."""
    from ray import serve
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    logs.set_up(settings)
    writer = serve.get_app_handle(WRITES)

    async def ask(*given: Any, **named: Any) -> Any:
        try:
            return await writer.ask.remote(*given, **named)
        except (RayError, RayServeException) as error:
            raise ConnectionError(type(error).__name__) from None

    return create_app(settings, Replica(settings, ask))


def run_on_ray(settings: ServiceSettings, address: str, replicas: int) -> None:
    """Serve on a cluster until a signal says to end; what was accepted is finished."""
    if settings.tokens is not None:
        TokenFile(settings.tokens).tokens()  # what is wrong with them is told now
    if replicas < 1:
        raise SettingsError(f"replicas={replicas} must be at least 1.")
    logs.set_up(settings)
    # The signals are ours only after Ray, which takes them for itself, has begun.
    with served(settings, address, replicas) as url, _signals() as ended:
        logs.event("serving", model=settings.model.name, url=url, replicas=replicas)
        ended.wait()


@contextmanager
def served(settings: ServiceSettings, address: str, replicas: int) -> Iterator[str]:
    """A service on a cluster, and its address; it is ended when it is left."""
    if "://" in address:
        raise SettingsError(
            f"--ray {address}: the file must lie on a machine of the cluster. Serve from there, "
            "with --ray auto."
        )
    ray, serve = _the_packages()
    with listen(settings) as listening:  # whether that can be done is told now
        port = listening.getsockname()[1]
    settings = replace(
        settings,
        port=port,
        predict_workers=0,  # a replica has one processor
        model=settings.model.absolute(),
        tokens=None if settings.tokens is None else settings.tokens.absolute(),
    )
    Engine(settings).model.close()  # what is wrong with the model is told now
    os.environ.setdefault("RAY_worker_niceness", "0")  # of a cluster that begins here
    joined = connect(address)
    try:
        with _deployed(serve, settings, _here(ray, settings, replicas), replicas):
            yield url_of(settings.host, port)
    finally:
        if joined:
            ray.shutdown()


@contextmanager
def _deployed(serve: Any, settings: ServiceSettings, here: str, replicas: int) -> Iterator[None]:
    """All of it, until it is left: then first the replicas end, which may need the writer."""
    from ray.serve.exceptions import RayServeException

    try:
        try:
            _deploy(serve, settings, here, replicas)
        except RuntimeError as error:
            why = str(error).strip().partition("\n")[0]
            raise ClusterError(
                f"the service did not start ({why}). The logs of Ray say more: `ray logs`."
            ) from error
        yield
    finally:
        for name in (ANSWERS, WRITES):
            with suppress(RayServeException):  # it may not have begun
                serve.delete(name)
        serve.shutdown()


def _the_packages() -> tuple[Any, Any]:
    """Ray and its Serve."""
    ray = require_ray()
    try:
        from ray import serve
    except ImportError:
        raise MissingPackageError("serving on a cluster", "ray[serve]", "ray") from None
    return ray, serve


def _here(ray: Any, settings: ServiceSettings, replicas: int) -> str:
    """The resource that only this machine has; what stands against serving is told now."""
    try:
        ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
    except ValueError:
        pass
    else:
        raise SettingsError(
            "Ray Serve runs on this cluster already, and where it listens cannot be changed. End "
            "what it serves, `serve shutdown`, or serve on a cluster of its own: --ray local."
        )
    free = int(ray.available_resources().get("CPU", 0))
    if replicas > free:
        raise SettingsError(
            f"{replicas} replicas need a processor each, and {free} are free on this cluster. "
            "Serve with fewer, --replicas, or add machines."
        )
    number = ray.get_runtime_context().get_node_id()
    (mine,) = (node["Resources"] for node in ray.nodes() if node["NodeID"] == number)
    if settings.is_local and "node:__internal_head__" not in mine:
        raise SettingsError(
            f"on {settings.host} only the cluster's head would hear. Serve from there, or for "
            "others, too: --host 0.0.0.0 --tokens FILE."
        )
    return next(str(name) for name in mine if name.startswith("node:") and name[-2:] != "__")


def _deploy(serve: Any, settings: ServiceSettings, here: str, replicas: int) -> None:
    """Start all of it, and wait until it is there."""
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    serve.start(
        # On loopback one machine listens; a token lets in at any.
        proxy_location="HeadOnly" if settings.is_local else "EveryNode",
        http_options={"host": settings.host, "port": settings.port},
    )
    most = EASY * settings.limits.queue
    common = {
        "max_ongoing_requests": most,  # beyond, engines refuse by themselves
        "max_queued_requests": most,  # and what none of them can take is refused by Ray
        "logging_config": {"log_level": "WARNING", "enable_access_log": False},
        **LIFE,
    }
    # The writer needs no processor of its own: lessons are rare, and it must always find room.
    place = {"num_cpus": 0, "resources": {here: 0.001}, "runtime_env": {"env_vars": ENVIRONMENT}}
    writer = serve.deployment(
        Writing, name=WRITES, num_replicas=1, ray_actor_options=place, **common
    )
    serve.run(writer.bind(settings), name=WRITES, route_prefix=None)

    def build() -> FastAPI:
        return answering(settings)

    place = {"num_cpus": 1, "runtime_env": {"env_vars": ENVIRONMENT}}
    replica = serve.deployment(
        serve.ingress(build)(),
        name=ANSWERS,
        num_replicas=replicas,
        ray_actor_options=place,
        **common,
    )
    serve.run(replica.bind(), name=ANSWERS, route_prefix="/")


@contextmanager
def _signals() -> Iterator[threading.Event]:
    """An event that a signal to end sets; a second signal breaks off."""
    ended = threading.Event()

    def end(number: int, frame: object) -> None:
        if ended.is_set():
            raise KeyboardInterrupt
        ended.set()

    before = {one: signal.signal(one, end) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield ended
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
