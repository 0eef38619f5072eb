"""Tasks derived from other tasks: AG-Pair from AG's News (no torch)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from headwise.errors import HeadwiseError
from headwise.tasks.task import Row, Rows, Task

Pair = tuple[int, int]


def ag_pair(rows: Sequence[Row], seed: int = 0) -> list[Row]:
    """AG-Pair as Li et al. 2023 made it: are two news items of the same topic?

    Every item is matched twice, half of the pairs within a topic and half across topics. An item thus occurs exactly
    twice, never with itself, and no pair repeats. Each half lists same-topic pairs first. Up to three items are left
    out so that the rest is divisible by four.

    Example:
        >>> news = [{"text": f"news {i}", "label": topic} for i in range(4) for topic in ("World", "Sports")]
        >>> [row["label"] for row in ag_pair(news)]
        ['same', 'same', 'different', 'different', 'same', 'same', 'different', 'different']
    """
    rng = random.Random(seed)
    items = sorted(rng.sample(range(len(rows)), len(rows) - len(rows) % 4))
    topic = {i: rows[i]["label"] for i in items}
    taken: set[frozenset[int]] = set()
    out: list[Row] = []
    for _ in range(2):
        for pairs, label in zip(_new_matching(topic, taken, rng), ("same", "different")):
            taken.update(map(frozenset, pairs))
            out += [{"text": rows[a]["text"], "text_b": rows[b]["text"], "label": label} for a, b in pairs]
    return out


def _new_matching(
    topic: dict[int, str], taken: set[frozenset[int]], rng: random.Random
) -> tuple[list[Pair], list[Pair]]:
    """A matching without any pair already used; only very few items need more than one attempt."""
    for _ in range(50):
        same, different = _matching(topic, rng)
        if _unrepeated(same, taken, topic, True, rng) and _unrepeated(different, taken, topic, False, rng):
            return same, different
    raise HeadwiseError(f"{len(topic)} items are too few to pair each twice", "more items per topic")


def _matching(topic: dict[int, str], rng: random.Random) -> tuple[list[Pair], list[Pair]]:
    """A perfect matching, half of it within topics and half across."""
    pools: dict[str, list[int]] = {}
    for item, name in topic.items():
        pools.setdefault(name, []).append(item)
    for pool in pools.values():
        rng.shuffle(pool)
    quota = _quota({name: len(pool) for name, pool in pools.items()}, rng)
    same = [(pools[name].pop(), pools[name].pop()) for name, count in quota.items() for _ in range(count)]
    rng.shuffle(same)
    return same, _across(pools, rng)


def _quota(counts: dict[str, int], rng: random.Random) -> dict[str, int]:
    """The random number of same-topic pairs of each topic, such that the rest can be matched across topics."""
    need = sum(counts.values()) // 4
    slots = [name for name, count in counts.items() for _ in range(count // 2)]
    quota = Counter({name: 0 for name in counts})
    quota.update(rng.sample(slots, need) if need <= len(slots) else ())
    rest = {name: count - 2 * quota[name] for name, count in counts.items()}
    while rest and 2 * max(rest.values()) > sum(rest.values()):
        big = max(rest, key=lambda name: rest[name])
        givers = [name for name in counts if quota[name] and rest[name] + 2 < rest[big]]
        if not givers:
            break
        give = rng.choice(givers)
        quota.update({big: 1, give: -1})
        rest[big], rest[give] = rest[big] - 2, rest[give] + 2
    if quota.total() != need or 2 * max(rest.values(), default=0) > sum(rest.values()):
        raise HeadwiseError(
            f"topics of {dict(counts)} items", "topics even enough to pair half of the items across them"
        )
    return dict(quota)


def _across(pools: dict[str, list[int]], rng: random.Random) -> list[Pair]:
    """Match all remaining items across topics; a topic with half of them must be in every pair."""
    pairs = []
    while left := sum(map(len, pools.values())):
        forced = [name for name, pool in pools.items() if 2 * len(pool) == left]
        first = forced[0] if forced else rng.choices(list(pools), [len(pool) for pool in pools.values()])[0]
        others = [name for name in pools if name != first]
        second = rng.choices(others, [len(pools[name]) for name in others])[0]
        pair = (pools[first].pop(), pools[second].pop())
        pairs.append(pair if rng.random() < 0.5 else pair[::-1])
    return pairs


def _unrepeated(
    pairs: list[Pair], taken: set[frozenset[int]], topic: dict[int, str], same: bool, rng: random.Random
) -> bool:
    """Swap partners with another pair wherever a pair repeats; False if that is impossible."""

    def fits(*new: Pair) -> bool:
        return all((topic[a] == topic[b]) == same and frozenset((a, b)) not in taken for a, b in new)

    def swapped(i: int) -> bool:
        a, b = pairs[i]
        for j in rng.sample(range(len(pairs)), len(pairs)):
            c, d = pairs[j]
            for new in (((a, d), (c, b)), ((a, c), (b, d))):
                if i != j and fits(*new):
                    pairs[i], pairs[j] = new
                    return True
        return False

    return all(swapped(i) for i in range(len(pairs)) if frozenset(pairs[i]) in taken)


def ag_pair_task(news: Task, seed: int = 0) -> Task:
    """AG-Pair from the available splits of AG's News; its test set serves as dev if there is no dev set."""
    rows = {split: ag_pair(news.rows(split), seed) for split in news.splits}
    rows.setdefault("dev", rows.get("test", []))
    return Task(
        "agpair",
        replace(news.kind, labels=("different", "same")),  # type: ignore[type-var]
        Rows(**rows),
        "accuracy",
        news.language,
        note="made from AG's News",
    )


WORDS = (
    "apple river stone cloud table horse window bridge candle forest garden hammer island jacket kettle ladder "
    "market needle orange pencil rabbit saddle ticket valley wagon basket bottle button carpet castle circle "
    "corner desert engine finger flower guitar helmet kitchen lemon mirror monkey mountain number ocean paper "
    "pillow planet pocket potato ribbon school shadow silver spider summer temple thunder tiger tomato tower "
    "tunnel turtle village winter"
)


def copying(length: int = 8, rows: int = 400, seed: int = 0) -> Task:
    """Rows whose right choice is the word that followed before; the wrong one is another word of the list.

    Heads that look back to what came after the same word, induction heads, answer it.

    Example:
        >>> row = copying().rows("dev")[0]
        >>> row["prompt"].split()[:8].count(row["choices"][row["label"]])
        1
    """
    from headwise.tasks.kinds.choice import Choice

    draw = random.Random(seed)
    parts = {split: [_row(draw, length) for _ in range(rows)] for split in ("train", "dev")}
    return Task("copying", Choice(), Rows(**parts), "accuracy", note="a list of words that begins again")


def _row(draw: random.Random, length: int) -> Row:
    words = draw.sample(WORDS.split(), length)
    place, label = draw.randrange(1, length), draw.randint(0, 1)
    wrong = draw.choice([word for i, word in enumerate(words) if i not in (place, place - 1)])
    choices = [words[place], wrong] if label == 0 else [wrong, words[place]]
    return {"prompt": " ".join([*words, *words[:place]]), "choices": choices, "label": label}
