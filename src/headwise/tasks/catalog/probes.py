"""The ten probing properties of SentEval, made from any Universal Dependencies treebank (no torch).

Conneau et al. 2018 derived them from parsed English books. Here gold annotation replaces the parser, so every language
with a treebank has them. Without constituents, ``tree_depth`` is the depth of the dependency tree, and
``top_constituents`` the order of the root's dependents.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from headwise.errors import HeadwiseError, unknown
from headwise.tasks.readers import brackets
from headwise.tasks.task import SPLITS, Row

LENGTHS = ((5, 8), (9, 12), (13, 16), (17, 20), (21, 25), (26, 28))  # words, as SentEval
PAST = {"Past": "Past", "Imp": "Past", "Pqp": "Past", "Pres": "Pres"}
OTHER = "OTHER"
CONTENT = ("NOUN", "VERB", "ADJ", "ADV")


class Example(NamedTuple):
    """A sentence with its label; examples of one key stay in one split."""

    words: Sequence[str]
    label: str
    key: str


Builder = Callable[[list[Row], random.Random], list[Example]]


def feature(row: Row, i: int, name: str) -> str:
    """One morphological feature of a word, or ""."""
    given = row["feats"][i] or "_"
    return next((pair.partition("=")[2] for pair in given.split("|") if pair.startswith(f"{name}=")), "")


def root(row: Row) -> int:
    return row["heads"].index(0)


def children(row: Row, head: int) -> list[int]:
    return [i for i, parent in enumerate(row["heads"]) if parent == head + 1]


def relation(row: Row, i: int) -> str:
    return row["deprels"][i].split(":")[0]


def _even(examples: Iterable[Example], rng: random.Random, most: int | None = None) -> list[Example]:
    """Equally many rows of each label: as many as the rarest has, at most ``most``."""
    by_label: dict[str, list[Example]] = defaultdict(list)
    for example in examples:
        by_label[example.label].append(example)
    size = min(map(len, by_label.values()), default=0) if most is None else most
    return [e for label in sorted(by_label) for e in rng.sample(by_label[label], min(size, len(by_label[label])))]


def sentence_length(rows: list[Row], rng: random.Random) -> list[Example]:
    bins = {n: str(i) for i, (low, high) in enumerate(LENGTHS) for n in range(low, high + 1)}
    return _even((_plain(row, bins[len(row["words"])]) for row in rows), rng)


def _plain(row: Row, label: str) -> Example:
    return Example(row["words"], label, " ".join(row["words"]))


def word_content(rows: list[Row], rng: random.Random) -> list[Example]:
    """Which of up to 1000 content words of medium frequency the sentence contains; each contains exactly one.

    There is one such word per hundred sentences, so a small treebank has enough sentences for each.
    """
    tags: dict[str, Counter] = defaultdict(Counter)
    for row in rows:
        for word, tag in zip(row["words"], row["upos"]):
            tags[word.lower()][tag in CONTENT] += 1
    content = [word for word, used in tags.items() if word.isalpha() and used[True] > 4 * used[False]]
    size = max(10, min(1000, len(rows) // 100))
    targets = set(sorted(content, key=lambda word: (-tags[word][True], word))[size // 2 :][:size])
    selected = []
    for row in rows:
        inside = [word.lower() for word in row["words"] if word.lower() in targets]
        if len(inside) == 1:
            selected.append(_plain(row, inside[0]))
    enough = Counter(example.label for example in selected)
    return [example for example in selected if enough[example.label] >= 10]


def tree_depth(rows: list[Row], rng: random.Random) -> list[Example]:
    """The depth of the tree, over the seven most frequent consecutive depths.

    No pair of length and depth occurs more often than the median pair, so length predicts depth less well (in EWT their
    correlation drops from 0.66 to 0.50). Removing the correlation entirely would discard most sentences.
    """
    measured = [(row, _depth(row)) for row in with_trees(rows)]
    counts = Counter(depth for _, depth in measured)
    low = max(range(max(counts) + 1), key=lambda low: sum(counts[low + i] for i in range(7)))
    kept = [(row, depth) for row, depth in measured if low <= depth < low + 7]
    cells: dict[tuple[int, int], list[Example]] = defaultdict(list)
    for row, depth in kept:
        cells[len(row["words"]), depth].append(_plain(row, str(depth)))
    most = sorted(map(len, cells.values()))[len(cells) // 2] if cells else 0
    return [e for cell in sorted(cells) for e in rng.sample(cells[cell], min(most, len(cells[cell])))]


def with_trees(rows: list[Row]) -> list[Row]:
    """The rows with constituents, if most have them; else all rows, without."""
    has = [row for row in rows if row.get("tree")]
    return has if 2 * len(has) > len(rows) else [{**row, "tree": None} for row in rows]


def _depth(row: Row) -> int:
    if row["tree"]:
        return brackets.depth(brackets.parse(row["tree"]))
    deepest = 0
    for i in range(len(row["words"])):
        steps = 0
        while row["heads"][i]:
            i, steps = row["heads"][i] - 1, steps + 1
        deepest = max(deepest, steps)
    return deepest


def top_constituents(rows: list[Row], rng: random.Random) -> list[Example]:
    """The sequence of top constituents: the 19 most frequent ones, and all others together."""
    named = [(row, _top(row)) for row in with_trees(rows)]
    counts = Counter(name for _, name in named).most_common(19)
    common = {name for name, _ in counts}
    most = 3 * counts[len(counts) // 2][1] if counts else 0
    return _even((_plain(row, name if name in common else OTHER) for row, name in named), rng, most)


def _top(row: Row) -> str:
    if not row["tree"]:
        main = root(row)
        return "_".join("ROOT" if i == main else relation(row, i) for i in sorted([main, *children(row, main)]))
    node = brackets.cleaned(brackets.parse(row["tree"]))
    while node is not None and len(node.children) == 1 and not node.label.startswith("S"):
        node = node.children[0]
    return "_".join(child.label for child in node.children) if node is not None else ""


def _altered(
    rows: list[Row], rng: random.Random, change: Callable[[Row], list[str] | None], mark: str
) -> list[Example]:
    """Change half of the changeable sentences and keep the other half, so that being changeable predicts nothing."""
    changed = [(row, new) for row in rows if (new := change(row)) is not None]
    rng.shuffle(changed)
    half = len(changed) // 2
    return [
        Example(new, mark, " ".join(row["words"])) if i < half else _plain(row, "O")
        for i, (row, new) in enumerate(changed[: 2 * half])
    ]


def bigram_shift(rows: list[Row], rng: random.Random) -> list[Example]:
    """Whether two neighbours, neither the first word nor punctuation, were swapped."""

    def change(row: Row) -> list[str] | None:
        words, tags = row["words"], row["upos"]
        places = [
            i
            for i in range(1, len(words) - 1)
            if "PUNCT" not in (tags[i], tags[i + 1]) and words[i].lower() != words[i + 1].lower()
        ]
        if not places:
            return None
        i = rng.choice(places)
        return [*words[:i], words[i + 1], words[i], *words[i + 2 :]]

    return _altered(rows, rng, change, "I")


def past_present(rows: list[Row], rng: random.Random) -> list[Example]:
    """The tense of the main verb; no verb form occurs in two splits."""
    selected = []
    for row in rows:
        verb = root(row)
        label = PAST.get(feature(row, verb, "Tense"))
        if label and row["upos"][verb] == "VERB" and feature(row, verb, "VerbForm") in ("Fin", ""):
            selected.append(Example(row["words"], label, row["words"][verb].lower()))
    return selected


def _number(rows: list[Row], relations: tuple[str, ...]) -> list[Example]:
    selected = []
    for row in rows:
        nouns = [i for i in children(row, root(row)) if relation(row, i) in relations and row["upos"][i] == "NOUN"]
        if len(nouns) == 1 and (label := feature(row, nouns[0], "Number")) in ("Sing", "Plur"):
            selected.append(Example(row["words"], label, row["words"][nouns[0]].lower()))
    return selected


def subj_number(rows: list[Row], rng: random.Random) -> list[Example]:
    """The number of the main clause's subject; no noun form occurs in two splits."""
    return _number(rows, ("nsubj", "nsubjpass"))


def obj_number(rows: list[Row], rng: random.Random) -> list[Example]:
    """The number of the main clause's object; no noun form occurs in two splits."""
    return _number(rows, ("obj", "dobj"))


def odd_man_out(rows: list[Row], rng: random.Random) -> list[Example]:
    """Whether a noun or verb was replaced by another of its class and frequency that occurs beside its neighbour."""
    beside: dict[tuple, dict[str, None]] = defaultdict(dict)  # a dict keeps the order, so that a seed gives one result
    counts = Counter(word for row in rows for word in row["words"])
    for row in rows:
        for i in _replaceable(row):
            for place in _places(row, i):
                beside[place][row["words"][i]] = None
    choices = {place: list(words) for place, words in beside.items()}

    def change(row: Row) -> list[str] | None:
        spots = [(i, place) for i in _replaceable(row) for place in _places(row, i)]
        for i, place in rng.sample(spots, len(spots)):
            word = row["words"][i]
            for new in rng.sample(choices[place], min(20, len(choices[place]))):
                if 0.5 <= counts[new] / counts[word] <= 2 and new not in row["words"]:
                    return [*row["words"][:i], new, *row["words"][i + 1 :]]
        return None

    return _altered(rows, rng, change, "C")


def _replaceable(row: Row) -> list[int]:
    return [i for i, tag in enumerate(row["upos"]) if i and tag in ("NOUN", "VERB")]


def _places(row: Row, i: int) -> list[tuple]:
    """A word's form class, beside the word before it and beside the word after it."""
    form = (row["upos"][i], row["feats"][i])
    after = row["words"][i + 1].lower() if i + 1 < len(row["words"]) else ""
    return [("after", row["words"][i - 1].lower(), *form), ("before", after, *form)]


def coordination_inversion(rows: list[Row], rng: random.Random) -> list[Example]:
    """Whether two coordinate main clauses were swapped."""
    return _altered(rows, rng, inverted, "I")


def inverted(row: Row) -> list[str] | None:
    """The sentence with its two main clauses swapped, or None if it does not have exactly two.

    Example:
        >>> row = {"words": "He ran and she sat .".split(), "upos": "PRON VERB CCONJ PRON VERB PUNCT".split(),
        ...        "deprels": "nsubj root cc nsubj conj punct".split(), "heads": [2, 0, 5, 5, 2, 2]}
        >>> " ".join(inverted(row))
        'She sat and he ran .'
    """
    words, tags, main = row["words"], row["upos"], root(row)
    clauses = [i for i in children(row, main) if relation(row, i) == "conj"]
    if len(clauses) != 1 or not all(_has_subject(row, verb) for verb in (main, clauses[0])):
        return None
    joints = [
        i for i in range(main + 1, clauses[0]) if relation(row, i) == "cc" and row["heads"][i] - 1 in (main, clauses[0])
    ]
    if len(joints) != 1:
        return None
    joint, end = joints[0], len(words)
    while end > joint and tags[end - 1] == "PUNCT":
        end -= 1
    comma = joint - 1 if tags[joint - 1] == "PUNCT" else joint
    first, second = range(comma), range(joint + 1, end)
    if _open(row, first, main) or _open(row, second, clauses[0]):
        return None
    start = words[0] if tags[0] == "PROPN" or words[0] == "I" else words[0][:1].lower() + words[0][1:]
    opening = words[joint + 1]
    return [
        opening[:1].upper() + opening[1:],
        *words[joint + 2 : end],
        *words[comma : joint + 1],
        start,
        *words[1:comma],
        *words[end:],
    ]


def _has_subject(row: Row, verb: int) -> bool:
    return any(relation(row, i) in ("nsubj", "nsubjpass", "csubj", "expl") for i in children(row, verb))


def _open(row: Row, clause: range, verb: int) -> bool:
    """Whether a word of a clause, other than its verb, depends on something outside it."""
    inside = (i for i in clause if i != verb and row["upos"][i] != "PUNCT")
    return verb not in clause or any(row["heads"][i] - 1 not in clause for i in inside)


PROPERTIES: dict[str, Builder] = {
    "sentence_length": sentence_length,
    "word_content": word_content,
    "tree_depth": tree_depth,
    "top_constituents": top_constituents,
    "bigram_shift": bigram_shift,
    "past_present": past_present,
    "subj_number": subj_number,
    "obj_number": obj_number,
    "odd_man_out": odd_man_out,
    "coordination_inversion": coordination_inversion,
}
EVEN = ("past_present", "subj_number", "obj_number")  # made even after splitting, since whole word forms move


def build(name: str, rows: Sequence[Row], seed: int = 0) -> dict[str, list[Row]]:
    """The train, dev and test rows of a property, from the rows of a treebank (5 to 28 words, each sentence once).

    Example:
        >>> build("bigram_shift", get_treebank_rows)["train"][0]  # doctest: +SKIP
        {'text': 'I waited for her say to more .', 'text_b': None, 'label': 'I'}
    """
    if name not in PROPERTIES:
        raise unknown("probing property", name, PROPERTIES)
    rng = random.Random(f"{name}/{seed}")
    distinct = {
        " ".join(row["words"]).lower(): row for row in rows if LENGTHS[0][0] <= len(row["words"]) <= LENGTHS[-1][1]
    }
    split = _split(PROPERTIES[name](list(distinct.values()), rng), rng)
    if name in EVEN:
        split = {part: _even(examples, rng) for part, examples in split.items()}
    if any(len({example.label for example in examples}) < 2 for examples in split.values()):
        sizes = {part: len(examples) for part, examples in split.items()}
        raise HeadwiseError(
            f"{name} from {len(rows)} sentences gives {sizes} rows", "a larger treebank, or one with these features"
        )
    return {part: _rows(examples, rng) for part, examples in split.items()}


def _split(examples: list[Example], rng: random.Random) -> dict[str, list[Example]]:
    """Split every label 80/10/10, keeping rows of one key together."""
    by_label: dict[str, dict[str, list[Example]]] = defaultdict(lambda: defaultdict(list))
    owner: dict[str, str] = {}
    for example in examples:  # a key with two labels ("sheep") goes with the label it came with first
        by_label[owner.setdefault(example.key, example.label)][example.key].append(example)
    split: dict[str, list[Example]] = {part: [] for part in SPLITS}
    for label in sorted(by_label):
        groups = sorted(by_label[label])
        rng.shuffle(groups)
        total, filled = sum(map(len, by_label[label].values())), 0
        for key in groups:
            part = "test" if filled < 0.1 * total else "dev" if filled < 0.2 * total else "train"
            split[part] += by_label[label][key]
            filled += len(by_label[label][key])
    return split


def _rows(examples: list[Example], rng: random.Random) -> list[Row]:
    rng.shuffle(examples)
    return [{"text": " ".join(example.words), "text_b": None, "label": example.label} for example in examples]
