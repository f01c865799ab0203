"""python -m nanogpt verify museum: are all public bugs convicted, and their repairs acquitted?"""

from __future__ import annotations

import argparse

from .common import POSITIVE, add_json, check_clone, json_path


def run(args: argparse.Namespace) -> int:
    """Judge each exhibit and print how often. Exit code 1: a seed lets a bug pass, or convicts."""
    from ..system.console import Progress
    from ..system.files import sealed, write_json
    from ..verify import museum

    check_clone()
    path = json_path(args.json, "museum.json")
    paths, rows, n = museum.exhibits(args.names), [], args.seeds
    with Progress(len(paths), "bugs") as bar:
        for exhibit in paths:
            rows.append(row := museum.judged(exhibit, range(n)))
            bar.update(1)
            bar.print(f"{row['name']:28} convicted {row['convicted']} of {n}, by {row.get('way')}")
    counts = [sum(row[key] == n for row in rows) for key in ("convicted", "acquitted")]
    print(
        f"{counts[0]} of {len(rows)} bugs convicted, {counts[1]} of their repairs acquitted, "
        f"over {n} seeds"
    )
    if path:
        write_json(path, sealed({"what": "museum", "seeds": n, "exhibits": rows}))
    return int(counts != [len(rows)] * 2)


def options(parser: argparse.ArgumentParser) -> None:
    """All options."""
    parser.epilog = "The site's page is made from notebooks/museum/verdicts.json."
    parser.add_argument("names", nargs="*", metavar="NAME", help="exhibits, as vllm_43810 (all)")
    parser.add_argument("--seeds", **POSITIVE, default=2, help="models and texts of each (2)")
    add_json(parser, "museum.json")
