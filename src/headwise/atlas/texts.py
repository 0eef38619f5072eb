"""Texts to measure roles on: annotated sentences, plain texts, repeated random tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from headwise.atlas.weightings import CONTROL, Tokens, is_punctuation
from headwise.errors import HeadwiseError

ENTITY = "same entity"
SENTENCES = 512  # of the embedded corpus
SPAN = (12, 28)  # tokens that are repeated: of other lengths in each text, so that no distance tells a copy
TOKENS = 2048  # padded tokens in one batch


@dataclass(frozen=True)
class Text:
    """Tokens of one text with their annotations; -1 for none."""

    ids: np.ndarray
    special: np.ndarray
    word: np.ndarray
    punctuation: np.ndarray
    head: np.ndarray
    relation: np.ndarray
    copy: np.ndarray
    links: Mapping[str, np.ndarray] = field(default_factory=dict)  # pairs of a query and a key, (n, 2), by name


def annotated(tokenizer: Any, rows: Sequence[Any], labels: Sequence[str], longest: int) -> list[Text]:
    """Plain texts, or rows of words, as tokens.

    Rows may have ``heads`` (from 1, 0 for the root) with dependency ``labels``; or entities as ``labels`` that begin
    with B- and I-; or ``links``: names to pairs of words, the one that attends first.
    """
    number = {label: i for i, label in enumerate(labels)}
    return [text for text in (_one(tokenizer, row, number, longest) for row in rows) if len(text.ids) > 1]


def _one(tokenizer: Any, row: Any, number: Mapping[str, int], longest: int) -> Text:
    words = row.split() if isinstance(row, str) else row["words"]
    whole = isinstance(row, str)
    encoded = tokenizer(row if whole else words, is_split_into_words=not whole, truncation=True, max_length=longest)
    ids = np.asarray(encoded["input_ids"])
    special = np.asarray(tokenizer.get_special_tokens_mask(ids.tolist(), already_has_special_tokens=True), bool)
    word = np.array([-1 if w is None else w for w in _words_of(encoded, len(ids))])
    pieces = tokenizer.convert_ids_to_tokens(ids.tolist())
    head, relation = np.full(len(ids), -1), np.full(len(ids), -1)
    if not whole and "heads" in row:
        heads = np.array([*row["heads"], 0]) - 1  # the root's, and that of no word, is -1
        kinds = np.array([*(number.get(label, -1) for label in row["labels"]), -1])
        head, relation = heads[word], np.where(heads[word] < 0, -1, kinds[word])
        head[word < 0] = relation[word < 0] = -1
        head[head < 0] = -2  # equal to no word
    marks, links = np.array([is_punctuation(p) for p in pieces]), {} if whole else _links(row, word)
    return Text(ids, special, word, marks, head, relation, np.full(len(ids), -1), links)


def _links(row: Mapping[str, Any], word: np.ndarray) -> dict[str, np.ndarray]:
    """Linked pairs of words as pairs of tokens, including mentions of one entity."""
    named: dict[str, Sequence] = dict(row.get("links", {}))
    if is_tagged(row):
        named[ENTITY] = _same_entity(row["words"], row["labels"])
    places = {number: np.flatnonzero(word == number) for number in set(word.tolist()) - {-1}}
    links = {}
    for name, pairs in named.items():
        there = [(i, j) for a, b in pairs if a in places and b in places for i in places[a] for j in places[b]]
        links[name] = np.array(there, int).reshape(-1, 2)
    return links


def is_tagged(row: Any) -> bool:
    """Whether a row's labels are entities in BIO."""
    labels = row.get("labels", ()) if isinstance(row, Mapping) and "heads" not in row else ()
    return any(isinstance(label, str) and label.startswith(("B-", "I-")) for label in labels)


def _same_entity(words: Sequence[str], labels: Sequence[str]) -> list[tuple[int, int]]:
    """Words of one mention, and of other mentions of the same words or of a part of them (Ada Lovelace, Lovelace)."""
    mentions: list[list[int]] = []
    for place, label in enumerate(labels):
        if label.startswith("B-") or (label.startswith("I-") and (not mentions or mentions[-1][-1] != place - 1)):
            mentions.append([place])
        elif label.startswith("I-"):
            mentions[-1].append(place)
    said = [{words[i].lower() for i in mention} for mention in mentions]
    same = [
        (m, n) for m in range(len(mentions)) for n in range(len(mentions)) if said[m] <= said[n] or said[n] <= said[m]
    ]
    return [(i, j) for m, n in same for i in mentions[m] for j in mentions[n] if i != j]


def _words_of(encoded: Any, count: int) -> list[int | None]:
    try:
        return encoded.word_ids()
    except ValueError:  # a tokenizer without a fast backend does not say
        return [None] * count


def common_relations(rows: Sequence[Any], least: int) -> tuple[str, ...]:
    """The dependency labels with enough occurrences, most frequent first, without punctuation and root."""
    parsed = [row for row in rows if isinstance(row, Mapping) and "heads" in row]
    counts = Counter(label for row in parsed for label in row["labels"])
    return tuple(label for label, n in counts.most_common() if n >= least and label not in ("punct", "root"))


def link_names(texts: Sequence[Text], least: int) -> tuple[str, ...]:
    """The names of links that occur in enough texts, without those of controls."""
    counts = Counter(name for text in texts for name, pairs in text.links.items() if len(pairs))
    return tuple(name for name, n in counts.items() if n >= least and not name.endswith(CONTROL))


def shuffled(texts: Sequence[Text], seed: int = 0) -> list[Text]:
    """The same texts with their ordinary tokens shuffled; annotations keep their positions."""
    rng, reordered = np.random.default_rng(seed), []
    for text in texts:
        ids, ordinary = text.ids.copy(), np.flatnonzero(~text.special.astype(bool))
        ids[ordinary] = ids[rng.permutation(ordinary)]
        reordered.append(replace(text, ids=ids))
    return reordered


def plain_text(tokenizer: Any, inner: Sequence[int]) -> tuple[Text, int]:
    """Tokens of a plain text with the tokenizer's special tokens, and the index of its first one."""
    before, after = _around(tokenizer)
    ids = np.array([*before, *inner, *after])
    place, nothing = np.arange(len(ids)), np.full(len(ids), -1)
    special = (place < len(before)) | (place >= len(before) + len(inner))
    return Text(ids, special, nothing, np.zeros(len(ids), bool), nothing - 1, nothing, nothing.copy()), len(before)


def repeated(tokenizer: Any, count: int, longest: int, seed: int = 0) -> list[Text]:
    """Random ordinary tokens, repeated once, between the tokenizer's special tokens."""
    ordinary = ordinary_tokens(tokenizer)
    rng = np.random.default_rng(seed)
    room = (longest - sum(map(len, _around(tokenizer)))) // 2
    if room < 4:
        raise HeadwiseError(f"texts of at most {longest} tokens", "room for four tokens, repeated")
    texts = []
    for _ in range(count):
        span = int(rng.integers(min(SPAN[0], room), min(SPAN[1], room), endpoint=True))
        drawn = rng.choice(ordinary, span, replace=len(ordinary) < span)
        text, start = plain_text(tokenizer, [*drawn, *drawn])
        text.copy[start + span : start + 2 * span] = np.arange(start, start + span)
        texts.append(text)
    return texts


def ordinary_tokens(tokenizer: Any) -> np.ndarray:
    """Ordinary tokens: words of letters if the vocabulary has enough of them."""
    special = set(tokenizer.all_special_ids)
    vocabulary = tokenizer.get_vocab()
    wordlike = [i for piece, i in vocabulary.items() if piece.strip("▁Ġ").isalpha() and i not in special]
    return np.array(sorted(wordlike if len(wordlike) >= 2 * SPAN[1] else set(vocabulary.values()) - special))


def _around(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens before and after a text."""
    ids = tokenizer("a")["input_ids"]
    mask = tokenizer.get_special_tokens_mask(ids, already_has_special_tokens=True)
    inner = [place for place, special in enumerate(mask) if not special] or [len(ids)]
    return ids[: inner[0]], ids[inner[-1] + 1 :]


def batched(texts: Sequence[Text], pad: int, causal: bool, device: Any, tokens: int = TOKENS) -> Iterator[Tokens]:
    """Batches of `grouped` texts, padded on the right."""
    return (padded(group, pad, causal, device) for group in grouped(texts, tokens))


def grouped(texts: Sequence[Text], tokens: int = TOKENS) -> Iterator[list[Text]]:
    """At least two texts of similar lengths at a time."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i].ids))
    start = 0
    while start < len(order):
        size = max(2, tokens // max(len(texts[order[min(start + 1, len(order) - 1)]].ids), 1))
        while size > 2 and size * len(texts[order[min(start + size, len(order)) - 1]].ids) > tokens:
            size -= 1
        if len(order) - start - size == 1:  # the last text would be alone, and have no other for its control
            size += 1
        yield [texts[i] for i in order[start : start + size]]
        start += size


def padded(texts: Sequence[Text], pad: int, causal: bool, device: Any) -> Tokens:
    """Texts as one batch, padded on the right."""
    width = max(len(text.ids) for text in texts)

    def column(name: str, fill: int) -> torch.Tensor:
        rows = [
            np.pad(getattr(text, name).astype(int), (0, width - len(text.ids)), constant_values=fill) for text in texts
        ]
        return torch.from_numpy(np.stack(rows)).to(device)

    mask = torch.from_numpy(np.stack([np.arange(width) < len(text.ids) for text in texts])).to(device)
    flags = {name: column(name, 0).bool() for name in ("special", "punctuation")}
    links = {}
    for name in {name for text in texts for name in text.links}:
        pairs = torch.zeros(len(texts), width, width, dtype=torch.bool)
        for number, text in enumerate(texts):
            place = torch.from_numpy(text.links.get(name, np.zeros((0, 2), int)))
            pairs[number, place[:, 0], place[:, 1]] = True
        links[name] = pairs.to(device)
    return Tokens(
        column("ids", pad),
        mask,
        flags["special"] & mask,
        column("word", -1),
        flags["punctuation"] & mask,
        column("head", -2),
        column("relation", -1),
        column("copy", -1),
        causal,
        links,
    )


NAME = "question → passage"
PASSAGES, LONG = 4, 40  # passages before a question, and tokens of each
AROUND = 240  # characters around an answer that a passage holds


def is_question(row: Any) -> bool:
    return isinstance(row, Mapping) and "question" in row and "context" in row


def asked(tokenizer: Any, rows: Sequence[Mapping[str, Any]], longest: int, seed: int = 0) -> list[Text]:
    """Several passages in random order and a question that one of them answers.

    A head's score is the attention of the question's tokens to that passage; the control, to the others, per token.
    """
    rng, texts = np.random.default_rng(seed), []
    cut = [tokenizer("\n" + _passage(row), add_special_tokens=False)["input_ids"][:LONG] for row in rows]
    for number, row in enumerate(rows):
        question = tokenizer("\n\n" + row["question"], add_special_tokens=False)["input_ids"]
        others = [i for i in range(len(rows)) if rows[i]["context"] != row["context"]]
        if len(others) < PASSAGES - 1:
            continue
        shown = rng.permutation([number, *rng.choice(others, PASSAGES - 1, replace=False)])
        pieces = [cut[i] for i in shown] + [question]
        inner = [token for piece in pieces for token in piece]
        text, start = plain_text(tokenizer, inner)
        if len(text.ids) > longest:
            continue
        ends = start + np.cumsum([len(piece) for piece in pieces])
        spans = [np.arange(end - len(piece), end) for end, piece in zip(ends, pieces)]
        gold = [span for i, span in zip(shown, spans) if i == number]
        wrong = [span for i, span in zip(shown, spans) if i != number]
        links = {NAME: _pairs(spans[-1], gold), NAME + CONTROL: _pairs(spans[-1], wrong)}
        texts.append(Text(**{**text.__dict__, "links": links}))
    return texts


def _passage(row: Mapping[str, Any]) -> str:
    """The part of a context around its first answer, or its beginning."""
    context, answer = row["context"], (row.get("answers") or [""])[0]
    place = max(0, context.find(answer["text"] if isinstance(answer, Mapping) else answer))
    first = max(0, min(place - AROUND // 2, len(context) - AROUND))
    return context[first : first + AROUND]


def _pairs(queries: np.ndarray, spans: Sequence[np.ndarray]) -> np.ndarray:
    keys = np.concatenate(spans)
    return np.stack(np.meshgrid(queries, keys, indexing="ij"), -1).reshape(-1, 2)


Pairs = Sequence[tuple[str, str]]


def _split_pairs(text: str) -> list[tuple[str, str]]:
    return [tuple(pair.replace("_", " ").split(":")) for pair in text.split()]  # type: ignore[misc]


TASKS: Mapping[str, Pairs] = {
    "antonym": _split_pairs(
        "hot:cold big:small up:down fast:slow good:bad old:new hard:soft high:low rich:poor happy:sad open:closed "
        "early:late full:empty strong:weak dark:light long:short wet:dry true:false left:right inside:outside "
        "love:hate buy:sell start:stop win:lose push:pull"
    ),
    "capital": _split_pairs(
        "France:Paris Germany:Berlin Italy:Rome Spain:Madrid Japan:Tokyo China:Beijing Russia:Moscow Egypt:Cairo "
        "Greece:Athens Poland:Warsaw Portugal:Lisbon Austria:Vienna Ireland:Dublin Cuba:Havana Peru:Lima "
        "Chile:Santiago Canada:Ottawa Norway:Oslo Sweden:Stockholm "
        "Turkey:Ankara India:Delhi Kenya:Nairobi Iraq:Baghdad Iran:Tehran"
    ),
    "plural": _split_pairs(
        "cat:cats dog:dogs house:houses tree:trees car:cars book:books table:tables chair:chairs bird:birds "
        "child:children man:men woman:women mouse:mice city:cities "
        "box:boxes leaf:leaves day:days river:rivers king:kings "
        "story:stories bus:buses party:parties wolf:wolves foot:feet"
    ),
    "past": _split_pairs(
        "go:went see:saw eat:ate run:ran take:took give:gave make:made come:came know:knew think:thought find:found "
        "say:said write:wrote drive:drove sing:sang walk:walked play:played call:called work:worked look:looked "
        "live:lived move:moved stop:stopped turn:turned"
    ),
    "spanish": _split_pairs(
        "house:casa dog:perro cat:gato water:agua book:libro night:noche day:día man:hombre woman:mujer friend:amigo "
        "city:ciudad world:mundo time:tiempo life:vida hand:mano school:escuela door:puerta table:mesa street:calle "
        "country:país work:trabajo white:blanco black:negro red:rojo"
    ),
}
SEQUENCES: Mapping[str, Sequence[str]] = {
    name: tuple(words.split())
    for name, words in {
        "days": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
        "months": "January February March April May June July August September October November December",
        "numbers": "one two three four five six seven eight nine ten eleven twelve",
        "digits": "1 2 3 4 5 6 7 8 9",
        "letters": "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z",
        "ordinals": "first second third fourth fifth sixth seventh eighth ninth tenth",
        "números": "uno dos tres cuatro cinco seis siete ocho nueve diez once doce",
        "meses": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
    }.items()
}
