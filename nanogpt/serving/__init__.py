"""Many requests at once: what waits, what runs, where their keys and values lie, and one step."""
