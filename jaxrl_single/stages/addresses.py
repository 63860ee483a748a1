"""Where the samplers of a run are: WORKDIR/samplers/NAME.json, one file each. No jax.

    {"url": "http://127.0.0.1:41234", "hostname": "machine", "pid": 4242}

A sampler writes its file when it has weights and listens, and removes it when it stops. Files of
processes that died without that are told by their pid and left out.
"""

from __future__ import annotations

import os
import socket
import time
import urllib.parse
from collections.abc import Callable, Sequence

import ml_collections

from jaxrl_single import atomic, workdir
from jaxrl_single.sampler.service import access

_FRESH_S = 0.5  # `Watch` reads the directory at most so often


def sampler_names(config: ml_collections.ConfigDict) -> list[str]:
    """Of the sampler processes that a run starts itself: none when it is given other ones."""
    if config.rollout.sampler_urls:
        return []
    count = config.sampler.num_processes
    return ["sampler"] if count == 1 else [f"sampler-{number}" for number in range(count)]


def port(config: ml_collections.ConfigDict, name: str) -> int:
    """To listen on: `sampler.port` and the ones after it, 0 = any free one."""
    names = sampler_names(config)
    offset = names.index(name) if name in names else 0
    return config.sampler.port + offset if config.sampler.port else 0


def announce(paths: workdir.Workdir, name: str, *, host: str, port: int) -> str:
    """Tells rollouts of a sampler that listens; returns its URL.

    A sampler that listens on every address of its machine is called by the machine's name.
    """
    url = access.url(host, port)
    paths.samplers.mkdir(parents=True, exist_ok=True)
    record = {"url": url, "hostname": socket.gethostname(), "pid": os.getpid()}
    workdir.write_json(_file(paths, name), record)
    return url


def withdraw(paths: workdir.Workdir, name: str) -> None:
    """Takes back what `announce` told."""
    _file(paths, name).unlink(missing_ok=True)


def urls(paths: workdir.Workdir) -> list[str]:
    """The samplers of this run that can be reached from here, by name."""
    records = [workdir.read_json(path) for path in sorted(paths.samplers.glob("[!.]*.json"))]
    return [record["url"] for record in records if record and _reachable(record)]


class Watch:
    """`urls`, for those who ask often."""

    def __init__(self, paths: workdir.Workdir):
        self._paths = paths
        self._urls: Sequence[str] = ()
        self._read_at = -float("inf")

    def urls(self) -> Sequence[str]:
        """At most half a second old."""
        if time.monotonic() - self._read_at > _FRESH_S:
            self._urls = tuple(urls(self._paths))
            self._read_at = time.monotonic()
        return self._urls


def source(paths: workdir.Workdir, given: Sequence[str]) -> Callable[[], Sequence[str]]:
    """The samplers to ask: those of `rollout.sampler_urls`, if there are any, else the run's."""
    if given:
        fixed = tuple(url.rstrip("/") for url in given)
        return lambda: fixed
    return Watch(paths).urls


def _file(paths: workdir.Workdir, name: str):
    return paths.samplers / f"{name}.json"


def _reachable(record: dict) -> bool:
    if record["hostname"] == socket.gethostname():
        return atomic.is_alive(record["pid"])
    host = urllib.parse.urlsplit(record["url"]).hostname or ""
    return not access.is_loopback(host)
