"""python -m nanogpt: the command line."""

from nanogpt.cli import main

raise SystemExit(main())
