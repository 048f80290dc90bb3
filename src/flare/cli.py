"""The entry point of the `flare` script.

It imports nothing before it is called: the engine process starts by importing this script again,
and needs neither the command line nor the server.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit."""
    from flare.command_line import run_command  # noqa: PLC0415 - for the reason above.

    sys.exit(run_command(sys.argv[1:]))
