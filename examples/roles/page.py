"""The page docs/results/roles.md from what was measured; a part that was not measured is said to be missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

SHOWN = (
    *("previous", "next", "self", "first", "separator", "same token", "duplicate", "induction", "prefix", "suffix"),
    *("punctuation", "same entity", "question → passage"),
)
KNOWN = {  # heads that were known before: the role, and which heads
    "smollm2-135m": ("induction", ("18.6", "17.3", "17.4")),
    "gemma3-270m": ("induction", ("5.1",)),
    "minilm-l6": ("previous", ("0.2",)),
}
DECODERS = ("smollm2-135m", "gemma3-270m")
Found = dict[str, dict[str, Any]]


def written(found: Found) -> str:
    """The whole page."""
    parts = (head, findings, attention, atoms, copying, kv, writing, languages, language)
    parts += (alignment, few, sources, again)
    return "\n\n".join(text for part in parts if (text := part(found).strip())) + "\n"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(headings) + " |", "|---" * len(headings) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def ranged(low: float, high: float) -> str:
    return f"[{low:.2f}, {high:.2f}]"


def head(found: Found) -> str:
    names = sorted({name.removesuffix("-attention") for name in found if name.endswith("-attention")})
    others = sorted({name.removesuffix("-atoms") for name in found if name.endswith("-atoms")})
    return (
        f"# What heads do\n\nRoles of attention heads in real checkpoints: {', '.join([*names, *others])}, and Whisper "
        "tiny.en. Intervals are 95 % over texts; p-values are after Holm over heads. smollm2-135m and gemma3-270m were "
        "dequantized from 4 bits. Layers and heads are counted from 0. [`headwise roles`](../verbs/roles.md) says what "
        "each score and control is."
    )


def findings(found: Found) -> str:
    """What the tables below say, in sentences."""
    said = [known for name in KNOWN if (known := _known(found, name))]
    said += [_copied(name, found[f"{name}-copying"]) for name in DECODERS if f"{name}-copying" in found]
    for name in DECODERS:
        for what, curve in (found.get(f"{name}-kv") or {"curves": {}})["curves"].items():
            half = next(r for r in curve if r["share"] == 0.5)
            sure = half["low_uniform"] > 0 or half["high_uniform"] < 0
            said.append(
                f"{name}, half of its key-value heads streaming, {what}: {half['below_uniform']:+.2f} "
                f"{ranged(half['low_uniform'], half['high_uniform'])} nats a token below uniform windows of the same "
                f"memory{'' if sure else ', not significantly different from zero'}."
            )
    if part := found.get("gemma3-270m-language"):
        own = _rows(part, "es → es", "es → es")
        random = ", ".join(f"{row['gain']:.2f}" for row in own[1:])
        said.append(
            f"Sixteen learned numbers lower gemma3-270m's loss of right Spanish answers by {_gained(own[0])} nats a "
            f"token (of {own[0]['loss']:.2f}); as many in random heads by {random}."
        )
    if part := found.get("whisper-tiny-en-alignment"):
        own, _, published = part["onset errors"]
        low, high = (1000 * end for end in part["gains"][0][1:])
        names = [tuple(head) for head in part["sets"]["published"]]
        ordered = sum(head in [tuple(h) for h in part["sets"]["by order"]] for head in names)
        said.append(
            f"Whisper's heads chosen by onsets are {1000 * own:.0f} ms off on other clips, the published ones "
            f"{1000 * published:.0f} ms ([{low:.0f}, {high:.0f}] more); {ordered} of the {len(names)} published heads "
            f"are monotonic over {part['clips']} clips."
        )
    return "\n".join(f"- {sentence}" for sentence in said)


def _known(found: Found, name: str) -> str:
    """Where heads that were known before rank in their role."""
    role, heads = KNOWN[name]
    best = (found.get(f"{name}-attention") or {"roles": {}})["roles"].get(role, {"best": []})["best"]
    places = [next((str(n + 1) for n, b in enumerate(best) if b["head"] == head), "below 3") for head in heads]
    if not best:
        return ""
    ranks = ", ".join(f"{head} (rank {place})" for head, place in zip(heads, places))
    return f"Known heads of {name} for {role}: {ranks}; the first scores {best[0]['score']:.2f}."


def _copied(name: str, part: dict[str, Any]) -> str:
    """The fewest retrieval heads that end copying while random ones do not."""
    curve = part["curves"]["retrieval"]
    row = next((r for r in curve if r["copied"] < 0.1 * curve[0]["copied"]), curve[-1])
    closed = f"{row['heads']} best retrieval heads" if row["heads"] > 1 else "best retrieval head"
    return (
        f"With its {closed} closed, {name} copies {row['copied']:.2f} of a needle's tokens; "
        f"with as many random heads closed, {row['random']:.2f} "
        f"({row['below_random']:.2f} {ranged(row['below_low'], row['below_high'])} more)."
    )


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
        relations = {n: e for n, e in part["roles"].items() if "head" in n.split(" → ") and e["best"] and e["heads"]}
        strongest = max(
            relations.items(),
            key=lambda item: item[1]["best"][0]["score"] - item[1]["best"][0]["control"],
            default=None,
        )
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
        "### Atom mapping\n\nAttention from product atoms to the reactant atoms they came from, a role given as links "
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
                less = f"{r['below_random']:.2f} {ranged(r['below_low'], r['below_high'])}" if r["heads"] else "–"
                rows.append([which, str(r["heads"]), f"{r['copied']:.2f} {own}", f"{r['random']:.2f} {other}", less])
        text += table(["heads closed", "how many", "tokens copied", "random heads closed", "fewer than those"], rows)
    lead = (
        "## Closing copying heads\n\nThe fraction of a needle's tokens that the model still copies. Random heads are "
        "others of the same layers, or of any layer if one has too few; means over several draws."
    )
    return lead + text if text else ""


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
        "## Key-value heads that stream\n\nLoss in nats per token on held-out texts when a fraction "
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


def languages(found: Found) -> str:
    rows = []
    for name in DECODERS:
        for role, entry in (found.get(f"{name}-languages") or {"roles": {}})["roles"].items():
            heads = ", ".join(
                f"{b['head']} ({b['score']:.2f} {ranged(b['low'], b['high'])})" for b in entry["best"][:3]
            )
            rows.append([name, role, heads, str(entry["heads"]), str(entry["best"][0]["texts"])])
    lead = (
        "## Heads of a language\n\nA head's importance for a paragraph of XQuAD in one language, as a fraction of that "
        "for its English and Spanish versions together; the control, with another English paragraph, is 0.50.\n\n"
    )
    return lead + table(["model", "role", "best heads", "heads", "paragraphs"], rows) if rows else ""


def language(found: Found) -> str:
    part = found.get("gemma3-270m-language")
    if not part:
        return ""
    rows = [
        [
            *(r[name] for name in ("learned", "heads", "measured")),
            *(f"{r['loss']:.2f}", _gained(r), f"{r['exact']:.3f}"),
            f"{r['more']:+.3f} {ranged(r['more_low'], r['more_high'])}",
        ]
        for r in part["rows"]
    ]
    headings = ["learned on", "gates", "measured on", "loss without", "gain", "exact without", "more exact"]
    lead = (
        f"## A soft mask for Spanish\n\nSixteen gates of gemma3-270m ({_where(part)}), of the heads whose share of all "
        f"importance is larger in Spanish by most, learned on {part['learned']} questions of XQuAD and measured on "
        f"{part['texts']} about other paragraphs: a question in one language → its right answer in one. The loss is in "
        "nats a token; exact answers are those whose every token is the likeliest.\n\n"
    )
    return lead + table(headings, rows) + "\n\n" + _switched(part)


def _switched(part: dict[str, Any]) -> str:
    """Whether a mask prefers one language to the other."""
    own, english = (_rows(part, "es → es", measured)[0]["gain"] for measured in ("es → es", "en → en"))
    random = [
        a["gain"] - b["gain"]
        for a, b in zip(_rows(part, "es → es", "es → es")[1:], _rows(part, "es → es", "en → en")[1:])
    ]
    across, stayed = (_rows(part, "en → es", measured)[0] for measured in ("en → es", "en → en"))
    return (
        f"Learned on Spanish questions, the gates of language heads gain {own - english:.2f} nats more in Spanish than "
        f"in English, those of random heads {', '.join(f'{each:.2f}' for each in random)}. Learned on Spanish answers "
        f"to English questions, they gain {across['gain']:.2f} for these and {stayed['gain']:.2f} for English answers: "
        + ("they switch the language" if across["low"] > stayed["high"] else "they do not switch the language")
        + " of the answer."
    )


def _rows(part: dict[str, Any], learned: str, measured: str) -> list[dict[str, Any]]:
    return [r for r in part["rows"] if r["learned"] == learned and r["measured"] == measured]


def _gained(row: dict[str, Any]) -> str:
    return f"{row['gain']:+.2f} {ranged(row['low'], row['high'])}"


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
    rows = []
    for part in (part for name, part in found.items() if "-few-" in name):
        for name, scores in part["scores"].items():
            gap = [f"{100 * value:+.1f}" for value in part.get("gaps", {}).get(name, ())]
            shown = f"{gap[0]} [{gap[1]}, {gap[2]}]".replace("[+", "[").replace(", +", ", ") if gap else "–"
            draws = ", ".join(f"{100 * s:.1f}" for s in scores)
            rows.append([part["task"], name, draws, f"{100 * sum(scores) / len(scores):.1f}", shown])
    sizes = ", ".join(f"{part['task']}: {part['test']}" for name, part in found.items() if "-few-" in name)
    lead = (
        "## A few heads as a classifier\n\nMiniLM with 20 labels a class: accuracy on rows of the development set "
        f"({sizes}), for each draw of the labels. Twenty heads vote; the probe is a logistic regression on all heads; "
        "training changes all weights on the same rows for ten epochs. The last column is how much better the few "
        "heads are, over rows.\n\n"
    )
    return lead + table(["task", "method", "draws", "mean", "few heads better by"], rows) if rows else ""


TEXTS = (  # what the parts read
    ("attention, induction", "the embedded corpus: dependency trees and named entities, written by a grammar"),
    ("questions, two languages", "XQuAD's test questions in English and Spanish, public samples"),
    ("atoms", "reactions made from molecules of MOSES (public)"),
    ("speech", "a clip that comes with the model's package, and sentences spoken by espeak-ng"),
    ("a few heads as a classifier", "samples of AG News, SST-2 and TREC: training and development rows"),
)


def sources(found: Found) -> str:
    """Where weights and texts come from."""
    from headwise.papers.pages import known

    weights, names = known()["weights"], {name.rpartition("-")[0] for name in found}
    used = sorted(name for name in weights if any(name == each or each.startswith(f"{name}-") for each in names))
    rows = [[name, weights[name]["source"], weights[name]["note"]] for name in used]
    text = (
        "Records of this page know their models by name. Pretraining data of decoders may hold any public text, the "
        "questions among them; what is compared is heads and lesions of one model."
    )
    models = table(["model", "source", "what they are"], rows)
    return f"## Data and weights\n\n{text}\n\n{models}\n\n{table(['part', 'texts'], TEXTS)}"


def again(found: Found) -> str:
    return (
        "## How to reproduce this page\n\n```sh\n"
        "python -m examples.roles --weights FOLDER --out runs/roles --molecules moses/dataset/data/test.csv.gz\n"
        "python -m examples.roles --out runs/roles --records results/roles.json\n"
        "python -m examples.roles --records results/roles.json --pages docs/results\n```\n\n"
        "`--large` takes the sizes for an accelerator. Parts that are in `--out` already are skipped: a run resumes."
    )


def _where(part: dict[str, Any]) -> str:
    return "GPU" if part.get("device") == "cuda" else "CPU"
