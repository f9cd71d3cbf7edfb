"""The `gart` command: its subcommands, its global options, and how failures end."""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

import gart
from gart.cli.data import data
from gart.cli.doctor import doctor
from gart.cli.eval import evaluate
from gart.cli.interrupts import INTERRUPTED, TERMINATED, WORDS, terminate
from gart.cli.options import Help
from gart.cli.output import prepare_output, printable
from gart.cli.profile import profile
from gart.cli.render import render
from gart.cli.scenes import scene_list
from gart.cli.train import train
from gart.errors import GartError

app = typer.Typer(
    name="gart",
    help="Reconstruct scenes from posed photographs as 3D Gaussians, by ray tracing.",
    epilog="Start with: gart train demo",
    add_completion=False,
    rich_markup_mode=None,  # rich's import would double the time that help takes
    pretty_exceptions_enable=False,
    add_help_option=False,  # see cli/options.py
)
app.command("train", epilog=scene_list())(train)
app.command("render")(render)
app.command("eval")(evaluate)
app.command("profile")(profile)
app.command("doctor")(doctor)
app.add_typer(data)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"gart {gart.__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; anywhere in the line.")
    ] = False,
    wants_help: Help = False,
) -> None:
    """Declared for the help text: `run` takes --debug out of the arguments itself."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line.

    Returns:
        Exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 143 terminated.
    """
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        code = app(arguments or ["--help"], prog_name="gart", standalone_mode=False)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except SystemExit as stop:
        if stop.code != TERMINATED:
            raise
        code = TERMINATED
    except Exception as error:
        if debug:
            traceback.print_exc()
        message, code = _explain(error)
        print(f"error: {message}", file=sys.stderr)
        return code
    if code in WORDS:
        print(f"error: {WORDS[code]}", file=sys.stderr)
    return code if isinstance(code, int) else 0


def _explain(error: Exception) -> tuple[str, int]:
    """One line for the user, and the exit code."""
    if isinstance(error, GartError):
        return printable(" ".join(map(str.strip, str(error).split("\n")))), error.exit_code
    if hasattr(error, "format_message"):  # the option parser's, from whichever package typer uses
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "gart"
        text = " ".join(error.format_message().split()).removesuffix(".")
        return f"{text}; see {command} --help", getattr(error, "exit_code", 2)
    if isinstance(error, OSError) and error.strerror:
        path = error.filename2 or error.filename  # a rename's target: the other is a temporary
        where = "" if path is None else f"{printable(str(path))}: "
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return f"{where}{error.strerror}; free some and run the command again", 1
        if where:
            return f"{where}{error.strerror}; give another path, or mend this one", 1
    if isinstance(error, (RuntimeError, MemoryError)):
        from gart import memory

        if memory.is_out_of_memory(error):
            advice = "take fewer Gaussians or smaller images, or free memory that others use"
            return memory.explain(error, "this command", advice), 1
    text = " ".join(str(error).split())
    name = type(error).__name__
    return f"{name}: {text}; rerun with --debug for the traceback" if text else (
        f"{name}; rerun with --debug for the traceback"
    ), 1


def main() -> None:
    """Entry point of the `gart` script."""
    # PyTorch's threads otherwise spin while they wait for each other: on a machine that is also
    # busy with something else, training was measured at a fifth of the speed, and no faster idle.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    signal.signal(signal.SIGTERM, terminate)
    prepare_output()
    sys.exit(run(sys.argv[1:]))
