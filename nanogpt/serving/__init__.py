"""Many requests at once, each with the tokens it would get alone, over HTTP: notebooks 09, 10."""
