"""Errors of use: one line that names the argument and the remedy, exit code 2, no traceback."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from attnbench.child import ChildDied, ChildTimeout
from attnbench.registry import PluginError

__all__ = ["one_line"]

USAGE = 2
INTERRUPTED = 130


@contextmanager
def one_line() -> Iterator[None]:
    """Turn what the user can mend into one line and exit code 2."""
    # Imported here: these need msgspec, and --help should not wait for it.
    try:
        yield
    except click.ClickException as error:
        _fail(error.format_message())
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted: what was stored is kept; go on with --resume RUN", INTERRUPTED)
    except PluginError as error:
        _fail(str(error))
    except (ChildDied, ChildTimeout) as error:
        _fail(f"the judge's process ended: {error}; run again with fewer or smaller cases (--case, --lengths)")
    except Exception as error:
        from attnbench.results import ResultsError
        from attnbench.runner import ExpectationError

        if not isinstance(error, ResultsError | ExpectationError):
            raise
        _fail(str(error))


def _fail(message: str, code: int = USAGE) -> None:
    click.echo(f"attnbench: {' '.join(message.split())}", err=True)
    sys.exit(code)
