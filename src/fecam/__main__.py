"""``fecam``, or ``python -m fecam``: ends quietly also if it is stopped while it starts."""

import sys


def main() -> None:
    """Run the command line."""
    try:
        from fecam.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
