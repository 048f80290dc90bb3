"""The `flare` command: every subcommand, and how errors reach the person who typed it.

Exit codes: 0 success, 1 a fault of flare itself, 2 what was asked cannot be done, 130 interrupted.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.markup import escape

from flare.commands.bench import bench
from flare.commands.chat import chat
from flare.commands.fetch import fetch
from flare.commands.inspect import inspect
from flare.commands.plan import plan
from flare.commands.prepare import prepare
from flare.commands.run import run
from flare.commands.sim import sim
from flare.commands.top import top
from flare.commands.trace import trace
from flare.commands.train_draft import train_draft
from flare.console import notices, results
from flare.failures import is_expected
from helios import __version__

app = typer.Typer(
    name="flare",
    help="Serve a language model through prepared graphs, chosen by expected value per time.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_state = {"debug": False}


@app.callback()
def _global_options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error, not just its message.")
    ] = False,
) -> None:
    _state["debug"] = debug


@app.command()
def version() -> None:
    """Print the version.

    Example: [bold]flare version[/bold]
    """
    results().print(f"flare {__version__}", highlight=False)


for _command in (run, chat, fetch, plan, prepare, inspect, bench, top, trace, train_draft):
    app.command()(_command)
app.add_typer(sim)


def run_command(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code."""
    # The flag may stand anywhere; an error of the command line itself comes before the callback.
    _state["debug"] = "--debug" in arguments
    rest = [argument for argument in arguments if argument != "--debug"]
    arguments = ["--debug", *rest] if _state["debug"] else rest
    try:
        code = app(arguments, prog_name="flare", standalone_mode=False)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0
    except Exception as error:  # noqa: BLE001 - the outermost boundary: every error ends here
        return _report(error)
    return code if isinstance(code, int) else 0


def _report(error: Exception) -> int:
    if _state["debug"]:
        traceback.print_exception(error)
    if isinstance(error, typer.Abort):
        return 130
    usage = getattr(error, "format_message", None)
    if usage is not None:
        message, code = str(usage()), 2
    elif is_expected(error):
        message, code = str(error) or type(error).__name__, 2
    else:
        message, code = f"internal error: {type(error).__name__}: {error} (see --debug)", 1
    one_line = " ".join(message.split())
    notices().print(f"[red]flare:[/red] {escape(one_line)}", soft_wrap=True)
    return code
