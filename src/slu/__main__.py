"""The entry point of the command, and `python -m slu`."""

import sys


def main() -> None:
    """Run the command; Ctrl-C while it is still being imported is one line too."""
    try:
        from slu.cli import main as run
    except KeyboardInterrupt:
        print("slu: interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    run()


if __name__ == "__main__":
    main()
