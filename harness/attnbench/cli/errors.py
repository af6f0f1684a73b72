"""Usage errors: one line that names the argument and the remedy, exit code 2, no traceback."""

import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from attnbench.plugins.registry import PluginError
from attnbench.processes.errors import ChildDied, ChildTimeout
from attnbench.records.exit_codes import INTERRUPTED, USAGE

__all__ = ["one_line"]


@contextmanager
def one_line() -> Iterator[None]:
    """Context manager that turns errors that the user can fix into one line and exit code 2."""
    _end_on_signals()
    try:
        yield
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(USAGE)
    except click.ClickException as error:
        _fail(error.format_message())
    except (click.Abort, KeyboardInterrupt) as error:
        _fail(_describe_interrupt(error.args), INTERRUPTED)
    except PluginError as error:
        # A plug-in (a study, for example) may fail to import because a dependency of attnbench is
        # not installed. The message then names this dependency.
        cause = error.__cause__
        missing = _describe_missing_module(cause) if isinstance(cause, ModuleNotFoundError) else None
        _fail(missing or str(error))
    except (ChildDied, ChildTimeout) as error:
        ended = _describe_end(error)
        _fail(f"the oracle worker ended: {ended}; run again with fewer or smaller cases (--case, --lengths)")
    except OSError as error:
        if error.filename is None:
            raise
        _fail(f"cannot use {error.filename}: {error.strerror}; name another path (--results, --reports, --json)")
    except Exception as error:
        message = (
            _describe_missing_module(error) if isinstance(error, ModuleNotFoundError) else _describe_usage_error(error)
        )
        if message is None:
            raise
        _fail(message)


def _end_on_signals() -> None:
    """Handle SIGTERM (sent by CI systems, for example) and the closing of a terminal like Ctrl-C.

    The workers end, and the command that resumes the run is printed.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Windows has no SIGHUP, and nohup ignores it on purpose.
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.default_int_handler)


def _describe_interrupt(arguments: tuple[object, ...]) -> str:
    """Return the message of an interrupt.

    If the run is stored in a file, ``arguments`` contains the command line that resumes the run. A second argument, if
    there is one, is the command line that reports on the run. If the run is not stored, ``arguments`` is empty.
    """
    if not arguments:
        return "interrupted"
    resuming, *reporting = arguments
    told = f"; report the stored results with: {reporting[0]}" if reporting else ""
    return f"interrupted: stored results are kept, what was under way is repeated; continue with: {resuming}{told}"


def _describe_end(error: ChildDied | ChildTimeout) -> str:
    # Imported here so that --help stays quick.
    from attnbench.words.findings import describe_fact

    return describe_fact(error.fact)


def _describe_missing_module(error: ModuleNotFoundError) -> str | None:
    """Return a message that says what to install, or None if attnbench does not declare the missing module."""
    # Imported here so that --help stays quick.
    from importlib.metadata import PackageNotFoundError, requires

    from attnbench.refusals import write_install_line

    try:
        declared = requires("attnbench") or ()
    except PackageNotFoundError:
        return None
    for requirement in declared:
        needed, _, marker = requirement.partition(";")
        extra = re.search(r"extra == [\"'](\w+)[\"']", marker)
        # ``all`` has the requirements of other extras.
        if re.split(r"[^\w.-]", needed)[0] == error.name and (extra is None or extra[1] != "all"):
            install = write_install_line(extra[1]) if extra else f"pip install '{needed.strip()}'"
            return f"{error.name} is not installed, and this needs it: {install}"
    return None


def _describe_usage_error(error: Exception) -> str | None:
    """Return the message of a ResultsError, ExpectationError or CertificateError, else None."""
    # Imported here so that --help stays quick: these modules need msgspec.
    from attnbench.analysis.certificate import CertificateError
    from attnbench.records.run_file import ResultsError
    from attnbench.runner import ExpectationError

    return str(error) if isinstance(error, ResultsError | ExpectationError | CertificateError) else None


def _fail(message: str, code: int = USAGE) -> None:
    click.echo(f"attnbench: {' '.join(message.split())}", err=True)
    sys.exit(code)
