"""The command line. A command's module is imported when the command is named, so that ``--help`` is quick."""

import importlib
import sys

import click

from attnbench.cli.errors import one_line

__all__ = ["main"]

# Command to its one-line help; the module attnbench.cli.<command> has it under the name ``command``.
COMMANDS = {
    "list": "Implementations, where each comes from, what it supports here and why not the rest.",
    "conform": "Check implementations against the reference over a suite of cases.",
    "profile": "Speed and memory across sequence lengths, of what conforms.",
    "report": "HTML page, plots, CSV and Markdown from stored runs.",
    "compare": "What became slower, faster, bigger or wrong between two runs, implementations or source trees.",
    "study": "Figures that show why: saturation, additive scores, attention maps, padding.",
    "reproduce": "Run one check of one case again.",
    "drop-in": "Swap implementations into a real sentence encoder: its embeddings and its time.",
    "run": "Conform, profile and report: the main job.",
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            ctx.fail(f"unknown command {name!r}; available: {', '.join(COMMANDS)}")
        command: click.Command = importlib.import_module(f"attnbench.cli.{name.replace('-', '_')}_command").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="attnbench")
def attnbench() -> None:
    """Check, measure and track implementations of multi-head attention in PyTorch."""


def main() -> None:
    """Entry point: exit with the command's code; errors of use are one line and code 2."""
    with one_line():
        sys.exit(attnbench.main(standalone_mode=False) or 0)
