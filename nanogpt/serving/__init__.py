"""Many requests at once, each as if it were alone, and HTTP before them: for notebooks 09 and 10."""
