"""A service on a Ray cluster: replicas that predict, and one writer on the node with the file.

Ray replaces a dead replica, which fetches the model, and a dead writer, which opens the file again:
it contains all acknowledged changes.
"""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from fecam.distributed.cluster import connect, require_ray
from fecam.errors import ClusterError, MissingPackageError, SettingsError
from fecam.service import logs
from fecam.service.app import App
from fecam.service.engine import Engine
from fecam.service.predictions import FEATURE_QUEUE_FACTOR
from fecam.service.replica import Replica
from fecam.service.run import SHUTDOWN_TIMEOUT_S, WORKER_TIMEOUT_S, listen, url_of
from fecam.service.settings import ServiceSettings
from fecam.service.tokens import TokenFile
from fecam.service.writer import Writer
from fecam.validation import check_int

REPLICA_APP, WRITER_APP = "fecam", "fecam-writer"
"""Two Ray Serve applications, so that the replicas can be stopped before the writer."""
ENVIRONMENT = {
    # Only the proxies listen, not every replica on all addresses of its node.
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",
    "RAY_SERVE_ENABLE_HA_PROXY": "0",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "0",
    # The application never blocks the event loop, so it needs no separate thread.
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
}
DEPLOYMENT_OPTIONS: dict[str, Any] = {
    "health_check_period_s": 1.0,
    "health_check_timeout_s": float(WORKER_TIMEOUT_S),
    "graceful_shutdown_wait_loop_s": 0.1,
    "graceful_shutdown_timeout_s": float(SHUTDOWN_TIMEOUT_S),
}


class WriterDeployment:
    """A `Writer` as a Ray Serve deployment."""

    def __init__(self, settings: ServiceSettings) -> None:
        logs.set_up(settings)
        self._writer = Writer(settings)

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call `Writer.call`."""
        return await self._writer.call(method, *args, **kwargs)

    async def __del__(self) -> None:
        await self._writer.close()


def replica_app(settings: ServiceSettings) -> App:
    """Return the application of a replica: `App` with a `Replica` as its engine."""
    from ray import serve
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    logs.set_up(settings)
    writer = serve.get_app_handle(WRITER_APP)

    async def call_writer(*args: Any, **kwargs: Any) -> Any:
        try:
            return await writer.call.remote(*args, **kwargs)
        except (RayError, RayServeException) as error:
            raise ConnectionError(type(error).__name__) from None

    return App(settings, Replica(settings, call_writer))


def run_on_ray(settings: ServiceSettings, address: str, replicas: int) -> None:
    """Serve on a cluster until a signal; accepted requests are finished."""
    if settings.tokens is not None:
        TokenFile(settings.tokens).tokens()  # raises now if they are invalid
    check_int("replicas", replicas)
    logs.set_up(settings)
    # Ray installs its own signal handlers when it starts, so ours come after.
    with served(settings, address, replicas) as url, _signals() as stopped:
        logs.event("serving", model=settings.model.name, url=url, replicas=replicas)
        stopped.wait()


@contextmanager
def served(settings: ServiceSettings, address: str, replicas: int) -> Iterator[str]:
    """Serve on a cluster within the context; yield the URL."""
    if "://" in address:
        raise SettingsError(
            f"--ray {address}: the file must be on a node of the cluster. Serve from there, "
            "with --ray auto."
        )
    ray, serve = _import_ray_serve()
    with listen(settings) as listening:  # raises now if the port is in use
        port = listening.getsockname()[1]
    settings = replace(
        settings,
        port=port,
        model=settings.model.absolute(),
        tokens=None if settings.tokens is None else settings.tokens.absolute(),
    )
    Engine(settings).model.close()  # raises now if the model is invalid
    os.environ.setdefault("RAY_worker_niceness", "0")  # for a cluster that starts in this process
    joined = connect(address)
    try:
        with _deployed(serve, settings, _node_resource(ray, settings, replicas), replicas):
            yield url_of(settings.host, port)
    finally:
        if joined:
            ray.shutdown()


@contextmanager
def _deployed(
    serve: Any, settings: ServiceSettings, node_resource: str, replicas: int
) -> Iterator[None]:
    """Deploy within the context; the replicas stop first, because they may need the writer."""
    from ray.serve.exceptions import RayServeException

    try:
        try:
            _deploy(serve, settings, node_resource, replicas)
        except RuntimeError as error:
            reason = str(error).strip().partition("\n")[0]
            raise ClusterError(
                f"the service did not start ({reason}). See the logs of Ray: `ray logs`."
            ) from error
        yield
    finally:
        for name in (REPLICA_APP, WRITER_APP):
            with suppress(RayServeException):  # it may not be deployed
                serve.delete(name)
        serve.shutdown()


def _import_ray_serve() -> tuple[Any, Any]:
    """Return the modules ray and ray.serve."""
    ray = require_ray()
    try:
        from ray import serve
    except ImportError:
        raise MissingPackageError("serving on a cluster", "ray[serve]", "ray") from None
    return ray, serve


def _node_resource(ray: Any, settings: ServiceSettings, replicas: int) -> str:
    """Return the Ray resource of this node; raise if the cluster cannot serve."""
    try:
        ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
    except ValueError:
        pass
    else:
        raise SettingsError(
            "Ray Serve is already running on this cluster, and its address cannot be changed. Stop "
            "it with `serve shutdown`, or use a separate cluster: --ray local."
        )
    free = int(ray.available_resources().get("CPU", 0))
    if replicas > free:
        raise SettingsError(
            f"{replicas} replicas need one CPU each, but the cluster has {free} free. Use fewer "
            "--replicas, or add nodes."
        )
    node_id = ray.get_runtime_context().get_node_id()
    (resources,) = (node["Resources"] for node in ray.nodes() if node["NodeID"] == node_id)
    if settings.is_local and "node:__internal_head__" not in resources:
        raise SettingsError(
            f"host {settings.host!r} is reachable only on the head node of the cluster. Serve from "
            "there, or on all interfaces: --host 0.0.0.0 --tokens FILE."
        )
    return next(str(name) for name in resources if name.startswith("node:") and name[-2:] != "__")


def _deploy(serve: Any, settings: ServiceSettings, node_resource: str, replicas: int) -> None:
    """Deploy the writer and the replicas, and wait until they run."""
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    serve.start(
        # On loopback only the head node listens.
        proxy_location="HeadOnly" if settings.is_local else "EveryNode",
        http_options={"host": settings.host, "port": settings.port},
    )
    max_requests = FEATURE_QUEUE_FACTOR * settings.limits.queue
    common = {
        "max_ongoing_requests": max_requests,  # engines reject more
        "max_queued_requests": max_requests,  # Ray rejects more
        "logging_config": {"log_level": "WARNING", "enable_access_log": False},
        **DEPLOYMENT_OPTIONS,
    }
    # The writer reserves no CPU, so that it can always be placed; changes are rare.
    actor_options = {
        "num_cpus": 0,
        "resources": {node_resource: 0.001},
        "runtime_env": {"env_vars": ENVIRONMENT},
    }
    writer = serve.deployment(
        WriterDeployment, name=WRITER_APP, num_replicas=1, ray_actor_options=actor_options, **common
    )
    serve.run(writer.bind(settings), name=WRITER_APP, route_prefix=None)

    def build() -> App:
        return replica_app(settings)

    actor_options = {"num_cpus": 1, "runtime_env": {"env_vars": ENVIRONMENT}}
    replica = serve.deployment(
        serve.ingress(build)(),
        name=REPLICA_APP,
        num_replicas=replicas,
        ray_actor_options=actor_options,
        **common,
    )
    serve.run(replica.bind(), name=REPLICA_APP, route_prefix="/")


@contextmanager
def _signals() -> Iterator[threading.Event]:
    """Yield an event that SIGINT or SIGTERM sets; a second signal interrupts."""
    stopped = threading.Event()

    def stop(number: int, frame: object) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    previous = {sig: signal.signal(sig, stop) for sig in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for sig, handler in previous.items():
            signal.signal(sig, handler)
