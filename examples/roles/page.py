"""The page docs/results/roles.md from what was measured; a part that was not measured is said to be missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

SHOWN = ("previous", "next", "self", "first", "separator", "duplicate", "induction", "prefix", "suffix", "punctuation")
DECODERS = ("smollm2-135m", "gemma3-270m")
Found = dict[str, dict[str, Any]]


def written(found: Found) -> str:
    """The whole page."""
    parts = (head, findings, attention, atoms, copying, kv, writing, language, alignment, few, again)
    return "\n\n".join(text for part in parts if (text := part(found).strip())) + "\n"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(headings) + " |", "|---" * len(headings) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def ranged(low: float, high: float) -> str:
    return f"[{low:.2f}, {high:.2f}]"


def head(found: Found) -> str:
    names = sorted({name.removesuffix("-attention") for name in found if name.endswith("-attention")})
    return (
        "# What heads do\n\nRoles of attention heads in real checkpoints: "
        + ", ".join(names)
        + ", and Whisper tiny.en. "
        "The samples are small, as everything but what is marked ran on a CPU; intervals are 95 % "
        "over texts. smollm2-135m and "
        "gemma3-270m were dequantized from 4 bits. Layers and heads are counted from 0. [`headwise "
        "roles`](../verbs/roles.md) "
        "says what each score and control is."
    )


def findings(found: Found) -> str:
    """What the tables below say, in sentences."""
    said = []
    if part := found.get("smollm2-135m-copying"):
        last = part["curves"]["retrieval"][-1]
        said.append(
            f"With its {last['heads']} best retrieval heads closed, smollm2-135m copies {last['copied']:.2f} of a "
            f"needle's tokens; with as many random heads of the same layers closed, {last['random']:.2f}."
        )
    for name in DECODERS:
        part = found.get(f"{name}-kv")
        for what in ("text", "needle, more of them") if part else ():
            curve = part["curves"].get(what, part["curves"]["needle"])
            half = next((r for r in curve if r["share"] == 0.5), None)
            if half:
                sure = half["low_uniform"] > 0 or half["high_uniform"] < 0
                first = next((r for r in part["curves"]["needle"] if r["share"] == 0.5), half)
                again = f" ({half['texts']:.0f} more needles, after a first run of {first['texts']:.0f}: "
                again += f"{first['below_uniform']:+.2f} {ranged(first['low_uniform'], first['high_uniform'])})"
                said.append(
                    f"{name}, half of its key-value heads streaming, {what.split(',')[0]}: "
                    f"{half['below_uniform']:+.2f} {ranged(half['low_uniform'], half['high_uniform'])} nats below "
                    f"uniform windows{'' if sure else ', not significantly different from zero'}"
                    f"{again if half['texts'] != first['texts'] and what != 'text' else ''}."
                )
    if part := found.get("whisper-tiny-en-alignment"):
        own, _, published = part["onset errors"]
        said.append(
            f"Whisper's heads chosen by onsets are {1000 * own:.0f} ms off on other clips, the published ones "
            f"{1000 * published:.0f} ms; all published heads are monotonic."
        )
    return "\n".join(f"- {sentence}" for sentence in said)


def attention(found: Found) -> str:
    rows, counts = [], []
    for name, part in found.items():
        if not name.endswith("-attention"):
            continue
        model = name.removesuffix("-attention")
        for role in SHOWN:
            entry = part["roles"].get(role)
            if entry and entry["best"]:
                best = entry["best"][0]
                score = f"{best['score']:.2f} {ranged(best['low'], best['high'])}"
                floor = "–" if entry["floor"] is None or entry["floor"] != entry["floor"] else f"{entry['floor']:.2f}"
                rows.append([model, role, best["head"], score, f"{best['control']:.2f}", floor, str(entry["heads"])])
        layers, heads = part["shape"]
        relations = {n: e for n, e in part["roles"].items() if "→" in n and e["best"] and e["heads"]}
        strongest = max(relations.items(), key=lambda item: item[1]["best"][0]["score"], default=None)
        relation = "–"
        if strongest:
            best = strongest[1]["best"][0]
            relation = f"{strongest[0]}: {best['head']}, {best['score']:.2f}, control {best['control']:.2f}"
        counts.append([model, f"{part['with a role']} of {layers * heads}", str(part["texts"]), relation])
    return (
        "## By attention\n\nThe best head of each role. Heads: how many are significant after Holm "
        "over heads, at least a "
        "tenth of what the control leaves, and above every head of a re-initialised model where one was measured.\n\n"
        + table(["model", "role", "best head", "score", "control", "best re-initialised", "heads"], rows)
        + "\n\nHow many heads have any role, and the clearest syntactic relation.\n\n"
        + table(["model", "heads with a role", "sentences", "relation"], counts)
    )


def atoms(found: Found) -> str:
    rows = []
    for name, part in found.items():
        for best in part["best"][:5] if name.endswith("-atoms") else ():
            score = f"{best['score']:.2f} {ranged(best['low'], best['high'])}"
            rows.append(
                [name.removesuffix("-atoms"), best["head"], score, f"{best['control']:.2f}", str(best["texts"])]
            )
    lead = (
        "### Atom mapping\n\nThe attention of product atoms to the reactant atoms they were, a role given as links "
        "of words; the control is other tokens as far away. RXNMapper's published head is 10.5; its layers share one "
        "set of weights. By largest attention instead of its sum the order differs: see [reactions](reactions.md).\n\n"
    )
    return lead + table(["model", "head", "score", "control", "reactions"], rows) if rows else ""


def copying(found: Found) -> str:
    text = ""
    for name in DECODERS:
        part = found.get(f"{name}-copying")
        if not part:
            continue
        best = ", ".join(f"{b['head']} ({b['score']:.2f})" for b in part["best"]["retrieval"][:5])
        text += f"\n\n**{name}** ({part['texts']} needles of {part['length']} tokens, {_where(part)}). "
        text += f"Retrieval heads: {best}.\n\n"
        rows = []
        for which, curve in part["curves"].items():
            for r in curve:
                own, other = ranged(r["low"], r["high"]), ranged(r["random_low"], r["random_high"])
                rows.append([which, str(r["heads"]), f"{r['copied']:.2f} {own}", f"{r['random']:.2f} {other}"])
        text += table(
            ["heads closed", "how many", "tokens copied", "with as many random heads of the layers closed"], rows
        )
    return "## Closing copying heads" + text if text else ""


def kv(found: Found) -> str:
    text = ""
    headings = ["measured on", "texts", "streaming", "memory", "policy", "random", "uniform", "uniform less policy"]
    for name in DECODERS:
        part = found.get(f"{name}-kv")
        if not part:
            continue
        rows = []
        for what, curve in part["curves"].items():
            for r in curve:
                numbers = [f"{r[key]:.2f}" for key in ("memory", "policy", "random", "uniform")]
                gap = f"{r['below_uniform']:+.2f} {ranged(r['low_uniform'], r['high_uniform'])}" if r["share"] else "–"
                rows.append([what, f"{r['texts']:.0f}", f"{r['share']:.0%}", *numbers, gap])
        text += (
            f"\n\n**{name}**: calibrated on {part['texts']} texts and as many needles of {part['length']} tokens, with "
        )
        text += f"a window of {part['recent']} ({_where(part)}).\n\n{table(headings, rows)}"
    lead = (
        "## Key-value heads that stream\n\nLoss in nats per token on held-out texts when a share "
        "of the key-value heads see "
        "four first tokens and a recent window. Uniform: a window of all heads with as much memory."
    )
    return lead + text if text else ""


def writing(found: Found) -> str:
    rows = []
    for part in ("written", "functions"):
        for name in DECODERS:
            for role, best in (found.get(f"{name}-{part}") or {"best": {}})["best"].items():
                heads = ", ".join(f"{b['head']} ({b['score']:.2f}, control {b['control']:.2f})" for b in best[:3])
                rows.append([name, role, heads, str(best[0]["texts"]) if best else ""])
    lead = "## What heads write, and tasks they carry\n\n"
    return lead + table(["model", "role", "best heads", "texts"], rows) if rows else ""


def language(found: Found) -> str:
    part = found.get("gemma3-270m-language")
    if not part:
        return ""
    rows = [
        [r["gates"], r["task"], f"{r['loss']:.2f}", f"{r['gain']:+.2f} {ranged(r['low'], r['high'])}"]
        for r in part["rows"]
    ]
    lead = (
        "## A soft mask for Spanish\n\nSixteen gates of gemma3-270m learned on XQuAD in Spanish; "
        "the loss of 200 held-out answers."
    )
    return f"{lead}\n\n{table(['gates', 'task', 'loss without', 'gain'], rows)}"


def alignment(found: Found) -> str:
    part = found.get("whisper-tiny-en-alignment")
    if not part:
        return ""
    errors = part["onset errors"]
    rows = [
        [name, ", ".join(f"{a}.{b}" for a, b in heads), f"{1000 * error:.0f} ms"]
        + ([f"{1000 * gain[0]:+.0f} ms [{1000 * gain[1]:.0f}, {1000 * gain[2]:.0f}]"] if gain else ["–"])
        for (name, heads), error, gain in zip(part["sets"].items(), errors, [*part["gains"], None])
    ]
    published = [part["order"][a][b] for a, b in part["sets"]["published"]]
    others = [
        s for a, row in enumerate(part["order"]) for b, s in enumerate(row) if [a, b] not in part["sets"]["published"]
    ]
    stamps = ""
    if part.get("transformers"):
        clips, before, after, gain, low, high, _ = part["transformers"]
        stamps = (
            f"\n\nIn the {clips} clips of that half whose words Whisper heard without an error, the word timestamps of "
            f"transformers are {1000 * before:.0f} ms off with the published heads and {1000 * after:.0f} ms after "
            f"`write_heads` with those chosen by onsets: {1000 * gain:+.0f} ms [{1000 * low:.0f}, {1000 * high:.0f}]."
        )
    return (
        f"## Alignment heads of Whisper tiny.en\n\n{part['clips']} sentences in a synthetic voice. "
        f"The share of token pairs whose "
        f"peaks are in order is {min(published):.2f} to {max(published):.2f} in the eight published heads and "
        f"{sum(others) / len(others):.2f} on average in the other {len(others)}. Heads were chosen "
        f"on one half; errors of word "
        "onsets are those of the other half.\n\n"
        + table(["heads", "which", "mean error of onsets", "nearer than the published ones"], rows)
        + stamps
    )


def few(found: Found) -> str:
    rows = [
        [part["task"], name, ", ".join(f"{100 * s:.1f}" for s in scores), f"{100 * sum(scores) / len(scores):.1f}"]
        for part in (found[name] for name in ("minilm-l6-few", "minilm-l6-few-agnews") if name in found)
        for name, scores in part["scores"].items()
    ]
    lead = (
        "## A few heads as a classifier\n\nMiniLM with 20 labels a class: accuracy on 200 rows of the development set, "
        "for each draw of the labels. Twenty heads vote; the probe is a logistic regression on all heads.\n\n"
    )
    return lead + table(["task", "method", "draws", "mean"], rows) if rows else ""


def again(found: Found) -> str:
    return (
        "## How to make it again\n\n```sh\n"
        "python -m examples.roles --weights FOLDER --out runs/roles --molecules moses/dataset/data/test.csv.gz\n"
        "python -m examples.roles --out runs/roles --records results/roles.json\n"
        "python -m examples.roles --records results/roles.json --pages docs/results\n```\n\n"
        "`--large` takes the sizes for an accelerator. Parts that are in `--out` already are skipped: a run resumes."
    )


def _where(part: dict[str, Any]) -> str:
    return "GPU" if part.get("device") == "cuda" else "CPU"
