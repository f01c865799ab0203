"""The shards of a job written by actors of Ray Data: on this machine, or on a cluster of Ray's.

Ray is optional: pip install -r requirements-ray.txt. By default a cluster of this machine's own is
started on 127.0.0.1, without dashboard and usage statistics, and stopped at the end.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..config.checks import check_int
from ..system.files import ROOT
from .job import Job, Row, shards_of
from .writer import Task, Writer

MISSING = "several workers need Ray, which is not installed: pip install -r requirements-ray.txt"
MEMORY = 100 * 2**20  # bytes of Ray's object store: texts are small


def check_ray() -> None:
    """Raises ImportError, saying what to install, where there is no Ray."""
    if importlib.util.find_spec("ray") is None:
        raise ImportError(MISSING)


class ShardWriter:
    """What an actor does: one shard a call, columns in and columns out."""

    def __init__(self, task: Task):
        self.write = Writer(task)

    def __call__(self, batch: dict) -> dict:
        shards = [[Row(*row) for row in rows] for rows in batch["rows"]]
        return {"shard": batch["shard"], "texts": [self.write(rows) for rows in shards]}


def write_by_ray(
    job: Job, task: Task, workers: int, address: str | None = None
) -> Iterator[tuple[int, Sequence[str]]]:
    """The texts of every shard that is not done, as they come, in any order: (number, texts).

    A worker that is lost is started again, and so is its shard. `address` names a cluster that
    runs already; all its machines must have this package and read the checkpoint at its path.
    Raises ImportError without Ray, ValueError for fewer than one worker, ConnectionError where Ray
    does not start, and ChildProcessError for a worker that fails however often it is started.
    """
    check_int("workers", workers, 1)
    check_ray()
    with _cluster(workers, address) as ray:
        shards = [
            {"shard": number, "rows": [list(row) for row in rows]}
            for number, rows in shards_of(job)
        ]
        data = ray.data.from_items(shards, override_num_blocks=len(shards))
        texts = data.map_batches(
            ShardWriter,
            fn_constructor_args=(task,),
            batch_size=1,
            num_cpus=1,
            compute=ray.data.ActorPoolStrategy(size=min(workers, len(shards))),
        )
        try:
            for row in texts.iter_rows():
                yield int(row["shard"]), list(row["texts"])
        except ray.exceptions.RayError as error:
            lines = str(error).strip().splitlines()
            why = next((line for line in reversed(lines) if "Error: " in line), lines[0])
            raise ChildProcessError(f"the workers fail: {why.strip()}") from error


@contextmanager
def _cluster(workers: int, address: str | None):
    """Ray, connected to a cluster for a with-block."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))  # of the workers
    if not address:  # nobody else may reach it: a token is asked for, and it is on loopback
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # on Linux it does the same
    import ray
    import ray.data

    _start(ray, workers, address)
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # an error is raised, too
    ray.data.DataContext.get_current().enable_progress_bars = False
    try:
        yield ray
    finally:
        ray.shutdown()


def _start(ray, workers: int, address: str | None) -> None:
    """Connect to the cluster at the address, else start one. Raises ConnectionError."""
    own = {"num_cpus": workers + 1, "object_store_memory": MEMORY, "include_dashboard": False}
    how = {"address": address} if address else {"address": "local", **own}
    for left in (2, 1, 0):
        try:
            ray.init(**how, log_to_driver=False, logging_level=logging.ERROR)
            return
        except Exception as error:  # of no class of its own: its helpers took more than 15 s
            ray.shutdown()
            if address or not left:
                why = str(error).strip().splitlines()[0]
                advice = "is it running?" if address else "is the machine busy? Try again"
                raise ConnectionError(f"Ray could not be started ({why}): {advice}") from error
