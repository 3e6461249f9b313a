"""The entry point of the command, and `python -m slu_experiments`."""

import sys


def main() -> None:
    """Run the command; Ctrl-C while it is still being imported is one line too."""
    try:
        from slu_experiments.cli import app
    except KeyboardInterrupt:
        print("slu-paper: interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    app()


if __name__ == "__main__":
    main()
