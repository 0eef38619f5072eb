"""The page of the study, from its records alone; the numbers of its sentences are computed (no torch)."""

from __future__ import annotations

from functools import partial

import numpy as np
from examples.reactions import tables
from examples.reactions.tables import (
    AFTER,
    BEFORE,
    MAPPER,
    ONE_BASED,
    PROPERTIES,
    PUBLISHED,
    Records,
    named,
    percent,
    spanned,
)

from headwise.io.records import Results
from headwise.papers.recipe import Part
from headwise.probing.figures import heat_maps

COMMAND = """\
pip install rdkit
pip download --no-deps molsets==0.3.1 && unzip molsets-0.3.1-py3-none-any.whl 'moses/dataset/data/test.csv.gz'
python -m examples.reactions --molecules moses/dataset/data/test.csv.gz --out runs/reactions \\
  --model rxnmapper-albert=FOLDER --model rxnfp-pretrained=FOLDER --model rxnfp-finetuned=FOLDER
headwise records pack runs/reactions --out results/reactions.parquet
python -m examples.reactions --records results/reactions.parquet --pages docs/results"""


ASKED = (
    "For every product atom that came from a reactant, the token it attends to most (without special tokens) is "
    "compared with its reactant atom. All tokens: among all tokens of the reaction; atoms that symmetry makes equal "
    "are equally right. Exactly: the same, with one right atom. Its element: among the reactants' atoms of its "
    "element."
)


class Page:
    """What is said of the three models, as `headwise.papers.pages` takes it."""

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
    every = sum(each["reactions"] for each in made["templates"])
    sizes = ", ".join(f"{size:,}" for size in made["sizes"].values())
    text = (
        f"{every:,} reactions, made from molecules of the MOSES set (drug-like molecules of ZINC) by "
        f"{len(made['templates'])} templates: a molecule is split where a well-known reaction would have joined it "
        "(ester hydrolysis runs forwards), so that the origin of the product's atoms is known exactly. Atom maps are "
        "removed before a model reads a reaction; reactants are in random order, there are no reagents, and no "
        "product appears twice. These reactions were not carried out. Training, development and test reactions: "
        f"{sizes}, with the same fraction of every class. Layers and heads are counted from 0 throughout.\n\nIntervals "
        "are 95 %: Wilson's for fractions of test reactions (probes and token counts); by resampling test reactions "
        "for fractions of atoms, brackets and ring digits, of which a reaction has several, and for differences. For "
        "atoms, brackets and rings under random weights, low and high are instead the mean ± sd over seeds. Heads "
        "and layers are chosen on development data."
    )
    made_of = (tables.reaction_table, tables.model_table, tables.property_table)
    return Part("Reactions and models", text, [make(records) for make in made_of])


# -- where heads look


def mapping(records: Records) -> Part:
    maps = {model: records.map(model, "atoms_element") for model in records.relations}
    shown = [tables.relation_table(records, "Atom mapping", ("atoms", "atoms_exact", "atoms_element"))]
    shown += [make(records) for make in (tables.published_table, tables.depth_table, tables.class_table)]
    figures = {"atom mapping by head": partial(heat_maps, maps, shared=True)}
    return Part("Which heads map atoms", f"{ASKED}\n\n{_published(records)}\n\n{_unasked(records)}", shown, figures)


def _published(records: Records) -> str:
    atoms, element = (records.best(MAPPER, each) for each in ("atoms", "atoms_element"))
    scores, (layer, head) = records.map(MAPPER, "atoms"), PUBLISHED[MAPPER]
    rank, lead = int((scores > scores[layer, head]).sum()) + 1, percent(atoms["behind"])
    verdict = "does not differ significantly" if lead[1] <= 0 <= lead[2] else "is better" if lead[1] > 0 else "is worse"
    close, rest = int((scores[:, head] > scores[layer, head] - 0.02).sum()), np.delete(scores, head, 1).max()
    return (
        f"RXNMapper's published head does map atoms. Among all tokens {spanned(atoms['published'])} of product atoms "
        f"attend most to their reactant atom, {spanned(element['published'])} among reactant atoms of their element. "
        "Layer 10 and head 5 are counted from 0: the head that counting from 1 would name is right in "
        f"{100 * float(scores[ONE_BASED]):.1f} %. Of {scores.size} heads the published one ranks {rank} on test "
        f"reactions; development data select {named(atoms['best'])}, which {verdict} (lead {lead[0]:.2f} points "
        f"[{lead[1]:.2f}, {lead[2]:.2f}]). All layers share one set of weights, and head {head} is within two points "
        f"of the published one in {close} of {len(scores)} layers; the best of all other heads is right in "
        f"{100 * rest:.1f} %. This is the bare arg-max of attention; RXNMapper itself adds rules of chemistry."
    )


def _unasked(records: Records) -> str:
    base = records.made["baselines"]
    return (
        "rxnfp has such heads too: before fine-tuning "
        f"{records.said(BEFORE, 'atoms')} among all tokens and {records.said(BEFORE, 'atoms_element')} among atoms of "
        f"the element; after it {records.said(AFTER, 'atoms')} and {records.said(AFTER, 'atoms_element')}. Without a "
        f"model, the order of atoms alone gives {spanned(base['order'])}, the most frequent offset "
        f"{spanned(base['atoms']['score'])}."
    )


def grammar(records: Records) -> Part:
    lines = [
        f"{words}: {', '.join(f'{model} {records.said(model, relation)}' for model in records.relations)}"
        for relation, words in (("brackets", "Brackets"), ("rings", "Rings"))
    ]
    base = records.made["baselines"]
    text = (
        "Does a closing bracket, or the digit that closes a ring, attend most to its opening partner? "
        f"{'. '.join(lines)}. The most frequent offset finds {spanned(base['brackets']['score'])} of brackets and "
        f"{spanned(base['rings']['score'])} of ring digits."
    )
    maps = {
        f"{model}, {relation}": records.map(model, relation)
        for relation in ("brackets", "rings")
        for model in records.relations
    }
    figures = {"brackets and rings by head": partial(heat_maps, maps, shared=True, columns=3)}
    shown = [tables.relation_table(records, "Brackets and rings", ("brackets", "rings"))]
    return Part("Brackets and rings", text, shown, figures)


# -- what heads encode


def probing(records: Records) -> Part:
    leads = {
        f"{model} {PROPERTIES[asked]}": record.result["utilization"]["against"]["best"]
        for (model, asked), record in records.probes.items()
        if "untrained" not in model
    }
    better = [name for name, lead in leads.items() if lead["low"] > 0]
    worse = [name for name, lead in leads.items() if lead["high"] < 0]
    text = (
        "Linear probes of every layer and every head: the last layer, the best layer and as many of the best heads as "
        f"a layer has, compared. Of {len(leads)} pairs of a trained model and a property, the top heads are better "
        f"than the best layer (interval above zero) in {len(better)} ({', '.join(better) or 'none'}) and worse in "
        f"{len(worse)} ({', '.join(worse) or 'none'}).\n\n{_random(records)}"
    )
    maps = {
        f"{words}\n{model}": records.probe(model, asked)
        for model in records.relations
        for asked, words in PROPERTIES.items()
    }
    figures = {"probes by head": partial(heat_maps, maps, columns=4)}
    return Part("What heads encode", text, [tables.probe_table(records)], figures)


def _random(records: Records) -> str:
    """What needs no learning: the best layer of rxnfp's shape with random weights, and counts of tokens."""
    said, free = [], []
    for asked, words in PROPERTIES.items():
        random, learnt = (records.scored(m, asked, "best") for m in (f"{BEFORE} untrained", BEFORE))
        counts = records.counted(asked)
        said.append(f"{words} {spanned(random)} (counts {spanned(counts)}, pretrained {spanned(learnt)})")
        free += [words] if max(random["high"], counts["high"]) >= learnt["low"] else []
    return (
        "The control matters. The best layer of rxnfp's architecture with random weights, and token counts, give: "
        f"{'; '.join(said)}. Where one of them does as well ({', '.join(free) or 'nowhere'}), a probe shows what is "
        "preserved of the input, not what was learned."
    )


def tuning(records: Records) -> Part:
    moves, stages, maps = tables.moves(records), {"before": BEFORE, "after": AFTER}, {}
    for asked in ("class", "length", "rings"):
        maps |= {f"{PROPERTIES[asked]}, {when}": records.probe(model, asked) for when, model in stages.items()}
    maps |= {f"ring closures, {when}": records.map(model, "rings") for when, model in stages.items()}
    figures = {"before and after fine-tuning": partial(heat_maps, maps, columns=4, shared=True)}
    shown = [tables.change_table(moves), tables.most_table(records, moves)]
    text = f"{_patterns(moves)}\n\n{_gained(records)}\n\n{_lost(records)}"
    return Part("Before and after fine-tuning", text, shown, figures)


def _patterns(moves: tables.Moves) -> str:
    spans = []
    for wanted in (False, True):
        r = [moved.pattern.r for name, (moved, _) in moves.items() if name.startswith("probe") == wanted]
        spans.append(f"{min(r):.2f} to {max(r):.2f}")
    return (
        "rxnfp was fine-tuned by its authors to classify reactions. Over its 48 heads the maps before and after "
        f"correlate with r from {spans[0]} for relations and from {spans[1]} for probes."
    )


def _gained(records: Records) -> str:
    last = {m: records.scored(m, "class", "last") for m in (BEFORE, AFTER)}
    singles = {m: 100 * records.probe(m, "class")[-1].mean() for m in (BEFORE, AFTER)}
    return (
        f"The class is encoded before fine-tuning: the last layer gives {spanned(last[BEFORE])} before and "
        f"{spanned(last[AFTER])} after. What changes is how many heads encode it: a probe of a single head of the last "
        f"layer is right in {singles[BEFORE]:.1f} % on average before and in {singles[AFTER]:.1f} % after."
    )


def _lost(records: Records) -> str:
    """What the last layer and the best heads have of the rest."""
    layers = {
        asked: [records.scored(m, asked, "last") for m in (BEFORE, AFTER)] for asked in ("rings", "length", "halogen")
    }
    said = ", ".join(f"{PROPERTIES[name]} from {spanned(a)} to {spanned(b)}" for name, (a, b) in layers.items())
    heads = []
    for relation in ("atoms", "brackets", "rings"):
        place = records.best(BEFORE, relation)["best"]
        before, after = (100 * float(records.map(m, relation)[*place]) for m in (BEFORE, AFTER))
        heads.append(f"{tables.RELATIONS[relation]} {named(place)} from {before:.1f} to {after:.1f} %")
    words = "Much of the rest fades" if all(b["high"] < a["low"] for a, b in layers.values()) else "The rest"
    return f"{words}. The last layer: {said}. The heads that were best before: {', '.join(heads)}."
