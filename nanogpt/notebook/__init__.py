"""What notebook cells use: session opens a run, display shows code and tables, plots draws."""
