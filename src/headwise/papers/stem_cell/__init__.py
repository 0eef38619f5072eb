"""The stem cell hypothesis (He and Choi 2021): five structured tasks, learned head gates, probes without parameters."""

from __future__ import annotations

from functools import partial

from headwise.papers.message import Claim, Row, in_short, row
from headwise.papers.recipe import Difference, Item, PaperRecipe, Part
from headwise.papers.stem_cell import figures, tables
from headwise.papers.stem_cell.jobs import HUB, SIZES, Build
from headwise.papers.stem_cell.published import ERRATA, STAGES, TASKS
from headwise.papers.stem_cell.records import ALL, Records, alike
from headwise.papers.stem_cell.tables import every_table, published_table
from headwise.papers.summary import sentence


def _in_short(records: Records) -> Part:
    equal = {model: t["rows"] for model in records.models() if (t := tables.equal_table(records, model))}
    rows = [
        Row(r[0], "measured", r[4], r[5], r[6], f"{r[-1]} seeds") for e in equal.values() for r in e if r[4] is not None
    ]
    more = [each for model in equal for each in _usual_gains(records, model)]
    worse, better = (_named(rows, sign) for sign in (-1, 1))
    says = f"With as many updates alone as together, joint training hurts {worse} and helps {better}."
    unequal = "Against tasks trained alone with a fifth of the updates, the usual comparison, this does not show."
    axis = "gain in points of all five together over alone"
    short = Claim(unequal, f"{axis}, a fifth of the updates", more)
    return in_short([Claim(says, f"{axis}, equal updates", rows), short])


def _usual_gains(records: Records, model: str) -> list[Row]:
    """All five together against alone, where alone has a fifth of the updates."""
    scores, made = records.scores(model, False), list[Row]()
    for task, name in zip(TASKS, tables.NAMES):
        joint, alone = scores.get((ALL, task), {}), scores.get((task, task), {})
        made += row(name, "baseline", [100 * (joint[seed] - alone[seed]) for seed in joint if seed in alone], "seeds")
    return made


def _named(rows: list[Row], sign: int) -> str:
    """The tasks whose whole interval lies on one side of zero."""
    sure = [r.what for r in rows if r.low is not None and r.high is not None and min(sign * r.low, sign * r.high) > 0]
    return ", ".join(sure) or "none"


def _scores(records: Records) -> Part:
    entries = [tables.score_table(records, model, *way) for model in records.models() for way in tables.WAYS]
    entries += [make(records, model) for model in records.models() for make in (tables.equal_table, tables.each_table)]
    text = (
        "POS, NER, DEP, CON and SRL: each trained alone, with every other task, and with all. The paper reports that "
        "joint training loses on every task; its table of scores is not available, so none is shown beside ours. The "
        "last row of each table is that comparison, but joint training has five times the updates in it: it tests the "
        "paper's claim only with as many updates alone (Equal updates)"
    )
    text += "." if any(one.times > 1 for one in records.trained) else ", which was registered and not run."
    return Part("Scores", text, [each for each in entries if each])


def _kept(records: Records) -> Part:
    entries = [tables.kept_table(records, model) for model in records.models()]
    drawn = {}
    for model in records.models():
        ways = {tasks.upper(): tasks for tasks in TASKS[:1]} | {"all five": ALL}
        if kept := {name: taken for name, tasks in ways.items() if (taken := records.snapshots(model, tasks))}:
            drawn[f"gates on the way {model}"] = partial(figures.closing, kept)
    text = (
        "Hard-concrete gates learn which heads a task needs: trained together with the encoder (dynamic), on a frozen "
        f"encoder (static) and, as a control, on an encoder with random weights. {sentence(ERRATA['gates'])}; ours "
        "start open at the sizes smoke and small."
    )
    return Part("Heads kept", text, [each for each in entries if each], drawn)


def _claims(records: Records) -> Part:
    entries = [tables.stem_table(records), *(tables.correlation_table(records, model) for model in records.models())]
    drawn = {}
    for model in records.models():
        claims, every = records.claims(model), tables.with_joint(records, model)
        if claims is not None and every is not None:
            drawn[f"claims {model}"] = partial(figures.claimed, claims, every)
            if len(every.gates) == 3:
                drawn[f"overlap of runs {model}"] = partial(figures.overlaps, every)
    text = (
        "Stem cells are heads claimed by most tasks. Tasks that prefer the same layers share heads by chance, so "
        "claims are permuted within layers as well as over all heads. For the published figure, "
        f"{ERRATA['15 models average']}; ours shows all of them."
    )
    return Part("Which tasks claim which heads", text, [each for each in entries if each], drawn)


def _static(records: Records) -> Part:
    made, drawn = [], {}
    for model in records.models():
        made.append(tables.way_table(records, model))
        static = records.profiles(model, "train").get(STAGES[0])
        if static:
            drawn[f"labels by layer {model}"] = partial(figures.layers, next(iter(alike(static).values())))
    text = "Each head's accuracy for every label without any training: the nearest centroid of head outputs for "
    text += "POS, NER and CON, the arg-max of attention in either direction for DEP and SRL. "
    text += f"In the released code {ERRATA['probes']}; ours takes them from training data, and both are shown."
    return Part("What heads encode", text, [each for each in made if each], drawn)


def _training(records: Records) -> Part:
    made, drawn = [], {}
    for model in records.models():
        made += [every_table(records, model), tables.change_table(records, model)]
        made += [tables.label_table(records, model, task) for task in TASKS]
        profiles = records.profiles(model, "train")
        if STAGES[1] in profiles and len(profiles) > 1:
            drawn[f"change against single {model}"] = partial(figures.against_single, profiles)
    text = (
        "The hypothesis: single-task training turns pretrained heads into specialists, joint training does not. It "
        "holds where selectivity rises from pretrained to single and falls from single to all five. The random "
        "encoder shows how much of a score the architecture alone gives."
    )
    kept = [each for each in made if each]
    return Part("What training changes", text, [*kept, published_table()] if kept else [], drawn)


ITEMS = (
    Item(
        "table-1",
        "scores alone, in pairs and together, without and with gates",
        ("plain", "plain_pairs", "gated", "gated_pairs", "static", "equal"),
        ("Scores", "Heads kept", "Equal updates"),
    ),
    Item("equal-updates", "alone with as many updates as together", ("plain", "equal"), ("Equal updates",)),
    Item("own-gates", "gates of each task: a remedy for the dilemma", ("plain", "gated", "each"), ("Gates for each",)),
    Item("table-2", "correlation of gates", ("gated",), ("Correlation of gates",)),
    Item("figure-1", "which tasks claim which heads", ("gated",), ("Stem cells", "claims", "overlap of runs")),
    Item("figure-2", "gates during training", ("gated",), ("gates on the way",)),
    Item("figure-3", "the best head of every label before training", ("pretrained",), ("labels by layer",)),
    Item(
        "figure-4",
        "heads by label: pretrained, alone, in pairs, together",
        ("pretrained", "probes", "probe_pairs"),
        ("change against single", "What training changes", "Best heads by label", "All labels", "The published"),
    ),
    Item("control", "gates on a random encoder", ("untrained",), ("Heads kept",)),
)
PUBLISHED = {
    **{"epochs": 30, "lr": 5e-5, "head_lr": 1e-3, "clip": 1.0, "word_dropout": 0.2, "tokens": 6400, "patience": 15},
    **{"sampling": "temperature", "temperature": 0.8, "balance": "moving_average", "precision": "fp32"},
    **{"seeds": (0, 1, 2), "max_length": 512, "accumulate": {"pos": 2, "ner": 1, "dep": 1, "con": 2, "srl": 4}},
}
DIFFERENCES = (
    Difference("data", "OntoNotes 5, CoNLL-2012 split", "size small: English Web Treebank; size full: OntoNotes"),
    Difference("updates", "early stopping, alone and together", "size small: a fixed number of epochs", "table-1"),
    Difference(
        "joint training", "five times the updates of each task alone", "the same; equal updates beside", "table-1"
    ),
    Difference("gates", "start between 0.3 and 0.7 (release)", "size full: the same; small: open"),
    Difference("centroids", "from the evaluated test data (release)", "from training data; both shown", "figure-4"),
    Difference("pairwise weights", "some pairs by intrinsic weighting (release)", "moving average for all"),
)

recipe = PaperRecipe(
    name="stem_cell",
    title="The stem cell hypothesis",
    paper="He and Choi 2021, The Stem Cell Hypothesis: Dilemma behind Multi-Task Learning with Transformer Encoders",
    hub=HUB,
    sizes=SIZES,
    build=Build,
    read=Records,
    sections=(_in_short, _scores, _kept, _claims, _static, _training),
    items=ITEMS,
    differences=DIFFERENCES,
    published=PUBLISHED,
)
