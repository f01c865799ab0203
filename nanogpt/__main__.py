"""python -m nanogpt: the command line."""

if __name__ == "__main__":
    try:
        from nanogpt.cli import main

        raise SystemExit(main())
    except KeyboardInterrupt:  # while the modules were still being imported
        raise SystemExit("stopped") from None
