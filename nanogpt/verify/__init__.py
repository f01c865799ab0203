"""Are cached tokens uncached tokens? Comparison, the mask checker, the sweep."""
