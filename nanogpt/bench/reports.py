"""The results of the benchmarks as text for a terminal."""

from __future__ import annotations

from typing import Any

from .gain import Bound, ModelGain
from .ladder import LadderResult, RungRow
from .replies import LATENCIES
from .tables import number_of, repeats_text, shown_label, summary_text, table
from .throughput import share_text
from .training import ComparedRow


def ladder_text(result: LadderResult) -> str:
    """The result of `ladder`: a row for each rung, and the roofline below."""
    limits = result["limits"]
    n_prompt = result["n_prompt"]
    lines = [
        f"\n{result['n_params']:,} parameters, {limits['dtype']}, {result['n_new']} tokens of one "
        f"text after a prompt of {'one' if n_prompt == 1 else n_prompt}; "
        f"{repeats_text(result['repeats'])}\n",
        table([_rung(row) for row in result["rungs"] if "unavailable" not in row]),
    ]
    for row in result["rungs"]:
        if "unavailable" in row:
            label = shown_label(row["label"])
            lines.append(f"{row['rung']}  {label}: unavailable: {row['unavailable']}")
    read = limits["read"]
    peak = limits["peak"]
    bound = summary_text(limits["roofline"], 0)
    lines += [
        f"\nread bandwidth {read['median'] / 1e9:.1f} GB/s over {limits['step_bytes'] / 1e6:.1f} "
        f"MB ({read['how']}), peak {peak['median'] / 1e9:.0f} GFLOP/s ({peak['how']})",
        f"roofline bound, if each token reads all weights and its cache once: {bound} tokens/s",
    ]
    best = result["best"]
    if best:
        share = share_text(best["share_of_bound"]["median"])
        lines.append(f"best at equal weights and tokens: rung {best['rung']}; its share: {share}")
    return "\n".join(lines)


def _rung(row: RungRow) -> dict[str, str]:
    shown = {"rung": row["rung"], "": shown_label(row["label"]), "weights": row["weights"]}
    # 1. The prefill, if there is one.
    if "first_token" in row:
        shown["first token (ms)"] = f"{1000 * row['first_token']['median']:,.0f}"
        shown["prompt tokens/s"] = summary_text(row["prompt_per_second"], 0)
    # 2. The steps. Each rung has a bound of its own, because 8-bit weights are fewer bytes.
    speed = row["tokens_per_second"]
    shown["tokens/s"] = summary_text(speed, 0 if speed["median"] >= 100 else 1)
    shown["ratio to the first"] = summary_text(row["speedup"], 1)
    split = row["split"]
    at_bound = split["arithmetic"] + split["memory"]
    shown["of its bound"] = f"{at_bound / (at_bound + split['overhead']):.0%}"
    # 3. Whether the tokens are the same, and what building took.
    same = row["equal_tokens"]
    differ = f"the first {same} equal" if same else "differ"
    shown["tokens"] = "equal" if row["equal"] else differ
    build = row.get("build_seconds", 0)
    shown["build (s)"] = f"{build:.1f}" if build > 0.05 else ""  # below that, nothing is built
    return shown


def gain_text(models: list[ModelGain], repeats: int) -> str:
    """The result of `gains`: a row for each model, batch size and length; then the reasons."""
    rows = []
    for found in models:
        for row in found["rows"]:
            rows.append(
                {
                    "model": found["model"],
                    "parameters": f"{found['n_params'] / 1e6:.3g}M",
                    "batch": row["batch"],
                    "new tokens": f"{row['n_new']:,}",
                    "seconds without": f"{row['uncached']['median']:.3g}",
                    "with a cache": f"{row['cached']['median']:.3g}",
                    "speedup": summary_text(row["gain"], 2),
                    "whole": "" if row["measured"] else "added up",
                    "what takes longest without": row.get("bound", ""),
                }
            )
    reasons = [f"{bound.value}: {bound.reason}" for bound in Bound]
    title = f"\na prompt of one token; {repeats_text(repeats)}\n"
    return "\n".join([title, table(rows), "", *reasons])


def training_text(rows: list[ComparedRow]) -> str:
    """The rows of `compared`: how fast each recipe reaches its loss."""
    return table(
        [
            {
                "recipe": row["name"],
                "for": f"{row['goal']:g}" if row["goal"] else "–",
                "block": row["block_size"],
                "params": f"{row['n_params'] / 1e6:.2f}M",
                "steps": f"{row['steps']:,}",
                "seconds": summary_text(row["seconds"], 1),
                "loss": summary_text(row["loss"], 4),
                "speedup": f"{summary_text(row['sooner'], 1)} ×" if "sooner" in row else "",
            }
            for row in rows
        ]
    )


def speculation_text(result: dict[str, Any]) -> str:
    """The result of `speculation_of`: a row for each draft and number of proposals; the losses."""
    rows = [
        {
            "draft": row["draft"],
            "k": row["k"],
            "acceptance": f"{row['acceptance_rate']:.2f}",
            "a pass": f"{row['tokens_per_pass']:.2f}",
            "formula": f"{row['predicted']:.2f}",
            "tokens/s": summary_text(row["tokens_per_second"], 0),
            "ratio": summary_text(row["speedup"], 2),
            "tokens": "equal" if row["equal"] else "differ",
        }
        for row in result["rows"]
    ]
    return (
        f"\n{result['n_params']:,} parameters, {result['n_new']} tokens after a prompt of one; "
        f"{repeats_text(result['repeats'])}\n\n{table(rows)}\nwithout a draft "
        f"{summary_text(result['plain'], 0)} tokens/s, of a roofline bound of "
        f"{summary_text(result['roofline'], 0)}: one read of weights and cache per token\n"
        f"{losses_text(result['target'], result['draft'])}"
    )


def losses_text(target: dict[str, Any], draft: dict[str, Any] | None) -> str:
    """The losses of target and draft in a line, with a warning if the draft's is not higher."""
    text = f"validation loss of the target {target['loss']:.3f}"
    if draft is None:
        return text
    text += f", of the draft {draft['loss']:.3f}"
    if draft["loss"] > target["loss"]:
        return text
    return (
        f"{text}: the draft predicts at least as well as the target, so this measurement is not "
        "useful: choose a smaller draft"
    )


def load_text(result: dict[str, Any]) -> str:
    """The result of `load`: a row for each rate and scheme, and notes below."""
    requests = f"{number_of(result['n'], 'request')} of up to {result['block_size']} tokens"
    if "server" in result:
        server = f"{result['server']}, {result['model']}, in real time"
        if "reference" in result:
            server += f"; compared with {_model_text(result['reference'])}"
    else:
        steps = f"{result['backend']}, at most {result['running']} at once"
        server = f"{_model_text(result)}, {steps}"
    repeats = repeats_text(result["repeats"])
    title = f"{requests}; {server}; {repeats}; latencies in ms\n"
    errors = result.get("errors", {})
    notes = [f"{number_of(n, 'request')} failed: {reason}" for reason, n in errors.items()]
    if "bound" in result:
        notes += _shares(result)
    return "\n".join([title, table([_load_row(row) for row in result["rows"]]), *notes])


def _model_text(about: dict[str, Any]) -> str:
    """A model, its size, its dtype and its device."""
    size = f"{about['n_params']:,} parameters"
    return f"{about['model']}, {size}, {about['dtype']} on {about['device']}"


def _shares(result: dict[str, Any]) -> list[str]:
    """Each scheme's share of the bound if all requests arrive at once; at most one line."""
    bound = result["bound"]
    shares = []
    for row in result["rows"]:
        if row["rate"] is None and row["scheme"] != "prefix reuse":
            share = row["tokens_per_second"]["median"] / bound
            shares.append(f"{row['scheme']} {share:.0%}")
    if not shares:
        return []
    machine = f"{result['peak'] / 1e9:.0f} GFLOP/s and {result['bandwidth'] / 1e9:.0f} GB/s"
    return [f"\nall at once, {machine} allow {bound:,.0f} tokens/s: {', '.join(shares)}"]


def _load_row(row: dict[str, Any]) -> dict[str, str]:
    words = {None: "not compared", 0: "equal", 1: "1 text differs"}
    tokens = words.get(row["differ"], f"{row['differ']} texts differ")
    if row["failed"]:
        tokens += f", {row['failed']} failed"
    shown = {
        "rate": "inf" if row["rate"] is None else f"{row['rate']:g}",
        "": row["scheme"][:24],
        "tokens/s": f"{row['tokens_per_second']['median']:,.0f}",
        "ratio": summary_text(row["ratio"], 2) if row["ratio"] else "",
    }
    for name in LATENCIES:
        pair = (row[f"{name}_p50"], row[f"{name}_p95"])
        times = ["–" if time is None else f"{1000 * time['median']:.2f}" for time in pair]
        shown[f"{name.upper()} p50, p95"] = ", ".join(times)
    return shown | {"goodput": f"{row['goodput']['median']:.1f}", "tokens": tokens}
