"""Is a cached text the uncached one? The referee of any model or server, sweeps, the museum."""
