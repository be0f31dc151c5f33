"""``python -m fecam``."""

from fecam.cli.app import main

if __name__ == "__main__":
    main()
