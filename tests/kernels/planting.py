"""Kernels with a fault planted into their source."""

import importlib.util
import inspect
from pathlib import Path
from types import ModuleType


def planted(module: ModuleType, folder: Path, right: str, wrong: str) -> ModuleType:
    """A copy of the module in which `wrong` stands once instead of `right`."""
    source = inspect.getsource(module)
    assert source.count(right) >= 1, f"{module.__name__} has no {right!r}"
    path = folder / f"planted_{len(list(folder.iterdir()))}.py"
    path.write_text(source.replace(right, wrong, 1))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy
