"""The repository's address on GitHub, owner/name, set by `make badges`; empty until then."""

REPO = ""
REF = "main"


def colab(stem: str, repo: str, ref: str) -> str:
    """The notebook's address on Colab; empty if the repository has no address."""
    place = f"{repo}/blob/{ref}/notebooks/{stem}.ipynb"
    return f"https://colab.research.google.com/github/{place}" if repo else ""
