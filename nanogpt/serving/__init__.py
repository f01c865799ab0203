"""Many requests at once, each as if it were alone, and HTTP before them: notebooks 09 and 10."""
