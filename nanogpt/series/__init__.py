"""What runs, renders and publishes the notebooks, and what their cells import."""
