"""Roles by attention: the pairs of a query and a key that define each role.

A role is a weighting of the (query, key) pairs of a text, ``w``, and a head's score on that text is ``Σ w · a`` over
its attention map ``a``. The weighting is a mean over the queries that have a target, so that the score is the share of
attention that such a query gives to its targets.

Every role has a control: a weighting with the same sum, over pairs that a head without the role might attend to too.
``uniform`` is all keys alike, for roles of position. ``distance`` is other pairs of ordinary tokens of the same text,
as far apart as the role's own, so that a head that only counts places gains nothing; the first token is then no key,
for many heads look at it whatever it is, and where no special token begins a text it is a word. ``shuffled`` is the
pairs of another text of the batch, for repeated tokens, all of which are equally far apart.

Legend: B texts, T tokens, R roles.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

NEAR = 4  # tokens to either side that count as local
CONTROL = " (control)"  # after the name of links that are the control of others
Targets = Callable[["Tokens"], torch.Tensor]  # (B, T, T), query by key: bool, or how much a key counts


@dataclass(frozen=True)
class Tokens:
    """A batch of texts as tokens with their annotations; -1 for none."""

    ids_BT: torch.Tensor
    mask_BT: torch.Tensor  # bool: real tokens
    special_BT: torch.Tensor  # bool: separators and the like
    word_BT: torch.Tensor  # the number of the word a token belongs to
    punctuation_BT: torch.Tensor  # bool
    head_BT: torch.Tensor  # the number of the word that governs a token's word
    relation_BT: torch.Tensor  # the number of that dependency's label
    copy_BT: torch.Tensor  # of a repeated token: where it stood the first time
    causal: bool
    links: Mapping[str, torch.Tensor] = field(default_factory=dict)  # bool (B, T, T), by name

    @property
    def visible_BTT(self) -> torch.Tensor:
        """The keys that each query can attend to."""
        pairs = self.mask_BT[:, :, None] & self.mask_BT[:, None, :]
        return pairs.tril() if self.causal else pairs

    @property
    def distance_TT(self) -> torch.Tensor:
        """The distance from a query back to a key; negative for later keys."""
        place = torch.arange(self.ids_BT.shape[1], device=self.ids_BT.device)
        return place[:, None] - place[None, :]


@dataclass(frozen=True)
class Role:
    """A role: what a head may do with its attention.

    Attributes:
        targets: the keys that queries would attend to.
        control: ``uniform``, ``distance`` or ``shuffled``, see above; or the pairs of queries and keys themselves.
        about: one line for people.
        measured: instead of targets, a function of maps, (B, H, T, T), to a score of each text and head, (B, H).
    """

    targets: Targets
    control: str | Targets
    about: str
    measured: Callable[[Tokens, torch.Tensor], torch.Tensor] | None = None


def at_distance(offset: int) -> Targets:
    """The token ``offset`` before the query."""
    return lambda t: (t.distance_TT == offset).expand(len(t.ids_BT), -1, -1)


def first(t: Tokens) -> torch.Tensor:
    """The first real token, also after left padding, except from itself."""
    place = t.mask_BT.long().argmax(1)
    there = torch.nn.functional.one_hot(place, t.ids_BT.shape[1]).bool()
    return there[:, None, :] & ~there[:, :, None]


def separator(t: Tokens) -> torch.Tensor:
    """Special tokens but the first token."""
    return (t.special_BT[:, None, :] & ~_first_key(t)) & ~_same_place(t)


def local(t: Tokens) -> torch.Tensor:
    """Tokens near the query, except the query itself."""
    near = t.distance_TT.abs().le(NEAR) & t.distance_TT.ne(0)
    return near.expand(len(t.ids_BT), -1, -1)


def distance(t: Tokens) -> torch.Tensor:
    """The distance to a key as a fraction of the farthest visible one."""
    far = t.distance_TT.abs() * t.visible_BTT
    return far / far.amax(-1, keepdim=True).clamp_min(1)


def focus(t: Tokens, map_BHTT: torch.Tensor) -> torch.Tensor:
    """1 minus the entropy of attention relative to uniform attention, over queries that see two keys or more."""
    seen = t.visible_BTT.sum(-1).to(map_BHTT.device)
    asked = (seen > 1) & t.mask_BT.to(map_BHTT.device)
    entropy = -torch.xlogy(map_BHTT, map_BHTT).sum(-1) / seen.clamp_min(2).log()[:, None]
    return ((1 - entropy) * asked[:, None]).sum(-1) / asked.sum(-1).clamp_min(1)[:, None]


def same_token(t: Tokens) -> torch.Tensor:
    """The same token elsewhere in the text."""
    ordinary = ~t.special_BT
    same = t.ids_BT[:, :, None] == t.ids_BT[:, None, :]
    return same & ordinary[:, :, None] & ordinary[:, None, :] & ~_same_place(t)


def prefix(t: Tokens) -> torch.Tensor:
    """The first sub-word of the query's word, from its later ones."""
    start = t.word_BT.ne(t.word_BT.roll(1, 1))
    start[:, 0] = True
    return _same_word(t) & start[:, None, :] & ~start[:, :, None]


def suffix(t: Tokens) -> torch.Tensor:
    """The later sub-words of the query's word, from its first one."""
    return prefix(t).transpose(1, 2)


def punctuation(t: Tokens) -> torch.Tensor:
    """Punctuation marks, from words."""
    return t.punctuation_BT[:, None, :] & (t.word_BT >= 0)[:, :, None] & ~t.punctuation_BT[:, :, None]


def duplicate(t: Tokens) -> torch.Tensor:
    """The first occurrence of a token in a repeated sequence."""
    return _copies(t, 0)


def induction(t: Tokens) -> torch.Tensor:
    """The token after the first occurrence of the query's token."""
    return _copies(t, 1)


def governor(relation: int) -> Targets:
    """From a dependent to the word that governs it."""

    def targets(t: Tokens) -> torch.Tensor:
        linked = t.head_BT[:, :, None] == t.word_BT[:, None, :]
        return linked & (t.relation_BT == relation)[:, :, None] & (t.word_BT >= 0)[:, None, :]

    return targets


def dependent(relation: int) -> Targets:
    """From a governing word to its dependent."""
    return lambda t: governor(relation)(t).transpose(1, 2)


POSITION: Mapping[str, Role] = {
    "previous": Role(at_distance(1), "uniform", "the token before"),
    "next": Role(at_distance(-1), "uniform", "the token after"),
    "self": Role(at_distance(0), "uniform", "the token itself"),
    "first": Role(first, "uniform", "the first token (a sink)"),
    "local": Role(local, "uniform", f"tokens up to {NEAR} away"),
}
SHAPE: Mapping[str, Role] = {  # these describe every head but name none: see `result.DESCRIBE`
    "focus": Role(lambda t: t.visible_BTT, "uniform", "few tokens (1 - entropy relative to uniform attention)", focus),
    "distance": Role(distance, "uniform", "distant tokens (fraction of the longest distance)"),
}
CONTENT: Mapping[str, Role] = {
    "separator": Role(separator, "uniform", "separators and other special tokens"),
    "same token": Role(same_token, "distance", "the same token elsewhere"),
    "prefix": Role(prefix, "distance", "the first sub-word of the word, from later ones"),
    "suffix": Role(suffix, "distance", "later sub-words of the word, from its first"),
    "punctuation": Role(punctuation, "distance", "punctuation marks, from words"),
}
REPEATED: Mapping[str, Role] = {
    "duplicate": Role(duplicate, "shuffled", "the first occurrence of a repeated token"),
    "induction": Role(induction, "shuffled", "the token after the first occurrence of a repeated token"),
}


def relations(labels: Sequence[str]) -> dict[str, Role]:
    """Two roles for every dependency label, one for each direction."""
    roles = {}
    for number, label in enumerate(labels):
        roles[f"{label} → head"] = Role(governor(number), "distance", f"from the {label} to its head")
        roles[f"head → {label}"] = Role(dependent(number), "distance", f"from a head to its {label}")
    return roles


def linked(name: str, controlled: bool = False) -> Role:
    """From a word to a linked one; the control is other links, or other words at the same distances."""
    control = (lambda t: _links(t, name + CONTROL)) if controlled else "distance"
    return Role(lambda t: _links(t, name), control, f"linked words: {name}")


def weightings(t: Tokens, roles: Sequence[Role]) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights of roles and of their controls, each (B, R, T, T); zero for texts without target or control."""
    visible = t.visible_BTT
    weights, controls = [], []
    for role in roles:
        targets = role.targets(t) * visible
        targets = targets * ~_first_key(t) if role.control == "distance" else targets
        control = _control(role, t, targets)
        targets = targets * (control.sum((1, 2)) > 0)[:, None, None]
        queries = (targets > 0).any(-1).sum(-1).clamp_min(1)[:, None, None]
        weights.append(targets / queries)
        controls.append(control * (_total(targets) / _total(control).clamp_min(1e-9)) / queries)
    return torch.stack(weights, 1), torch.stack(controls, 1)


def _control(role: Role, t: Tokens, targets: torch.Tensor) -> torch.Tensor:
    if isinstance(role.control, str):
        return CONTROLS[role.control](t, targets)
    asked = (targets > 0).any(-1, keepdim=True)
    return (role.control(t) & t.visible_BTT & ~(targets > 0) & asked).float()


def _uniform(t: Tokens, targets: torch.Tensor) -> torch.Tensor:
    """Uniform weights over all visible keys, in proportion to each query's targets."""
    visible = t.visible_BTT
    return visible / visible.sum(-1, keepdim=True).clamp_min(1) * targets.sum(-1, keepdim=True)


def _as_far_apart(t: Tokens, targets: torch.Tensor) -> torch.Tensor:
    """Other pairs of ordinary tokens, weighted by how many targets have their distance."""
    ordinary = t.mask_BT & ~t.special_BT
    others = t.visible_BTT & ordinary[:, :, None] & ordinary[:, None, :] & ~_first_key(t) & ~targets.bool()
    size, width = len(t.ids_BT), t.ids_BT.shape[1]
    place = (t.distance_TT + width - 1).expand(size, -1, -1).flatten(1)

    def by_distance(pairs: torch.Tensor) -> torch.Tensor:
        zeros = torch.zeros(size, 2 * width - 1, device=pairs.device)
        return zeros.scatter_add(1, place, pairs.flatten(1).float())

    per_pair = by_distance(targets) / by_distance(others).clamp_min(1)
    return others * per_pair.gather(1, place).unflatten(1, (width, width))


def _shuffled(t: Tokens, targets: torch.Tensor) -> torch.Tensor:
    """The targets of a text half a batch away, whose repeats have another length."""
    return (targets.roll(max(1, len(targets) // 2), 0) * t.visible_BTT * ~targets.bool()).float()


CONTROLS = {"uniform": _uniform, "distance": _as_far_apart, "shuffled": _shuffled}


def _total(weights_BTT: torch.Tensor) -> torch.Tensor:
    return weights_BTT.sum((1, 2))[:, None, None]


def is_punctuation(token: str) -> bool:
    """Whether a token consists of punctuation, apart from the tokenizer's prefix."""
    bare = token.strip("▁Ġ #")
    return bool(bare) and all(unicodedata.category(c).startswith("P") for c in bare)


def _links(t: Tokens, name: str) -> torch.Tensor:
    nothing = torch.zeros(t.visible_BTT.shape, dtype=torch.bool, device=t.ids_BT.device)
    return t.links.get(name, nothing)


def _same_place(t: Tokens) -> torch.Tensor:
    return (t.distance_TT == 0).expand(len(t.ids_BT), -1, -1)


def _first_key(t: Tokens) -> torch.Tensor:
    place = t.mask_BT.long().argmax(1)
    return torch.nn.functional.one_hot(place, t.ids_BT.shape[1]).bool()[:, None, :]


def _same_word(t: Tokens) -> torch.Tensor:
    return (t.word_BT[:, :, None] == t.word_BT[:, None, :]) & (t.word_BT >= 0)[:, :, None]


def _copies(t: Tokens, offset: int) -> torch.Tensor:
    """The key ``offset`` after the first occurrence of the query's token."""
    place = torch.arange(t.ids_BT.shape[1], device=t.ids_BT.device)
    return (t.copy_BT[:, :, None] + offset == place) & (t.copy_BT >= 0)[:, :, None]
