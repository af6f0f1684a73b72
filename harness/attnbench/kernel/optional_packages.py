"""Import of packages that an implementation calls, and that may be broken on this machine."""

import importlib
import logging
from functools import cache
from types import ModuleType

from attnbench.interface import Refusal
from attnbench.refusals import BrokenPackage

__all__ = ["explain_import", "import_package"]


def import_package(module: str, names: tuple[str, ...] = ()) -> ModuleType:
    """Import a module of an installed package, and return it; it must have these attributes.

    Raises: Refusal where the import fails or an attribute is missing.
    """
    found = _import_once(module, names)
    if isinstance(found, BrokenPackage):
        raise Refusal(found)
    return found


def explain_import(module: str, names: tuple[str, ...] = ()) -> BrokenPackage | None:
    """Return why ``import_package`` raises, or None if it does not."""
    found = _import_once(module, names)
    return found if isinstance(found, BrokenPackage) else None


@cache
def _import_once(module: str, names: tuple[str, ...]) -> ModuleType | BrokenPackage:
    """Import a module once; an import that failed is not tried again.

    What the package logs meanwhile is hidden, such as that it was built for another version of torch. An implementation
    refuses the cases that this prevents.
    """
    package = module.partition(".")[0]
    logger = logging.getLogger(package)
    logger.addFilter(_hide)
    try:
        found = importlib.import_module(module)
    except Exception as error:  # noqa: BLE001  # a package may raise anything, such as OSError for a missing library
        return BrokenPackage(package=package, error=" ".join(f"{type(error).__name__}: {error}".split()))
    finally:
        logger.removeFilter(_hide)
    lacks = [name for name in names if not hasattr(found, name)]
    return BrokenPackage(package=package, error=f"{module} has no {', '.join(lacks)}") if lacks else found


def _hide(record: logging.LogRecord) -> bool:  # noqa: ARG001  # the signature of a filter
    return False
