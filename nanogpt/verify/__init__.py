"""The referee on this package's models and on servers, sweeps, the museum of public bugs."""
