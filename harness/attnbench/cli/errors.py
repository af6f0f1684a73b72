"""Errors of use: one line that names the argument and the remedy, exit code 2, no traceback."""

import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from attnbench.plugins.registry import PluginError
from attnbench.processes.rpc import ChildDied, ChildTimeout

__all__ = ["one_line"]

USAGE = 2
INTERRUPTED = 130


@contextmanager
def one_line() -> Iterator[None]:
    """Turn what the user can mend into one line and exit code 2."""
    # A run that is told to end (by CI, say) ends its workers and says how to go on, as one that is interrupted does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(USAGE)
    except click.ClickException as error:
        _fail(error.format_message())
    except (click.Abort, KeyboardInterrupt) as error:
        # A run that has a file says which it is.
        run = next(iter(error.args), None)
        _fail(f"interrupted: what was stored is kept; go on with --resume {run}" if run else "interrupted", INTERRUPTED)
    except PluginError as error:
        _fail(str(error))
    except (ChildDied, ChildTimeout) as error:
        _fail(f"the judge's process ended: {error}; run again with fewer or smaller cases (--case, --lengths)")
    except OSError as error:
        if error.filename is None:
            raise
        _fail(f"cannot use {error.filename}: {error.strerror}; name another place (--results, --reports, --json)")
    except Exception as error:
        message = _missing(error) if isinstance(error, ModuleNotFoundError) else _mistake(error)
        if message is None:
            raise
        _fail(message)


def _missing(error: ModuleNotFoundError) -> str | None:
    """What to install, or None where the module is none of attnbench's own dependencies, extras aside."""
    # Imported here: --help should not wait for it either.
    from importlib.metadata import PackageNotFoundError, requires

    try:
        declared = requires("attnbench") or ()
    except PackageNotFoundError:
        return None
    for requirement in declared:
        if ";" not in requirement and re.split(r"[^\w.-]", requirement)[0] == error.name:
            return f"{error.name} is not installed, and attnbench needs it: pip install '{requirement}'"
    return None


def _mistake(error: Exception) -> str | None:
    """What one of attnbench's own errors of use says, or None."""
    # Imported here: these need msgspec, and --help should not wait for it.
    from attnbench.analysis.certificate import CertificateError
    from attnbench.records.run_file import ResultsError
    from attnbench.runner import ExpectationError

    return str(error) if isinstance(error, ResultsError | ExpectationError | CertificateError) else None


def _fail(message: str, code: int = USAGE) -> None:
    click.echo(f"attnbench: {' '.join(message.split())}", err=True)
    sys.exit(code)
