"""What runs and renders notebooks, outside of their kernels. Imports no torch."""
