"""Runs, renders and publishes the notebooks, and holds the imports of their cells."""
