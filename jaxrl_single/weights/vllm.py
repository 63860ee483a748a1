"""Published weights into a running vLLM server: one that `launch/vllm.sh` has started.

A version goes there as a checkpoint in Hugging Face layout, by way of a directory that the server
reads too. While it is loaded the server pauses: it ends what it is sampling, and says so in its
answers, drops its prefix cache, and goes on with the new weights under the new version's name.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import urllib.error
import urllib.request
from typing import Any

from jaxrl_single.models import config as config_lib
from jaxrl_single.models import hf
from jaxrl_single.weights import base

_MODEL = "model"
_QUICK_S = 10.0  # for an answer that needs no work
_SLOW_S = 600.0  # for loading


class ServerLost(RuntimeError):
    """vLLM does not answer, or says that it has failed."""


class VllmServer:
    """The weights of one server.

    Args:
      url: such as http://127.0.0.1:8000.
      directory: for checkpoints; the server must see it under the same path.
      shape: of the model.
      context_length: most tokens of an episode; the server takes it from the checkpoint.
      token: its --api-key, or None.
    """

    def __init__(
        self,
        url: str,
        directory: str | os.PathLike,
        shape: config_lib.ModelConfig,
        *,
        context_length: int,
        token: str | None = None,
    ):
        self.url = url.rstrip("/")
        self.directory = pathlib.Path(directory).absolute()
        self._shape = shape
        self._context_length = context_length
        self._token = token
        self._serving: pathlib.Path | None = None  # the checkpoint that it has loaded

    def write_model(self, params: base.Params) -> pathlib.Path:
        """The checkpoint that the server starts from, unless it is there; returns its place."""
        model = self.directory / _MODEL
        if not model.exists():
            self._save(model, params)
        return model

    def version(self) -> int | None:
        """The version it serves; None while it serves what it was started with.

        Raises:
          ServerLost: it does not answer.
        """
        name = self._ask("weight_info", timeout_s=_QUICK_S)["weight_version"]
        return int(name) if name.isdecimal() else None

    def load(self, version: int, params: base.Params) -> None:
        """Samples with these weights from now on; what it was sampling ends as "abort".

        Raises:
          base.InvalidWeights: it can't load them; it goes on with the ones before.
          ServerLost: it does not answer.
        """
        checkpoint = self.directory / f"v{version:09d}"
        shutil.rmtree(checkpoint, ignore_errors=True)
        self._save(checkpoint, params)
        self._ask("pause?mode=abort", {})
        try:
            self._replace(checkpoint)
        except base.InvalidWeights:
            self._ask("resume", {})
            raise
        # If this fails it stays paused until the next try: nothing is sampled under a wrong name.
        self._ask("update_weight_version", {"new_version": str(version)})
        self._ask("resume", {})
        self._serving = checkpoint
        for other in self.directory.glob("v[0-9]*"):  # also of a process before this one
            if other != checkpoint:
                shutil.rmtree(other, ignore_errors=True)

    def _save(self, place: pathlib.Path, params: base.Params) -> None:
        hf.save(place, self._shape, params, context_length=self._context_length)

    def _replace(self, checkpoint: pathlib.Path) -> None:
        problem = self._reload(checkpoint)
        if not problem:
            return
        shutil.rmtree(checkpoint, ignore_errors=True)
        before = self._serving or self.directory / _MODEL
        lost = self._reload(before)  # a part of the new ones may be in place
        if lost:
            raise ServerLost(f"{self.url}: {problem}; and the weights before: {lost}")
        raise base.InvalidWeights(f"{self.url} goes on with the weights of {before}: {problem}")

    def _reload(self, checkpoint: pathlib.Path) -> str:
        """What went wrong on any of its workers, "" if nothing did."""
        message = {"method": "load_published", "args": [str(checkpoint)]}
        results = self._ask("collective_rpc", message)["results"]
        return "; ".join(result["error"] for result in results if result["error"])

    def _ask(
        self, verb: str, message: dict[str, Any] | None = None, *, timeout_s: float = _SLOW_S
    ) -> Any:
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        body = None if message is None else json.dumps(message).encode()
        request = urllib.request.Request(f"{self.url}/{verb}", data=body, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as response:
                return json.loads(response.read())
        except urllib.error.HTTPError as error:
            reason = error.read()[:200].decode(errors="replace")
            raise ServerLost(
                f"{self.url}/{verb} answers {error.code}: {reason}; "
                "is it a vLLM server that launch/vllm.sh has started?"
            ) from error
        except (OSError, ValueError) as error:
            raise ServerLost(f"{self.url}/{verb}: {error}") from error
