"""Workers wherever Ray has places: one actor for each accelerator, or for each core."""

from __future__ import annotations

import logging
import os
from collections.abc import Hashable, Sequence
from contextlib import suppress
from typing import Any, Final, cast

from kdaverify.campaign.engine import RESOURCES, Engine, EngineError, WorkerLostError
from kdaverify.campaign.task import Orders, Task, TaskResult
from kdaverify.campaign.worker import Worker

OBJECT_STORE_BYTES: Final = 80 * 2**20
"""Of a cluster of our own: tasks and answers are kilobytes; Ray would take a third of the
memory."""


class RayEngine(Engine):
    """Actors of a cluster, or of one of our own on this machine.

    Args:
        places: workers wanted; None for one on every accelerator, or core, that the cluster has.
        device: type of the device that the kernels run on.
        address: of a cluster; None starts one here, which ends with this engine.
    Raises:
        EngineError: Ray is not installed, the cluster is not there, or has no such place.
    """

    def __init__(
        self, orders: Orders, *, places: int | None, device: str = "cpu", address: str | None = None
    ) -> None:
        self._ray = _ray()
        self._orders, self._device = orders, device
        self._actors: dict[int, Any] = {}
        own: dict[str, Any] = {
            "num_cpus": places,
            "object_store_memory": OBJECT_STORE_BYTES,
            "include_dashboard": False,
        }
        try:
            self._ray.init(
                address=address or "local",
                logging_level=logging.ERROR,
                log_to_driver=False,
                **({} if address else own),
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise EngineError(
                f"--address: no Ray cluster at {address}: {error}; start one with `ray start"
                " --head`"
            ) from None
        resource = RESOURCES.get(device, "CPU")
        there = int(self._ray.cluster_resources().get(resource, 0))
        self.places = there if places is None else places
        if not 0 < self.places <= there:
            self.close()
            raise EngineError(
                f"--workers: wanted {places or 'some'}, one a {resource}, but the cluster has"
                f" {there}; request at most that"
            )

    def submit(self, place: int, task: Task, *, apart: bool) -> Hashable:
        if place not in self._actors:
            self._actors[place] = (
                self._ray.remote(Worker).options(**self._needs()).remote(self._orders)
            )
        reference = self._actors[place].answer.remote(task, apart=apart)
        return place, reference

    def wait(self, pending: Sequence[Hashable]) -> Sequence[Hashable]:
        by_reference = {
            reference: (place, reference)
            for place, reference in cast("Sequence[tuple[int, Any]]", pending)
        }
        done: list[Any] = []
        while not done:
            # Short waits: between them Ctrl-C is heard.
            done, _ = self._ray.wait(list(by_reference), num_returns=1, timeout=1.0)
        return [by_reference[reference] for reference in done]

    def answer(self, done: Hashable) -> TaskResult:
        place, reference = cast("tuple[int, Any]", done)
        try:
            return cast("TaskResult", self._ray.get(reference))
        except self._ray.exceptions.RayActorError as reason:
            self._actors.pop(place, None)
            # The last line is the cause, also of a worker that could not be made.
            raise WorkerLostError(str(reason).strip().rpartition("\n")[2]) from None

    def close(self) -> None:
        for actor in self._actors.values():
            with suppress(self._ray.exceptions.RayError):
                self._ray.kill(actor)
        self._actors.clear()
        self._ray.shutdown()

    def _needs(self) -> dict[str, Any]:
        resource = RESOURCES.get(self._device)
        if resource == "GPU":
            return {"num_cpus": 1, "num_gpus": 1}
        return {"num_cpus": 1} if resource is None else {"num_cpus": 1, "resources": {resource: 1}}


def _ray() -> Any:
    # No usage statistics are sent, and every actor sees the devices it was given, none if none.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise EngineError(
            "--engine: ray is not installed; pip install 'kdaverify[ray]', or leave the engine at"
            " local"
        ) from None
    return ray
