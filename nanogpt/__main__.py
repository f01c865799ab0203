"""python -m nanogpt: the command line."""

from nanogpt.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
