"""Runs inside vLLM's workers (`--worker-extension-cls`): takes over published weights.

Here vLLM is the only library besides Python's own: this file is read in vLLM's environment.
"""

from __future__ import annotations

import pathlib

_NEEDED = ("config.json", "*.safetensors")


class PublishedWeights:
    """Methods that vLLM adds to each of its workers; `/collective_rpc` calls them by name."""

    def load_published(self, directory: str) -> dict[str, str]:
        """Replaces the model's weights by those of a checkpoint in Hugging Face layout.

        Returns:
          error: what went wrong, "" if nothing did. An exception would end the whole server.
        """
        try:
            for pattern in _NEEDED:
                if not any(pathlib.Path(directory).glob(pattern)):
                    return {"error": f"{directory}: there is no {pattern} that vLLM can read"}
            self.reload_weights(weights_path=directory)
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}
        return {"error": ""}
