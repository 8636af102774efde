"""`edgekit`: the table of commands, and what every one of them does with an error.

Rules:
- `--help` imports no framework: a command's module is imported when it runs, its packages when it starts to work;
- an EdgekitError is printed as one message with its code, without a traceback; with `--json` it is the one object on
  stdout, as are an interruption and an internal fault (whose traceback goes to stderr);
- an import that fails because an extra is not installed names that extra;
- a closed pipe is not an error; a full disk and too little memory are one sentence;
- what stdout or stderr cannot encode, such as a file name that is not UTF-8, is printed escaped;
- exit codes: 0 done, 1 refused or a check failed, 2 usage, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import json
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from edgekit_runtime.system.errors import EdgekitError

GROUPS: dict[str, tuple[str, dict[str, tuple[str, str]]]] = {
    "Build": (
        "edgekit build net.keras --profile raspberry-pi-4 --calibration photos/",
        {
            "try": (
                "edgekit.cli.try_model:try_model",
                "Try a model: guess its contract, build it, compare answers.",
            ),
            "build": ("edgekit.cli.build:build", "Convert, compare and pack a model for each board."),
            "compress": ("edgekit.cli.compress:compress", "Retrain a model to lose less accuracy in INT8."),
            "contract": (
                "edgekit.cli.compress:contract",
                "Draft a contract file, which describes a model's inputs and outputs.",
            ),
            "inspect": ("edgekit.cli.inspect:inspect", "Show a bundle's contents."),
            "check": ("edgekit.cli.verify:check", "Predict whether a bundle loads and answers correctly on a board."),
            "estimate": ("edgekit.cli.estimate:estimate", "Estimate the latency on a board."),
            "export": ("edgekit.cli.deploy:export", "Write a bundle as plain files that run without edgekit."),
            "profiles": ("edgekit.cli.profiles:profiles", "Show, check and measure board profiles."),
            "demo": ("edgekit.cli.demo:demo", "Build and run a model on real data, printing each command."),
        },
    ),
    "Run": (
        "edgekit run bundles/net-raspberry-pi-4.ekb cat.jpg",
        {
            "run": ("edgekit.cli.run:run", "Run images, arrays, folders or a camera through a bundle."),
            "bench": ("edgekit.cli.bench:bench", "Measure a bundle on this machine, stage by stage."),
            "doctor": ("edgekit.cli.doctor:doctor", "Check this machine, or explain a code or an error message."),
        },
    ),
    "Board": (
        "edgekit install net.ekb --root /var/lib/edgekit/camera",
        {
            "deploy": ("edgekit.cli.deploy:deploy", "Ship a bundle to a board: over SSH, as a folder or a .deb."),
            "install": ("edgekit.cli.install:install", "Verify, test and activate a bundle; --commit ends a trial."),
            "status": ("edgekit.cli.install:status", "Show the active version and the last install."),
            "rollback": ("edgekit.cli.install:rollback", "Go back to the previous version, or to another one."),
            "agent": ("edgekit.cli.install:agent", "Install what the fleet server orders and report the result."),
        },
    ),
    "Trust and fleet": (
        "edgekit keys new release && edgekit build net.keras ... --sign release",
        {
            "keys": ("edgekit.cli.keys:keys", "Manage signing keys and this machine's trusted keys."),
            "verify": ("edgekit.cli.verify:verify", "Check a bundle or an install root; --replay also loads it."),
            "host": ("edgekit.cli.host:host", "Serve models as a fallback for slow devices."),
            "fleet": ("edgekit.cli.fleet:fleet", "Collect and show what boards report."),
        },
    ),
}
"""Group of `--help` -> (an example, command -> (module:attribute, one line))."""
COMMANDS = {name: row for _, rows in GROUPS.values() for name, row in rows.items()}

WORKSTATION = frozenset({"try", "build", "compress", "contract", "check", "estimate", "deploy", "fleet", "demo"})
"""Commands that need WORKSTATION_PYTHON; a board's commands run on every Python that edgekit installs on."""
WORKSTATION_PYTHON = (3, 11)


class _UnprintableError(Exception):
    """stdout cannot be written. Not an OSError, for which click would end the process itself."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


@contextlib.contextmanager
def _printing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if any(frame.f_code is click.echo.__code__ for frame, _ in traceback.walk_tb(error.__traceback__)):
            raise _UnprintableError(error) from error
        raise


class _Commands(click.Group):
    """Imports a command's module only when that command is called."""

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:  # prints --help and --version
        with _printing():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: click.Context) -> Any:
        with _printing():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name][0].split(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=2)
            hint = f" Did you mean {' or '.join(near)}?" if near else f" Commands: {', '.join(COMMANDS)}."
            ctx.fail(f"Unknown command '{args[0]}'.{hint}")
        if args and not {"--help", "-h"} & set(args):
            check_python(args[0], sys.version_info[:2])
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for group, (example, rows) in GROUPS.items():
            with formatter.section(group):
                formatter.write_text(f"$ {example}")
                formatter.write_paragraph()
                formatter.write_dl([(name.ljust(width), line) for name, (_, line) in rows.items()])


def check_python(command: str, python: tuple[int, int]) -> None:
    """Raises PythonVersionError where the command needs a newer Python than this one."""
    if command in WORKSTATION and python < WORKSTATION_PYTHON:
        from edgekit.packaging.output_errors import PythonVersionError

        needed, here = (".".join(map(str, version)) for version in (WORKSTATION_PYTHON, python))
        raise PythonVersionError(
            f"`edgekit {command}` needs Python {needed}, and this is Python {here}",
            do=f"Run it on a workstation with Python {needed} or later; the commands of a board work here",
        )


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="edgekit-deploy", prog_name="edgekit")
def cli() -> None:
    """Turn a trained model into bundles that small boards run, with proof of what was lost."""


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script. Never returns: exits with the code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's threads wait awake: four times the processor time
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _execute(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:  # of printing, and of nothing else: `_execute` deals with what a command raises
        # What is still buffered goes nowhere, so that nothing fails a second time when the interpreter ends.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0 if error.errno == errno.EPIPE else 1  # EPIPE: the reader, `head` for one, has seen enough
        if code:
            from edgekit.packaging.output_errors import OutputError, error_line

            why = f"cannot write the result: {error.strerror or error}"
            with contextlib.suppress(OSError):
                click.echo(error_line(OutputError(why, do="Free some space, or write it elsewhere")), err=True)
    sys.exit(code)


def _execute(arguments: list[str]) -> int:
    """Raises OSError only where stdout or stderr cannot be written."""
    # Looked for, not parsed: what click refuses to parse is reported as JSON too, and no value of ours is spelt so.
    as_json = "--json" in arguments
    try:
        code = _run(arguments)
    except (click.Abort, KeyboardInterrupt):
        _report(as_json, "interrupted", {"code": "interrupted", "what": "interrupted", "where": "", "do": ""})
        return 130
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        help_ = f"{context.command_path if context else 'edgekit'} --help"
        if as_json:
            _report(True, "", {"code": "usage", "what": error.format_message(), "where": "", "do": help_})
        elif isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):  # of newer clicks
            error.show()
        else:
            usage = f"{context.get_usage()}\nTry '{help_}' for help.\n\n" if context else ""
            click.echo(f"{usage}error: {error.format_message()} [usage]", err=True)
        return 2
    except _UnprintableError as error:
        raise error.cause from None
    except Exception as error:  # noqa: BLE001 - the last resort: printed with its traceback
        from edgekit.packaging.output_errors import error_line, missing_extra
        from edgekit_runtime.system.errors import EdgekitError, print_traceback

        shown = _memory_error(error, arguments) or missing_extra(error, next(iter(arguments), "")) or error
        if isinstance(shown, EdgekitError):
            shown.speak_cli()
            _report(as_json, "\n".join(map(error_line, shown.mistakes or (shown,))), shown.as_json())
            return 1
        print_traceback(error)
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        what = f"{type(error).__name__}: {first}".removesuffix(": ")  # the rest is on stderr, in the traceback
        do = "This is a bug in edgekit: report it with the traceback on stderr"
        error_json = {"code": "internal", "what": what, "where": "", "do": do}
        _report(as_json, f"error: {what}. {do} [internal]", error_json)
        return 1
    return code if isinstance(code, int) else 0


def _run(arguments: list[str]) -> object:
    """Raises what the commands raise, and UsageError for a name that no file can have here."""
    try:
        return cli.main(arguments, prog_name="edgekit", standalone_mode=False)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise click.UsageError(f"{Path(str(error.filename)).name:.40}...: the file name is too long") from error


def _memory_error(error: BaseException | None, arguments: Sequence[str]) -> EdgekitError | None:
    """What to print for a MemoryError or an error raised from one; None for any other."""
    from edgekit_runtime.system.errors import MemoryExceeded

    while error is not None and not isinstance(error, MemoryError):
        error = error.__cause__
    if error is None:
        return None
    amount = re.search(r"allocate ([\d.]+?)\.? (\w+)", str(error))  # numpy names it: "112. GiB"
    what = f"out of memory: {amount[1]} {amount[2]} requested" if amount else "out of memory"
    fewer = " (--shape), fewer at once (--jobs 1)" if "build" in arguments[:1] else ""
    return MemoryExceeded(what, do=f"Use smaller inputs{fewer}, or a machine with more memory")


def _report(as_json: bool, sentence: str, error: dict[str, str]) -> None:
    if as_json:
        click.echo(json.dumps({"error": error}))
    else:
        click.echo(sentence, err=True)
