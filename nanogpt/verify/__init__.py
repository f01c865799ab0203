"""Are cached tokens uncached tokens? The referee of any model, comparison, masks, the sweep."""
