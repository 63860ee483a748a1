"""The configs that can be run, by the names of their files."""

import importlib
import pathlib

ROOT = pathlib.Path(__file__).parents[2]
NAMES = sorted(
    path.stem for path in (ROOT / "configs").glob("*.py") if "def get_config(" in path.read_text()
)


def load(name, arg=""):
    return importlib.import_module(f"configs.{name}").get_config(arg)
