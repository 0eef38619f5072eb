"""The page of ``reactions.py``, from its records alone; the numbers of its sentences are computed (no torch)."""

from __future__ import annotations

from functools import partial

import numpy as np
from reactions_tables import (
    AFTER,
    BEFORE,
    CHANCE,
    MAPPER,
    ONE_BASED,
    PROPERTIES,
    PUBLISHED,
    Records,
    named,
    percent,
    spanned,
)

from headwise.probing.figures import heat_maps
from headwise.recipes import Part
from headwise.recipes.summary import table
from headwise.results import Results

COMMAND = """\
pip install rdkit
pip download --no-deps molsets==0.3.1 && unzip molsets-0.3.1-py3-none-any.whl 'moses/dataset/data/test.csv.gz'
python examples/reactions.py --molecules moses/dataset/data/test.csv.gz --out docs/results/reactions \\
  --model rxnmapper-albert=FOLDER --model rxnfp-pretrained=FOLDER --model rxnfp-finetuned=FOLDER
python examples/reactions.py --no-run --out docs/results/reactions"""


class Page:
    """What is said of the three models, as `headwise.recipes.pages` takes it."""

    name = "reactions"
    title = "Heads of chemistry Transformers, before and after fine-tuning"
    paper = (
        "Schwaller et al. 2021, Mapping the space of chemical reactions using attention-based neural networks (rxnfp), "
        "and Extraction of organic chemistry grammar from unsupervised learning of chemical reactions (RXNMapper)"
    )

    def parts(self, results: Results) -> list[Part]:
        records = Records(results)
        return [make(records) for make in (inventory, mapping, grammar, probing, tuning)]


def inventory(records: Records) -> Part:
    made = records.made
    rows = [
        [t["name"], t["reactions"], t["tokens"], t["maps"], 100 * t["halogen"], t["example"]] for t in made["templates"]
    ]
    columns = ["class", "reactions", "tokens (median)", "atoms mapped (mean)", "halogen in product %", "the shortest"]
    models = [
        [name, *record.arrays["atoms.test"].shape, record.result["parameters"] / 1e6]
        for name, record in records.relations.items()
    ]
    asked = []
    for name, words in PROPERTIES.items():
        found = records.probes[BEFORE, name].result
        asked.append([words, found["classes"], 100 * found["chance"], *found["sizes"].values()])
    every = sum(t["reactions"] for t in made["templates"])
    text = (
        f"{every:,} reactions, made from molecules of the MOSES set (drug-like molecules of ZINC) by {len(rows)} "
        "templates: a molecule is taken apart where a well-known reaction would have joined it (ester hydrolysis runs "
        "forwards), so that every atom of the product is known among the reactants. Maps are taken out before a model "
        "reads a reaction; reactants stand in random order, there are no reagents, and no product appears twice. These "
        f"are not reactions that someone ran. Training, development and test side: {_sizes(made)}, the same share of "
        "every class. Layers and heads are counted from 0 throughout.\n\n"
        "Intervals are 95 % from resampled test reactions. Heads and layers are chosen on development data."
    )
    return Part(
        "Reactions and models",
        text,
        [
            table("Reactions", columns, rows),
            table("Models", ["model", "layers", "heads per layer", "million parameters"], models),
            table("Properties", ["property", "classes", "chance %", "train", "dev", "test"], asked, CHANCE),
        ],
    )


def _sizes(made: dict[str, Any]) -> str:
    return ", ".join(f"{size:,}" for size in made["sizes"].values())


def mapping(records: Records) -> Part:
    atoms, element = (records.best(MAPPER, each) for each in ("atoms", "atoms_element"))
    scores = records.map(MAPPER, "atoms")
    rank = int((scores > scores[PUBLISHED[MAPPER]]).sum()) + 1
    lead = percent(atoms["behind"])
    tied = lead[1] <= 0 <= lead[2]
    one = 100 * float(scores[ONE_BASED])
    text = (
        f"**RXNMapper's published head does map atoms**: among all tokens, {spanned(atoms['published'])} of product atoms "
        f"look most at their reactant atom, {spanned(element['published'])} among reactant atoms of their element. Layer "
        f"and head are counted from 0: the head that counting from 1 would name is right in {one:.1f} %. Of "
        f"{scores.size} heads it is number {rank} on the test side; development data choose {named(atoms['best'])}, "
        f"{'which is not told apart from it' if tied else 'which is better'} (lead {lead[0]:.1f} points "
        f"[{lead[1]:.1f}, {lead[2]:.1f}]). {_same_head(scores)}\n\n"
        f"**rxnfp has such a head too, and nobody asked it for one**: {records.said(BEFORE, 'atoms')} among all tokens, "
        f"{records.said(BEFORE, 'atoms_element')} among atoms of its element; after fine-tuning "
        f"{records.said(AFTER, 'atoms')} and {records.said(AFTER, 'atoms_element')}. No model is needed for "
        f"{spanned(records.made['baselines']['order'])}, the order of atoms alone."
    )
    maps = {model: records.map(model, "atoms_element") for model in records.relations}
    figures = {"atom mapping by head": partial(heat_maps, maps, shared=True)}
    found = [relation_table(records, "Atom mapping", ("atoms", "atoms_exact", "atoms_element"))]
    return Part(
        "Which heads map atoms",
        text,
        [*found, *(f(records) for f in (published_table, depth_table, class_table))],
        figures,
    )


def _same_head(scores: np.ndarray) -> str:
    """Layers share their weights: the same head of other layers."""
    head = PUBLISHED[MAPPER][1]
    close = int((scores[:, head] > scores[PUBLISHED[MAPPER]] - 0.02).sum())
    rest = np.delete(scores, head, 1)
    words = (
        f"All layers are one set of weights, and head {head} is within two points of that in {close} of {len(scores)}"
    )
    return f"{words} layers; the best of all other heads has {100 * rest.max():.1f} %."


def grammar(records: Records) -> Part:
    lines = [
        f"{words}: {', '.join(f'{model} {records.said(model, relation)}' for model in records.relations)}"
        for relation, words in (("brackets", "**Brackets**"), ("rings", "**Rings**"))
    ]
    base = records.made["baselines"]
    text = (
        "A closing bracket and the digit that closes a ring are asked for their opening partner. "
        + ". ".join(lines)
        + f". The commonest offset finds {spanned(base['brackets']['score'])} of brackets and "
        f"{spanned(base['rings']['score'])} of ring digits."
    )
    maps = {
        f"{model}, {relation}": records.map(model, relation)
        for relation in ("brackets", "rings")
        for model in records.relations
    }
    figures = {"brackets and rings by head": partial(heat_maps, maps, shared=True, columns=3)}
    return Part(
        "Brackets and rings", text, [relation_table(records, "Brackets and rings", ("brackets", "rings"))], figures
    )


def probing(records: Records) -> Part:
    wins = {"heads": [], "layer": []}
    for (model, asked), record in records.probes.items():
        lead = record.result["utilization"]["against"]["best"]
        if "untrained" not in model and lead["low"] > 0:
            wins["heads"].append(f"{model} {asked}")
        if "untrained" not in model and lead["high"] < 0:
            wins["layer"].append(f"{model} {asked}")
    total = sum("untrained" not in model for model, _ in records.probes)
    heads, layer = (", ".join(each) or "none" for each in wins.values())
    text = (
        "Linear probes of every layer and every head: the last layer, the best layer and as many of the best heads as a "
        f"layer has, side by side. Of {total} pairs of a trained model and a property, the top heads are better than the "
        f"best layer (interval above zero) in {len(wins['heads'])} ({heads}), worse in {len(wins['layer'])} ({layer})."
    )
    maps = {
        f"{words}\n{model}": records.probe(model, asked)
        for model in records.relations
        for asked, words in PROPERTIES.items()
    }
    figures = {"probes by head": partial(heat_maps, maps, columns=4)}
    return Part("What heads encode", text, [probe_table(records)], figures)


def tuning(records: Records) -> Part:
    found = moves(records)
    relations = {name: moved for name, (moved, _) in found.items() if not name.startswith("probe")}
    probes = {name: moved for name, (moved, _) in found.items() if name.startswith("probe")}
    spans = [[f"{pick(m.pattern.r for m in each.values()):.2f}" for pick in (min, max)] for each in (relations, probes)]
    score = {m: records.probes[m, "class"].result["utilization"]["scores"] for m in (BEFORE, AFTER)}
    singles = {m: 100 * records.probe(m, "class")[-1].mean() for m in (BEFORE, AFTER)}
    text = (
        "rxnfp was fine-tuned to name reaction classes (of another, finer set). Over its 48 heads the maps before and "
        f"after correlate with r from {spans[0][0]} to {spans[0][1]} for relations and from {spans[1][0]} to "
        f"{spans[1][1]} for probes. The class was there before: the last layer gives {spanned(score[BEFORE]['last'])} "
        f"before and {spanned(score[AFTER]['last'])} after; single heads of the last layer give it away "
        f"{singles[BEFORE]:.1f} % of the time on average before and {singles[AFTER]:.1f} % after. "
        f"Mean change over heads, points: {', '.join(f'{name} {100 * m.mean:+.1f}' for name, (m, _) in found.items())}."
    )
    maps = {}
    for asked in ("class", "length", "rings"):
        maps |= {
            f"{PROPERTIES[asked]}, {when}": records.probe(m, asked)
            for when, m in (("before", BEFORE), ("after", AFTER))
        }
    maps |= {f"ring closures, {when}": records.map(m, "rings") for when, m in (("before", BEFORE), ("after", AFTER))}
    figures = {"before and after fine-tuning": partial(heat_maps, maps, columns=4, shared=True)}
    return Part("Before and after fine-tuning", text, [change_table(found), most_table(records, found)], figures)
