"""Invented studies that behave like real ones: D, verdicts and intervals follow from the same planted heads."""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

import numpy as np

from headwise.study.schema import checked

HOSTILE = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(1)> & \u2028{{ 7*7 }}"
NAMES = ("SST-2", "QNLI", "MNLI", "AG News", "QQP", "CoLA", "MRPC", "STS-B", "POS", "NER")
METRICS = ("accuracy", "accuracy", "accuracy", "accuracy", "f1", "mcc", "f1", "spearman", "tag_accuracy", "span_f1")
PROPERTIES = {"sentence length": 1 / 6, "tree depth": 1 / 5, "tense": 0.5, "subject number": 0.5, "word order": 0.5}
RANDOM = 20  # head sets at every fraction
FRACTIONS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9)
SENTENCES = (
    "[CLS] the quiet film slowly wins you over [SEP]",
    "[CLS] the keys to the old cabinet are on the table [SEP]",
    "[CLS] she said that he had never seen the sea [SEP]",
)


def make(layers: int = 6, heads: int = 12, tasks: int = 4, seed: int = 0) -> dict[str, Any]:
    """A whole study of this size, with every part the page can show."""
    rng = np.random.default_rng(seed)
    names = NAMES[:tasks]
    scores = {name: planted(rng, layers, heads, i) for i, name in enumerate(names)}
    lesions = dissociation(rng, scores)
    final = next(entry for entry in lesions["D"] if entry["fraction"] == lesions["default"])
    return {
        "title": f"Which heads do {tasks} tasks need?",
        "created": "2024-05-17",
        "model": {"name": "all-MiniLM-L6-v2", "family": "bert", "layers": layers, "heads": heads, "kv_heads": heads}
        | {"head_dim": 32, "parameters": 22_713_216},
        "tasks": [about(rng, name, METRICS[i]) for i, name in enumerate(names)],
        "importance": {
            n: {"by": "gradient", "examples": 2000, "scores": s, "stderr": s * 0.06, "top_probability": chances(s)}
            for n, s in scores.items()
        },
        "scores": {n: score(rng, METRICS[i]) for i, n in enumerate(names)},
        "withheld": {},
        "dissociation": lesions,
        "probes": {name: probe(rng, layers, heads, chance) for name, chance in PROPERTIES.items()},
        "gates": {name: 1 / (1 + np.exp(-6 * (s / s.max() - 0.35))) for name, s in scores.items()},
        "roles": roles(layers, heads),
        "attention": {f"{layer}.{head}": habits(rng) for layer in range(layers) for head in range(heads)},
        "examples": [sentence(rng, text, layers, heads) for text in SENTENCES],
        "compare": {"name": "the same encoder before training", "importance": shaken(rng, scores)},
        "training": {"tasks": {name: curve(rng, i) for i, name in enumerate(names)}},
        "iat": {
            "settings": "δ = 0.7, α = 30 %, three seeds.",
            "rows": [gain(rng, n, METRICS[i]) for i, n in enumerate(names)],
        },
        "prune": prune(rng, layers * heads, names),
        "similarity": similarity(rng, final["pairs"]),
        "tables": [published(final)],
        "trust": trust(rng, names),
        "verdict": verdict(final),
        "reproduce": again(names),
    }


def roles(layers: int, heads: int) -> dict[str, Any]:
    """The first head of every layer looks back, the last heads of the upper half look at the first token too."""
    held = lambda role, lift: {"role": role, "score": 0.1 + 0.9 * lift, "control": 0.1, "lift": lift, "p": 0.001}  # noqa: E731
    found = {f"{layer}.0": [held("previous", 0.8 - 0.1 * (layer % 5))] for layer in range(layers)}
    for layer in range(layers // 2, layers):
        found.setdefault(f"{layer}.{heads - 1}", []).append(held("first", 0.5))
    return {"about": {"previous": "the token before", "first": "the first token"}, "heads": found}


def planted(rng: np.random.Generator, layers: int, heads: int, task: int) -> np.ndarray:
    """Heavy-tailed scores: heads all tasks use, heads of tasks of one sort, heads of this task at its own depth."""
    size = (layers, heads)
    shared = np.random.default_rng(99).gamma(0.5, 1.0, size)
    sort = np.random.default_rng(100 + (task + 1) // 2 % 4).gamma(0.5, 1.0, size)
    depth = np.exp(-(((np.arange(layers) / layers - (0.25 + 0.13 * (task % 5))) / 0.3) ** 2))[:, None]
    own = rng.gamma(0.6, 0.9, size) * (0.25 + depth)
    return (0.7 * shared + 0.8 * sort + rng.uniform(0.2, 0.9) * own) * rng.uniform(0.004, 0.02)


def about(rng: np.random.Generator, name: str, metric: str) -> dict[str, Any]:
    size = int(rng.integers(3_000, 400_000))
    return {"name": name, "kind": "classify", "metric": metric, "language": "en", "train": size, "dev": size // 20} | {
        "origin": f"folder data/{name.lower()}"
    }


def dissociation(rng: np.random.Generator, scores: dict[str, np.ndarray]) -> dict[str, Any]:
    """Performance falls with the share of a task's importance that a lesion takes away."""
    names = list(scores)
    lesions = ["none", *names, *(f"random {i + 1}" for i in range(RANDOM))]
    base = rng.uniform(0.78, 0.94, len(names))
    share = {name: s.ravel() / s.sum() for name, s in scores.items()}
    cells = np.empty((len(FRACTIONS), len(names), len(lesions)))
    for f, fraction in enumerate(FRACTIONS):
        k = int(fraction * share[names[0]].size)
        for j, lesion in enumerate(lesions):
            order = (
                np.argsort(-share[lesion], kind="stable") if lesion in names else rng.permutation(share[names[0]].size)
            )
            gone = order[: 0 if lesion == "none" else k]
            for i, name in enumerate(names):
                cells[f, i, j] = base[i] * (1 - 0.75 * share[name][gone].sum() ** 1.8)
    spread = 0.006 + 0.02 * (base[None, :, None] - cells)
    return {
        "fractions": list(FRACTIONS),
        "default": 0.3,
        "lesions": lesions,
        "performance": cells,
        "low": cells - 1.96 * spread,
        "high": cells + 1.96 * spread,
        "collapsed": cells < 0.55 * base[None, :, None],
        "cells": [changes(names, cells[f]) for f in range(len(FRACTIONS))],
        "D": (d := [entry(fraction, names, cells[f]) for f, fraction in enumerate(FRACTIONS)]),
        "on": {"accuracy": scaled(d, 0.9), "chance_corrected": scaled(d, 1.6)},
        "n": dict.fromkeys(names, 500),
        "null": "random heads",
        "random": RANDOM,
        "matched": RANDOM,
        "withheld": {},
    }


def changes(names: list[str], cells: np.ndarray) -> dict[str, Any]:
    """Every cell against the intact model."""
    found: dict[str, Any] = {name: {} for name in names}
    for i, name in enumerate(names):
        for j, lesion in enumerate(names):
            change = float(cells[i, 1 + j] - cells[i, 0])
            p = float(np.exp(60 * change))
            test = {"change": change, "low": change - 0.03, "high": change + 0.03, "p": p}
            found[name][lesion] = test | {"p_holm": min(1.0, p * len(names) ** 2)}
    return found


def entry(fraction: float, names: list[str], cells: np.ndarray) -> dict[str, Any]:
    """Eq. 5 to 7 on one matrix of performances."""
    rp = cells / cells[:, :1]
    own = {n: rp[i, 1 + i] for i, n in enumerate(names)}
    d = [np.mean([rp[i, 1 + j] for j in range(len(names)) if j != i]) - own[n] for i, n in enumerate(names)]
    pairs = []
    for (i, a), (j, b) in combinations(enumerate(names), 2):
        d_a, d_b = rp[i, 1 + j] - own[a], rp[j, 1 + i] - own[b]
        verdict = (
            "distinct"
            if min(d_a, d_b) > 0 and d_a + d_b >= 0.2
            else "double"
            if min(d_a, d_b) > 0
            else "single"
            if max(d_a, d_b) > 0.1
            else "none"
        )
        pairs.append(
            {
                "a": a,
                "b": b,
                "d_a": d_a,
                "d_b": d_b,
                "d": (d_a + d_b) / 2,
                "verdict": verdict,
                **tests(d_a + d_b),
            }
        )
    mean = float(np.mean(d))
    return {
        "fraction": fraction,
        "tasks": {
            n: {"value": v, "low": v - 0.022, "high": v + 0.024, **tests(v), "p_holm": min(1.0, 4 * tests(v)["p"])}
            for n, v in zip(names, d)
        },
        "mean": {"value": mean, "low": mean - 0.012, "high": mean + 0.013, **tests(mean)},
        "pairs": pairs,
    }


def tests(d: float) -> dict[str, float]:
    """P-values that fall with D."""
    p = float(np.exp(-30 * max(0.01, d)))
    return {"p": p, "p_rows": p / 3, "p_layers": min(1.0, 3 * p)}


def scaled(entries: list[dict], by: float) -> list[dict]:
    def stretch(score: dict) -> dict:
        return {k: v if k.startswith("p") else v * by for k, v in score.items()}

    def bend(pair: dict) -> dict:
        return pair | {k: pair[k] * by for k in ("d_a", "d_b", "d")}

    return [
        e
        | {
            "tasks": {n: stretch(s) for n, s in e["tasks"].items()},
            "mean": stretch(e["mean"]),
            "pairs": [bend(p) for p in e["pairs"]],
        }
        for e in entries
    ]


def probe(rng: np.random.Generator, layers: int, heads: int, chance: float) -> dict[str, Any]:
    rise = np.exp(-(((np.arange(layers) / layers - rng.uniform(0.2, 0.7)) / 0.35) ** 2))[:, None]
    return {
        "accuracy": chance + (0.9 - chance) * rise * rng.beta(2, 3, (layers, heads)),
        "chance": chance,
        "metric": "accuracy",
    }


def habits(rng: np.random.Generator) -> dict[str, float]:
    previous, following, first, separator, _rest = rng.dirichlet([0.7, 0.5, 0.8, 1.0, 3])
    return {
        "entropy": rng.uniform(0.4, 2.8),
        "previous": previous,
        "next": following,
        "first": first,
        "separator": separator,
    }


def sentence(rng: np.random.Generator, text: str, layers: int, heads: int) -> dict[str, Any]:
    tokens = text.split()
    n = len(tokens)

    def look() -> np.ndarray:
        weights = rng.dirichlet(np.full(n, 0.12), n) + rng.uniform(0, 2) * np.eye(n, k=int(rng.integers(-1, 2)))
        return weights / weights.sum(1, keepdims=True)

    return {"tokens": tokens, "attention": {f"{i}.{j}": look() for i in range(layers) for j in range(heads)}}


def shaken(rng: np.random.Generator, scores: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: s * rng.lognormal(0, 0.6, s.shape) for name, s in scores.items()}


def curve(rng: np.random.Generator, task: int) -> dict[str, list[float]]:
    step = np.arange(0, 2001, 50)
    loss = 0.25 + (0.5 + 0.1 * task) * np.exp(-step / (300 + 120 * task)) + rng.normal(0, 0.012, step.size)
    metric_step = np.arange(0, 2001, 250)
    metric = 0.9 - 0.02 * task - 0.35 * np.exp(-metric_step / (350 + 100 * task))
    return {"step": step, "loss": loss, "metric_step": metric_step, "metric": metric}


def gain(rng: np.random.Generator, name: str, metric: str) -> dict[str, Any]:
    plain, more = rng.uniform(0.7, 0.9), rng.normal(0.006, 0.007)
    return {
        "task": name,
        "metric": metric,
        "plain": plain,
        "iat": plain + more,
        "low": more - 0.008,
        "high": more + 0.009,
    }


def cut(rng: np.random.Generator, fraction: float, total: int, names: tuple[str, ...]) -> dict[str, Any]:
    scores = {name: 0.9 - 0.02 * i - 0.16 * fraction**2 for i, name in enumerate(names)}
    ceiling = 1 / (1 - 0.33 * fraction)
    return {"fraction": fraction, "kept": total - int(fraction * total), "task scores": scores} | {
        "speedup": 1 + 0.85 * (ceiling - 1),
        "ceiling": ceiling,
    }


def prune(rng: np.random.Generator, total: int, names: tuple[str, ...]) -> dict[str, Any]:
    rows = [cut(rng, f, total, names) for f in (0.0, 0.1, 0.2, 0.3, 0.5)]
    held_out = {}
    for name in names:
        change = float(rng.normal(-0.008, 0.006))
        held_out[name] = {"value": change, "low": change - 0.02, "high": change + 0.02, "n": 500, "split": "test"}
    return {"rows": rows, "chosen": 0.2, "held out": held_out}


def chances(scores: np.ndarray) -> np.ndarray:
    """A logistic of the distance to the cut at 30 %."""
    cut = np.quantile(scores, 0.7)
    return 1 / (1 + np.exp(-(scores - cut) / (0.15 * cut)))


def score(rng: np.random.Generator, metric: str) -> dict[str, Any]:
    value = float(rng.uniform(0.78, 0.94))
    found = {"metric": metric, "value": value, "low": value - 0.03, "high": value + 0.03, "n": 500}
    return found | {"baseline": 0.5, "learned": True}


def stable(rng: np.random.Generator) -> dict[str, Any]:
    expected = float(rng.uniform(0.8, 0.97))
    found = {"split_half": expected - 0.1, "expected": expected, "enough": expected >= 0.9, "used": 2000}
    return found | {"needed": 1500 if expected >= 0.9 else 5200}


def similarity(rng: np.random.Generator, pairs: list[dict]) -> dict[str, Any]:
    points, fits = [], {}
    for measure, noise in (("DSE", 0.02), ("CRA", 0.05)):
        x = np.array([0.9 - 2.2 * pair["d"] for pair in pairs]) + rng.normal(0, noise, len(pairs))
        y = np.array([pair["d"] for pair in pairs])
        slope, intercept = np.polyfit(x, y, 1) if len(x) > 1 else (0.0, y[0])
        r = float(np.corrcoef(x, y)[0, 1]) if len(x) > 1 else 0.0
        points += [
            {"a": p["a"], "b": p["b"], "similarity": s, "d": p["d"], "measure": measure} for p, s in zip(pairs, x)
        ]
        fits[measure] = {
            "r": r,
            "low": max(-1, r - 0.2),
            "high": min(1, r + 0.3),
            "p": 0.012,
            "p_mantel": 0.034,
            "slope": slope,
            "intercept": intercept,
        }
    return {"points": points, "fits": fits}


def published(final: dict) -> dict[str, Any]:
    rows = [
        [name, 100 * score["value"], 100 * score["low"], 100 * score["high"]] for name, score in final["tasks"].items()
    ]
    paper = [[name, value - 1.3, None, None] for name, value, *_ in rows]
    return {
        "title": "Dissociation per task",
        "note": "In percentage points, α = 30 %.",
        "columns": ["task", "D", "low", "high"],
        "rows": rows,
        "published": paper,
    }


def trust(rng: np.random.Generator, names: tuple[str, ...]) -> dict[str, Any]:
    return {
        "stability": {name: stable(rng) for name in names},
        "seeds": {name: rng.uniform(0.45, 0.85) for name in names},
        "random_band": {name: [rng.uniform(0.8, 0.88), rng.uniform(0.92, 0.99)] for name in names},
        "collapsed": [f"{names[0]} without its own heads at α = 70 % answers “positive” 97 times of 100."],
        "leakage": [],
        "notes": ["One seed of training; twenty of random lesions."],
    }


def verdict(final: dict) -> list[str]:
    """The plain sentences at the top."""
    apart = [p for p in final["pairs"] if p["verdict"] in ("double", "distinct") and p["p"] < 0.05]
    strongest = max(final["tasks"], key=lambda n: final["tasks"][n]["value"])
    most = 100 * final["tasks"][strongest]["value"]
    mean, low, high = (100 * final["mean"][k] for k in ("value", "low", "high"))
    return [
        f"Double dissociation in {len(apart)} of {len(final['pairs'])} pairs (p < 0.05 against random head sets).",
        f"{strongest} depends most on heads of its own: it loses {most:.0f} points more with them.",
        f"Mean D is {mean:.1f} points (95 % CI {low:.1f} to {high:.1f}).",
    ]


def again(names: tuple[str, ...]) -> dict[str, Any]:
    return {
        "command": f"headwise study --model all-MiniLM-L6-v2 --tasks {','.join(n.lower() for n in names[:4])} --seed 0",
        "plan": {"steps": 2000, "batch_tokens": 4096, "lr": 5e-5, "warmup": 0.1, "sampler": "proportional", "seed": 0},
        "versions": {"headwise": "0.1.0", "torch": "2.13.0", "transformers": "5.22.2", "python": "3.11.9"},
        "settings": {"alpha": 0.3, "by": "gradient", "examples": 2000, "random": RANDOM},
        "hashes": {"plan": "5f1c22ab90de4411", "weights": "a3e9b04c7712ff08", "data": "09bb13c8de55a7f2"},
    }


def everywhere(value, text):
    """The study with every piece of text made hostile, keys that name tasks and heads alike."""
    if isinstance(value, str):
        return value + text
    if isinstance(value, dict):
        return {key: everywhere(v, text) for key, v in value.items()}
    if isinstance(value, list):
        return [everywhere(v, text) for v in value]
    return value


def hostile() -> dict:
    """A study in which tasks, properties, tokens, sentences and cells all try to break out."""
    study = make(4, 5, 3)
    text = (
        json.dumps(checked(study))
        .replace("SST-2", json.dumps(HOSTILE)[1:-1])
        .replace("tense", json.dumps(HOSTILE)[1:-1])
    )
    study = json.loads(text)
    for part in ("title", "created", "verdict", "tables", "trust", "reproduce", "model"):
        study[part] = everywhere(study[part], HOSTILE)
    study["examples"][0]["tokens"][1] = HOSTILE
    return study
