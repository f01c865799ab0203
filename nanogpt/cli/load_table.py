"""The result of `bench load` as text for a terminal."""

from __future__ import annotations

from ..benchmarks.timing import summary_text

HEADS = ("TTFT p50", "p95", "TPOT p50", "p95", "ITL p50", "p95", "E2EL p50", "p95")
KEYS = [f"{name}_p{percent}" for name in ("ttft", "tpot", "itl", "e2el") for percent in (50, 95)]

BUSY = 0.5  # from this share of a core on a client that measures is mentioned


def report(result: dict) -> str:
    """The table of `load`, or of a server, and what is to be said once."""
    r = result
    who = f"{r['server']}, {r['model']}" if "server" in r else _ours(r)
    lines = [
        f"\n{who}; {r['n']} requests; {r['clock']} clock; medians of {r['repeats']}, in turns; "
        f"latencies in ms\n",
        f"{'rate':>6}  {'':16}{'tokens/s':>9}{'ratio':>22}"
        + "".join(f"{head:>9}" for head in HEADS)
        + f"{'goodput':>9}  tokens",
        *map(_row, r["rows"]),
    ]
    if "line" in r:
        lines += ["", *_costs(r)]
    lines += [line for row in r["rows"] for line in _compared(row)]
    return "\n".join(lines)


def _ours(r: dict) -> str:
    how = f"at most {r['running']} at once, chunks of {r['budget']} tokens"
    return f"{r['n_params']:,} parameters, {r['backend']}; {how}"


def _row(row: dict) -> str:
    rate = "inf" if row["rate"] is None else f"{row['rate']:g}"
    speed = f"{row['tokens_per_second']['median']:,.0f}"
    ratio = summary_text(row["ratio"], 2) if row.get("ratio") else ""
    times = "".join(_ms(row[key]) for key in KEYS)
    equal = {True: "equal", False: "differ", None: "not compared"}[row["equal"]]
    if row["equal"] and row.get("differences"):
        equal = f"equal but for {len(row['differences'])} ties"
    failed = f", {row['failed']} failed" if row.get("failed") else ""
    numbers = f"{speed:>9}{ratio:>22}{times}{row['goodput']['median']:9.1f}"
    return f"{rate:>6}  {row['scheme'][:16]:16}{numbers}  {equal}{failed}"


def _ms(seconds: dict | None) -> str:
    if seconds is None:
        return " " * 9
    ms = 1000 * seconds["median"]
    return f"{ms:9.{2 if ms < 10 else 1}f}"


def _costs(r: dict) -> list[str]:
    """What a step costs, what of it is bookkeeping, and what filling idle places gains."""
    start, decode, prefill = (1e6 * r["line"][key] for key in ("start", "decode", "prefill"))
    lines = [
        f"a step takes {start:.0f} µs, and {decode:.1f} more for each text that decodes, "
        f"{prefill:.1f} for each token of a prompt (least squares over all steps)"
    ]
    last = {row["scheme"]: row for row in r["rows"] if "bookkeeping" in row}
    shares = (f"{name} {row['bookkeeping']['median']:.0%}" for name, row in last.items())
    lines.append(f"scheduling, blocks, sampling: of the time at the last rate {', '.join(shares)}")
    if static := r["static"]:
        lines.append(
            f"continuous over static batches, all asked at once: lengths allow "
            f"{static['bound']:.2f} (E[max] / mean); with prompts and the end, replayed on that "
            f"line, {static['simulated']:.2f}; measured {summary_text(static['measured'], 2)}"
        )
    return lines


def _compared(row: dict) -> list[str]:
    """A peer beside ours, and where its texts part from ours."""
    rate, lines = "all at once" if row["rate"] is None else f"{row['rate']:g} a second", []
    if "ours" in row:
        lines.append(f"ours over {row['scheme']}, {rate}: {summary_text(row['ours'], 1)}")
    for one in row.get("differences", [])[:3]:
        how = "it ended early" if one["margin"] is None else f"margin {one['margin']:.1e} in logits"
        how += ", which rounding explains" if one["tie"] else ""
        lines.append(
            f"{row['scheme']}, {rate}: request {one['request']} differs from new token "
            f"{one['at']} on: {how}"
        )
    if row.get("busy", {"median": 0.0})["median"] > BUSY:
        lines.append(
            f"{row['scheme']}, {rate}: this client needed {row['busy']['median']:.0%} of a core; "
            f"it may be what limits"
        )
    for why, n in row.get("errors", {}).items():
        lines.append(f"{row['scheme']}, {rate}: {n} requests failed: {why}")
    return lines
