"""`edgekit`: the table of commands, and what every one of them does with an error.

Rules:
- `--help` imports no framework: a command's module is loaded when it is run, and its rooms when it starts to work;
- an EdgekitError is printed as one message without a traceback; with `--json` it is the one object on stdout;
- exit codes: 0 done, 1 refused or a check failed, 2 usage, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Sequence

import click

__all__ = ["main"]

# name -> (module:attribute, one line for --help)
COMMANDS = {
    "build": ("edgekit.cli.build:build", "Make, check and pack a bundle for each board."),
    "inspect": ("edgekit.cli.inspect:inspect", "Show what is in a bundle."),
    "run": ("edgekit.cli.run:run", "Ask a bundle for answers on this machine."),
    "bench": ("edgekit.cli.bench:bench", "Time a bundle on this machine, stage by stage."),
    "host": ("edgekit.cli.host:host", "Answer for devices that would be late."),
    "fleet": ("edgekit.cli.fleet:fleet", "The fleet page: what every board reports."),
    "profiles": ("edgekit.cli.profiles:profiles", "The boards edgekit knows."),
    "doctor": ("edgekit.cli.doctor:doctor", "What is installed here, and what is missing for what."),
    "demo": ("edgekit.cli.demo:demo", "The main job on real input, each command printed before it runs."),
}


class _Commands(click.Group):
    """Reads the table; loads a command's module only when that command is asked for."""

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
            ctx.fail(f"There is no command '{args[0]}'.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="edgekit-deploy", prog_name="edgekit")
def cli() -> None:
    """Take a trained model to small boards, and keep the promise made about it there.

    \b
    edgekit build net.keras --profile raspberry-pi-4 --calibration photos/ --evaluation labelled/ -o bundles/
    edgekit run bundles/net-raspberry-pi-4.ekb cat.jpg
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script. Never returns: exits with the code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(_run(arguments))


def _run(arguments: list[str]) -> int:
    as_json = "--json" in arguments
    try:
        code = cli.main(arguments, prog_name="edgekit", standalone_mode=False)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except click.ClickException as error:
        if as_json:
            _print_json_error("usage", error.format_message())
        else:
            error.show()
        return 2
    except BrokenPipeError:  # the reader, `head` for one, has seen enough
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        from edgekit_runtime.errors import EdgekitError

        if not isinstance(error, EdgekitError):
            raise
        if as_json:
            click.echo(json.dumps({"error": error.as_json()}))
        else:
            click.echo(f"error: {error}", err=True)
        return 1
    return code if isinstance(code, int) else 0


def _print_json_error(code: str, what: str) -> None:
    click.echo(json.dumps({"error": {"code": code, "what": what, "where": "", "do": "edgekit --help"}}))
